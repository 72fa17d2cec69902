"""Readmission: hospitals' encounters of patients, by row and by patient."""

from pathlib import Path

import numpy as np
import pytest

import fedprivacy as fp
from simulations.reproduce.experiment import Workplace
from simulations.reproduce.readmission import PAYERS, READMISSION, ROW, Readmission, encounters

DATA = Path(__file__).parents[3] / "shared" / "data"

pytestmark = pytest.mark.skipif(not (DATA / "readmission.csv.gz").exists(), reason="the encounters are not here")


def shard(payer, unit=ROW):
    return Readmission(DATA, unit).shard(fp.ShardSource(partition_id=PAYERS.index(payer), num_partitions=len(PAYERS)))


@pytest.mark.exhaustive
def test_the_encounters_are_those_of_the_publication_and_a_patient_is_trained_or_tested():
    table = encounters(DATA)
    assert len(table.inputs) == 101_766
    assert len(set(table.patients.tolist())) == 71_518
    assert not set(table.patients[table.tested]) & set(table.patients[~table.tested])
    assert 0.18 < table.tested.mean() < 0.22
    assert np.bincount(table.payers)[0] == 40_256, "of no known payer"
    assert (table.inputs.min(), table.inputs.max()) == (0.0, 1.0)


@pytest.mark.exhaustive
def test_a_payer_s_patients_are_fewer_than_its_encounters():
    rows, patients = shard("MC"), shard("MC", fp.Unit("patient", 4))
    assert len(patients) < len(rows)
    assert len(shard("MC", fp.Unit("patient", 1))) == len(patients)
    assert patients.inputs.shape[1:] == (4, rows.inputs.shape[1])
    assert len(patients) < len(patients.by_row()) <= len(rows)


@pytest.mark.soak
@pytest.mark.usefixtures("undrawn")
def test_three_nats_a_patient_cost_little_of_the_auc(tmp_path):
    run = fp.simulate(Readmission(DATA, fp.Unit("patient", 8)), seed=100, out=tmp_path / "run", progress=False)
    assert max(client["epsilon"] for client in run.clients) <= 3.0
    assert run.metrics["auc"] > 0.65


@pytest.mark.soak
@pytest.mark.usefixtures("undrawn")
def test_it_measures_the_rows_that_it_announces(tmp_path, monkeypatch):
    monkeypatch.setattr("simulations.reproduce.readmission.OPEN_ROUNDS", 2)
    recipe = fp.Recipe(clients=len(PAYERS), rounds=2, sampling_rate=0.02, learning_rate=0.5, delta=1e-5)
    monkeypatch.setattr(Readmission, "recipe", recipe)
    measured = dict(READMISSION.measure(0, Workplace(DATA, tmp_path, lambda words: None)))
    assert list(measured) == [row.name for row in READMISSION.rows]
    for row in READMISSION.rows:
        if row.budget is not None and row.line:
            assert measured[row.name].epsilon <= row.budget
