"""Epsilons that papers, tutorials and test suites have published, as upper bounds or to the digit."""

import csv
from pathlib import Path

import pytest

from fedprivacy.accounting import pld, rdp
from fedprivacy.values.events import PoissonSampledGaussian

FILE = Path(__file__).parents[3] / "shared" / "data" / "published_epsilons.csv"
if not FILE.exists():
    pytest.skip("the table of published epsilons is not beside the repository", allow_module_level=True)
with FILE.open(newline="") as handle:
    ROWS = list(csv.DictReader(handle))


def history_of(row: dict[str, str]) -> dict[PoissonSampledGaussian, int]:
    return {PoissonSampledGaussian(float(row["q"]), float(row["sigma"])): int(row["steps"])}


def rows(use: str, *accountants: str) -> list[object]:
    return [
        pytest.param(row, id=f"{row['q']}-{row['sigma']}-{row['steps']}")
        for row in ROWS
        if row["use"] == use and any(row["accountant"].startswith(name) for name in accountants)
    ]


@pytest.mark.parametrize("row", rows("exact-match", "pld"))
def test_pld_as_published(row: dict[str, str]) -> None:
    ours = pld.epsilon(history_of(row), float(row["delta"]))
    assert ours == pytest.approx(float(row["published_eps"]), rel=5e-4)


@pytest.mark.parametrize("row", rows("exact-match", "rdp"))
def test_rdp_as_published(row: dict[str, str]) -> None:
    ours = rdp.epsilon(history_of(row), float(row["delta"]))
    assert ours == pytest.approx(float(row["published_eps"]), rel=5e-4)


@pytest.mark.parametrize("row", rows("exact-match", "opacus prv"))
def test_opacus_publishes_an_upper_bound(row: dict[str, str]) -> None:
    ours = pld.epsilon(history_of(row), float(row["delta"]))
    assert ours <= float(row["published_eps"])
    assert ours == pytest.approx(float(row["exact_pld"]), rel=5e-4)


@pytest.mark.parametrize("row", rows("upper-bound-only", ""))
def test_older_accountants_published_more(row: dict[str, str]) -> None:
    published, delta = float(row["published_eps"]), float(row["delta"])
    assert pld.epsilon(history_of(row), delta) <= rdp.epsilon(history_of(row), delta) <= published


@pytest.mark.parametrize("row", rows("exact-match", "") + rows("upper-bound-only", ""))
def test_every_setting_agrees_with_dp_accounting(row: dict[str, str]) -> None:
    ours = pld.epsilon(history_of(row), float(row["delta"]))
    assert ours == pytest.approx(float(row["dp_accounting_pld"]), rel=5e-4)


def test_no_row_is_left_out() -> None:
    checked = sum(len(rows(use, "")) for use in ("exact-match", "upper-bound-only"))
    assert checked == len(ROWS) > 0
