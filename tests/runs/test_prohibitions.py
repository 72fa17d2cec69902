"""Prohibitions: a rule speaks where it knows all that it is about."""

from dataclasses import dataclass

import pytest

from fedprivacy._support.settings import fields_of, setting
from fedprivacy.runs.settings.prohibitions import KnownSettings, LeftOpen


@dataclass(frozen=True, kw_only=True)
class Dinner:
    guests: int = setting("How many come.", bounds=(1, 100))
    tables: int = setting("How many there are.", 1)
    candles: int | None = setting("How many burn.", None)
    lamps: int | None = setting("How many shine.", None)
    guest: str = setting("Who comes.", "")


def _too_many_tables(tables, guests):
    if tables > guests:
        yield f"tables is {tables} and guests is {guests}; give fewer tables."


def _out_of_season(guests, candles=None, lamps=None):
    for name, number in {"candles": candles, "lamps": lamps}.items():
        if number == 99 and guests:
            yield f"{name} is out of season."


def _lit_twice(light, guest):
    if light and guest:
        yield f"{guest} sees well; leave candles and lamps open."


RULES = (
    _too_many_tables,
    LeftOpen(("candles", "tables"), "there are lamps; leave it open.", conflict="lamps"),
    LeftOpen(("candles",), "nobody is named; leave it open.", requirement="guest"),
    _lit_twice,
    _out_of_season,
)


def problems(settings, wrong=()):
    return KnownSettings(fields_of(Dinner), settings, wrong, {"light": ("candles", "lamps")}).problems(RULES)


@pytest.mark.parametrize(
    ("settings", "wrong", "found"),
    [
        ({"guests": 3}, (), []),
        ({"guests": 3, "tables": 4}, (), ["tables is 4 and guests is 3; give fewer tables."]),
        ({"guests": 0, "tables": 4}, ("guests",), []),
        ({"tables": 4}, (), []),  # how many guests there are is not known
        ({"guests": 9, "lamps": 2, "tables": 2}, (), ["tables is 2, and there are lamps; leave it open."]),
        ({"guests": 9, "lamps": 2, "tables": 2}, ("lamps",), []),
        ({"guests": 9, "candles": 2}, (), ["candles is 2, and nobody is named; leave it open."]),
        ({"guests": 9, "candles": 2}, ("candles",), []),
        ({"guests": 9, "candles": 2, "guest": "Ada"}, (), ["Ada sees well; leave candles and lamps open."]),
        ({"guests": 9, "candles": 2, "guest": "Ada"}, ("lamps",), []),  # whether there is light is not known
        ({"guests": 9, "candles": 0, "lamps": 99}, ("candles",), ["lamps is out of season."]),
        ({"guests": 0, "candles": 0, "lamps": 99}, ("candles", "guests"), []),
    ],
)
def test_a_rule_is_asked_where_all_that_it_is_about_is_known(settings, wrong, found):
    assert problems(settings, wrong) == found
