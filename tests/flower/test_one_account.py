"""Table 1, private standardisation and a trained model: one account, two books, one epsilon."""

from __future__ import annotations

import pytest
from torch import nn

import fedprivacy as fp
from fedprivacy._support.signing import server_key
from fedprivacy.flower import BudgetSpentError
from fedprivacy.flower.server.ask_clients import ask_clients
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.standardise import Standardise
from fedprivacy.runs.plans.plan import QuestionPlan, TrainingPlan
from tests.flower.deployment import DeployedGrid, charged, start
from tests.flower.wards import BOUNDS, CLIENTS, AsTheyAre, ByConstants, Wards

pytestmark = pytest.mark.usefixtures("undrawn")

TABLE_ONE = fp.ask.table_one({**BOUNDS, "sex": ["f", "m"]}, by={"returned": [0, 1]})
ALLOWED = {"questions": "spread,categories", "question-columns": "age,pressure,sex,returned"}


@pytest.fixture
def given(tmp_path, ledger_url):
    server_key(tmp_path / "server.key")
    return {"ledger": ledger_url, "signing-key": str(tmp_path / "server.key")}


def test_both_books_and_the_calculator_agree_on_what_everything_cost(given, tmp_path):
    asking = QuestionPlan.of({**given, "spend": 0.4}, Wards())
    grid = DeployedGrid(asking, tmp_path, **ALLOWED)
    asked = ask_clients(grid, asking, Questionnaire(TABLE_ONE))
    plan = TrainingPlan.of(given, Wards())
    last = start(plan, grid).records[-1]
    ledger = Ledger(given["ledger"])
    for name in grid.names.values():
        history = charged(plan, grid, name)
        questions = {event: count for event, count in history.items() if event.sampling_rate == 1.0}
        (training,) = history.keys() - questions.keys()
        assert sum(questions.values()) == 2 and asked.event in questions
        assert history[training] == 12
        spent = fp.epsilon(
            sampling_rate=training.sampling_rate,
            noise_multiplier=training.noise_multiplier,
            steps=history[training],
            delta=1e-4,
            relation=training.relation,
            past=questions,
        )
        assert last.spent[name].epsilon == pytest.approx(spent, rel=1e-4)
        assert 2.0 < spent <= 3.0
    assert {len(ledger.asked(f"wards/{name}")) for name in grid.names.values()} == {len(TABLE_ONE) + 1}
    assert len(verify_ledger(ledger).replay.charges) == CLIENTS * (2 + plan.config.rounds)
    assert last.metrics["accuracy"] > 0.8


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A simulation to its end."""
    return simulated(tmp_path_factory.mktemp("whole") / "run")


def simulated(out, task=None, seed=1, **settings):
    return fp.simulate(task or Wards(), seed=seed, out=out, progress=False, **settings)


@pytest.mark.exhaustive
def test_the_saved_model_takes_records_as_they_are_at_a_scale_nearly_as_good_as_the_right_constants(whole, tmp_path):
    model = fp.open_run(whole.folder, Wards()).model()
    assert Wards().evaluate(model)["accuracy"] == pytest.approx(whole.metrics["accuracy"])
    assert isinstance(model, nn.Sequential) and isinstance(model[0], Standardise)
    assert model[0].mean.tolist() == pytest.approx([60, 130], abs=8)

    def accuracy(task, seeds=(0, 1, 2)):
        runs = [simulated(tmp_path / f"{type(task).__name__}-{seed}", task, seed) for seed in seeds]
        return sum(run.metrics["accuracy"] for run in runs) / len(runs)

    assert accuracy(AsTheyAre(), [1]) + 0.05 < whole.metrics["accuracy"]
    assert accuracy(ByConstants()) - 0.03 < accuracy(Wards())


@pytest.mark.exhaustive
def test_no_question_is_paid_for_that_no_training_could_follow(tmp_path):
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    simulated(tmp_path / "first", AsTheyAre(), ledger=ledger, spend=2.0)
    before = Ledger(ledger).accounts(["wards/client-0"])
    with pytest.raises(BudgetSpentError, match="Nobody was asked"):
        simulated(tmp_path / "second", ledger=ledger, noise_multiplier=0.6, epsilon=3.0)
    assert Ledger(ledger).accounts(["wards/client-0"]) == before
