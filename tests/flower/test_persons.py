"""Whole runs by person: what counts records counts persons, and a person costs what a record costs."""

import pytest
import torch

import fedprivacy as fp
from fedprivacy.ledger import Ledger
from tests.flower import runs
from tests.flower.blobs import plan_of
from tests.flower.runs import model_of, run_together
from tests.flower.visits import PATIENTS, M, Visits
from tests.privacy.audited_tasks import engines_believed

pytestmark = pytest.mark.usefixtures("undrawn")


def run(tmp_path, task=None, **settings):
    return fp.simulate(task or Visits(), seed=1, out=tmp_path / "run", progress=False, **settings)


def parameters(run):
    return torch.cat([p.flatten() for p in run.model().parameters()])


def test_a_person_costs_what_a_record_costs(tmp_path):
    done = run(tmp_path, Visits(public=False), local_evaluation=1)
    for client in done.clients:
        assert client["sampling_rate"] == 0.3
        stated = fp.epsilon(
            sampling_rate=0.3, noise_multiplier=client["noise_multiplier"], steps=client["steps"], delta=1e-3
        )
        assert client["epsilon"] == pytest.approx(stated, rel=1e-3)
        assert client["epsilon"] <= 3.0
    assert done.metrics["accuracy"] > 0.7
    assert abs(done.metrics["clients_records"] - 3 * PATIENTS) < PATIENTS, "persons are counted, and not visits"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "scaffold", "augmentation_multiplicity": 3, "clipping": "adaptive"},
        {"clipping": "per-layer", "held_out_evaluation": 1, "optimizer": "adam", "learning_rate": 0.1},
    ],
    ids=str,
)
def test_settings_that_suit_records_suit_persons(settings, tmp_path):
    done = run(tmp_path, **settings)
    assert done.metrics["accuracy"] > 0.7
    assert parameters(done).isfinite().all()


@pytest.mark.exhaustive
def test_rows_that_are_drawn_for_each_step_and_added_up_train_as_well(tmp_path):
    task = Visits(rows_per_step=2, person_gradient="sum")
    done = run(tmp_path, task, local_evaluation=1, augmentation_multiplicity=3)
    assert done.metrics["accuracy"] > 0.7
    assert max(client["epsilon"] for client in done.clients) <= 3.0


@pytest.mark.exhaustive
def test_clients_that_train_together_release_what_each_releases_alone():
    task = Visits(rows_per_step=1)
    plans = [plan_of(task, clients=3, rounds=2, ledger=f"sqlite:///{number}.db") for number in range(2)]
    assert (model_of(runs.run(plans[0])) - model_of(run_together(plans[1]))).abs().max() < 2e-6


@pytest.mark.exhaustive
@pytest.mark.parametrize("used", [{}, {"rows_per_step": 2, "person_gradient": "sum"}], ids=str)
def test_the_baseline_averages_a_person_s_rows_as_the_private_run_does(used, tmp_path):
    """With next to no noise and no clipping that matters, both take the same steps, of the same rows."""
    private = run(tmp_path / "a", Visits(**used), noise_multiplier=0.05, clipping_norm=4.0, epsilon=1e6)
    bare = run(tmp_path / "b", Visits(**used), privacy=False)
    assert torch.allclose(parameters(private), parameters(bare), atol=0.03)
    assert (parameters(bare) - parameters(bare).mean()).abs().max() > 0.3


def test_a_shard_that_is_not_of_the_task_s_unit_is_refused_before_anything_is_charged(tmp_path):
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    for most_rows, unit, words in (
        (None, None, r"its records have up to 1 row, and the task's unit is patient \(at most 4 rows\)"),
        (2, None, r"its records have up to 2 rows, .* most_rows=4"),
        (M, fp.Unit(), r"its records are persons, .* is a row; name it: unit = fp.Unit\('patient', 4\)"),
        (1, fp.Unit(), "its records are persons, and the task's unit is a row"),
    ):
        with pytest.raises(fp.ConfigError, match=words):
            run(tmp_path, Visits(unit=unit, most_rows=most_rows), ledger=ledger)
    assert not Ledger(ledger).dataset_ids()


def test_a_use_of_rows_that_there_is_not_is_refused_before_anything_is_charged(tmp_path):
    for task, words in (
        (Visits(rows_per_step=5), "whose rows_per_step is 5; give a whole number from 1 to 4, the most rows"),
        (Visits(person_gradient="total"), "whose person_gradient is 'total'; choose one of mean, sum"),
        (
            Visits(unit=fp.Unit(), most_rows=None, rows_per_step=2),
            r"whose rows_per_step is 2, and a record is one row; .* in a task unit = fp.Unit\('patient', 8\)",
        ),
    ):
        with pytest.raises(fp.ConfigError, match=words):
            run(tmp_path, task)


@pytest.mark.exhaustive
def test_the_audit_s_gates_pass_and_a_person_s_bound_lies_below_the_claim():
    with engines_believed():
        found = fp.audit_training(Visits(), clients=3, progress=False)
    assert found.passed, found
    own = next(bound for bound in found.lower_bounds if "own-record" in bound.name)
    assert 1.0 < own.epsilon <= found.epsilon_upper
    assert found.summary()["unit"] == "patient (at most 4 rows)"
