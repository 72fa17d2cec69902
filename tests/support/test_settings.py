"""Settings: a text is checked where it is given."""

from dataclasses import dataclass

from fedprivacy._support.settings import fields_of, not_allowed, setting


def _no_stranger(text):
    if text == "stranger":
        raise ValueError("guest is a stranger; invite a friend.")


@dataclass(frozen=True, kw_only=True)
class Dinner:
    guests: int = setting("How many come.", bounds=(1, 100))
    guest: str = setting("Who comes.", "", check=_no_stranger)


def test_a_text_is_checked_unless_it_is_left_open():
    wrong = not_allowed(fields_of(Dinner), {"guest": "stranger"})
    assert wrong == {"guest": "guest is a stranger; invite a friend."}
    assert not_allowed(fields_of(Dinner), {"guest": "", "guests": 1}) == {}
