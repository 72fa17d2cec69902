"""Table 1, private standardisation and a trained model: one account, two books, one epsilon."""

from __future__ import annotations

import pytest
from flwr.serverapp.strategy import FedAvg
from torch import nn

import fedprivacy as fp
from fedprivacy._support.signing import server_key
from fedprivacy.flower import BudgetSpentError, PrivateStrategy
from fedprivacy.flower.server.ask_clients import ask_clients
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.plans.question_plan import question_plan
from fedprivacy.tasks.standardising import Standardise
from tests.flower.deployment import DeployedGrid, charged, start
from tests.flower.runs import SAMPLING, history_of, stop_once_in_round_two
from tests.flower.wards import BOUNDS, CLIENTS, AsTheyAre, ByConstants, Wards, patients

pytestmark = pytest.mark.usefixtures("undrawn")

TABLE_ONE = fp.ask.table_one({**BOUNDS, "sex": ["f", "m"]}, by={"returned": [0, 1]})
ALLOWED = {"questions": "spread,categories", "question-columns": "age,pressure,sex,returned"}


@pytest.fixture
def given(tmp_path, ledger_url):
    server_key(tmp_path / "server.key")
    return {"ledger": ledger_url, "signing-key": str(tmp_path / "server.key")}


def test_both_books_and_the_calculator_agree_on_what_everything_cost(given, tmp_path):
    asking = question_plan({**given, "spend": 0.4}, Wards())
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


@pytest.mark.exhaustive
def test_a_second_run_pays_for_the_training_alone(given, tmp_path):
    plan = TrainingPlan.of({**given, "spend": 1.0}, Wards())
    grid = DeployedGrid(plan, tmp_path, **ALLOWED)
    start(plan, grid)
    first = grid.guard(plan, "hospital-0").history()
    again = TrainingPlan.of({**given, "spend": 1.0}, Wards())
    result = start(again, grid).result
    second = grid.guard(plan, "hospital-0").history()
    assert {event for event in first if event.sampling_rate == 1.0} == {e for e in second if e.sampling_rate == 1.0}
    assert sum(second.values()) == sum(first.values()) + again.total_steps
    assert result.standardise is not None


@pytest.mark.exhaustive
def test_what_a_plan_tells_is_what_the_run_costs(tmp_path):
    settings = {"task": Wards(), "seed": 1}
    row = fp.plan(**settings).clients[0]
    run = fp.simulate(**settings, out=tmp_path / "run", progress=False)
    assert row["epsilon_question"] == pytest.approx(0.3, rel=0.01)
    assert row["epsilon_before"] == 0.0
    assert run.clients[0]["epsilon"] == pytest.approx(row["epsilon_by_round"][-1], rel=1e-4)
    assert run.history.start.spent["client-0"].epsilon == pytest.approx(row["epsilon_question"], rel=1e-4)


@pytest.mark.exhaustive
def test_the_saved_model_takes_records_as_they_are(tmp_path):
    task = Wards()
    run = fp.simulate(task, seed=1, out=tmp_path / "run", question_spend=1.5, progress=False)
    model = fp.open_run(tmp_path / "run", task).model()
    assert task.evaluate(model)["accuracy"] == pytest.approx(run.metrics["accuracy"])
    assert isinstance(model, nn.Sequential) and isinstance(model[0], Standardise)
    mean, scale = model[0].mean.tolist(), model[0].scale.tolist()
    assert mean == pytest.approx([60, 130], abs=4) and scale == pytest.approx([12, 20], rel=0.4)


@pytest.mark.exhaustive
def test_a_private_scale_is_nearly_as_good_as_the_right_constants_and_better_than_none(tmp_path):
    def accuracy(task):
        runs = [fp.simulate(task, seed=seed, out=tmp_path / f"{type(task)}{seed}", progress=False) for seed in range(3)]
        return sum(run.metrics["accuracy"] for run in runs) / len(runs)

    none, private, constants = map(accuracy, (AsTheyAre(), Wards(), ByConstants()))
    assert none + 0.05 < private
    assert constants - 0.03 < private


@pytest.mark.exhaustive
def test_a_run_that_was_stopped_goes_on_with_the_answer_that_was_paid_for(tmp_path, monkeypatch):
    whole = fp.simulate(Wards(), seed=1, out="whole", progress=False)
    stop_once_in_round_two(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        fp.simulate(Wards(), seed=1, out="stopped", progress=False)
    resumed = fp.simulate(Wards(), resume="stopped", progress=False)
    assert [row["accuracy"] for row in resumed.rounds] == [row["accuracy"] for row in whole.rounds]
    history = history_of("sqlite:///stopped/ledger.db", "client-0", "wards")
    assert [steps for event, steps in history.items() if event.sampling_rate == 1.0] == [1]


class PrivateSizes(Wards):
    """The same with private shard sizes, which differ."""

    shard_sizes_public = False
    nominal_shard_size = 100

    def _part(self, source):
        self.records = 100 + 100 * super()._part(source)
        return super()._part(source)

    def table(self, source):
        part = self._part(source)
        return fp.Table(patients(part, self.records))

    def shard(self, source):
        part = self._part(source)
        return self.examples(patients(part, self.records))


@pytest.mark.exhaustive
def test_who_answers_weighs_as_much_as_the_answer_says_where_sizes_are_private(given, tmp_path):
    plan = TrainingPlan.of({**given, "question-spend": 1.5}, PrivateSizes())
    grid, weights = DeployedGrid(plan, tmp_path, **ALLOWED), {}

    class Weighed(FedAvg):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            sizes = [reply.content["metrics"]["num-examples"] for reply in replies]
            weights.update(dict(zip(sorted(grid.names.values()), sizes, strict=True)))
            return super().aggregate_train(server_round, replies)

    PrivateStrategy(Weighed(**SAMPLING), plan).start(grid)
    for name, weight in weights.items():
        assert weight != 100 and abs(weight - 100 - 100 * int(name[-1])) < 60


@pytest.mark.exhaustive
@pytest.mark.parametrize("spend", [2.0, 2.7])  # after the latter there is nothing left for the question, either
def test_no_question_is_paid_for_that_no_training_could_follow(spend, tmp_path):
    ledger = tmp_path / "ledger.db"
    fp.simulate(AsTheyAre(), seed=1, out=tmp_path / "first", ledger=ledger, spend=spend, progress=False)
    before = Ledger(f"sqlite:///{ledger}").accounts(["wards/client-0"])
    settings = {"noise_multiplier": 0.6, "epsilon": 3.0, "seed": 1, "out": tmp_path / "second", "ledger": ledger}
    with pytest.raises(BudgetSpentError, match="Nobody was asked"):
        fp.simulate(Wards(), **settings, progress=False)
    assert Ledger(f"sqlite:///{ledger}").accounts(["wards/client-0"]) == before
