"""Fed-TCGA-BRCA: FLamby's patients in FLamby's split, ranked better than at random within a small budget."""

from pathlib import Path

import pytest
import torch

import fedprivacy as fp
from simulations.reproduce.experiment import Workplace
from simulations.reproduce.tcga_brca import METRICS, REGIONS, TCGA_BRCA, TcgaBrca, patients

DATA = Path(__file__).parents[3] / "shared" / "data"

pytestmark = pytest.mark.skipif(
    not all((DATA / file).exists() for file in TCGA_BRCA.data), reason="FLamby's files are not here"
)


def test_the_regions_are_those_of_flamby_and_covariates_are_moved_by_public_constants_alone():
    parts = patients(DATA)
    assert [len(parts[f"train_{region}"]) for region in range(6)] == [248, 156, 164, 129, 129, 40]
    assert [len(parts[f"test_{region}"]) for region in range(6)] == [63, 40, 42, 33, 33, 11]
    deaths = sum(part.targets[:, 0].sum().item() for part in parts.values())
    assert deaths == 151 and all(part.inputs.shape[1] == 39 for part in parts.values())
    inputs = torch.cat([part.inputs for part in parts.values()])
    assert set(inputs[:, 1:].unique().tolist()) == {0.0, 1.0}
    assert inputs[:, 0].abs().max() < 3.0 and abs(inputs[:, 0].mean().item()) > 1e-3


@pytest.mark.soak
@pytest.mark.usefixtures("undrawn")
def test_three_nats_rank_patients_better_than_flambys_average_without_privacy(tmp_path):
    run = fp.simulate(TcgaBrca(DATA), seed=100, out=tmp_path / "run", progress=False)
    assert max(client["epsilon"] for client in run.clients) <= 3.0 and len(run.clients) == len(REGIONS)
    assert set(METRICS) <= set(run.metrics)
    assert run.metrics["weakest region"] <= run.metrics["mean of regions"] and run.metrics["c-index"] >= 0.735


@pytest.mark.exhaustive
@pytest.mark.usefixtures("undrawn")
def test_it_measures_the_rows_that_it_announces(tmp_path, monkeypatch):
    monkeypatch.setattr("simulations.reproduce.tcga_brca.OPEN_ROUNDS", 2)
    monkeypatch.setattr(TcgaBrca, "recipe", fp.Recipe(clients=6, rounds=2, delta=1e-3))
    measured = dict(TCGA_BRCA.measure(0, Workplace(DATA, tmp_path, lambda words: None)))
    assert list(measured) == [row.name for row in TCGA_BRCA.rows]
    assert measured["no privacy"].epsilon is None
    assert all(measured[f"epsilon {epsilon}"].epsilon <= epsilon for epsilon in (1, 3, 8))
