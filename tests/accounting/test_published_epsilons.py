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


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['q']}-{row['sigma']}-{row['steps']}")
def test_ours_is_what_was_published_where_that_was_exact_and_below_it_elsewhere(row: dict[str, str]) -> None:
    history = {PoissonSampledGaussian(float(row["q"]), float(row["sigma"])): int(row["steps"])}
    by_pld, by_rdp = (accountant.epsilon(history, float(row["delta"])) for accountant in (pld, rdp))
    published = float(row["published_eps"])
    assert by_pld == pytest.approx(float(row["dp_accounting_pld"]), rel=5e-4)
    match row["use"], row["accountant"].split()[0]:
        case "upper-bound-only", _:
            assert by_pld <= by_rdp <= published
        case "exact-match", "pld":
            assert by_pld == pytest.approx(published, rel=5e-4)
        case "exact-match", "rdp":
            assert by_rdp == pytest.approx(published, rel=5e-4)
        case "exact-match", "opacus":  # its PRV publishes an upper bound
            assert by_pld == pytest.approx(float(row["exact_pld"]), rel=5e-4)
            assert by_pld <= published
        case use:
            pytest.fail(f"{use} is checked by nothing")
