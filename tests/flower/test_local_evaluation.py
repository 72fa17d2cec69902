"""Local evaluation in whole runs: charged as a step, estimated well, and refused where it cannot be."""

from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from fedprivacy.accounting import pld
from fedprivacy.flower.server.one_round import GrantOutcome, evaluations
from fedprivacy.flower.wire.messages import Receipt, RefusalCode
from fedprivacy.mechanisms.keystream import Keystream, Purpose
from fedprivacy.participation import TOO_LATE
from fedprivacy.runs.records.folder import read_history
from fedprivacy.simulation.simulate import simulate
from fedprivacy.tasks import Score, ShardSource
from fedprivacy.tasks.loader import open_task
from fedprivacy.tasks.task import is_right
from fedprivacy.training.evaluation import estimate_scores
from tests.flower.asked import code, spent, train
from tests.flower.blobs import A_RECEIPT, BLOBS, Blobs, plan_of
from tests.flower.runs import run
from tests.runs.rounds import rounds_of


def true_scores(arrays, clients=4):
    """Records, accuracy and loss of all clients' records under a model."""
    task = Blobs()
    model = task.model()
    model.load_state_dict(arrays.to_torch_state_dict())
    shards = [task.shard(ShardSource(partition_id=n, num_partitions=clients)) for n in range(clients)]
    inputs, targets = (torch.cat([getattr(s, name) for s in shards]) for name in ("inputs", "targets"))
    outputs = model(inputs)
    return len(targets), is_right(outputs, targets).double().mean(), task.loss(outputs, targets).clamp(max=5).mean()


def test_every_so_many_rounds_the_clients_score_the_model_that_the_round_began_with_for_a_step():
    settings = {"noise_multiplier": 0.1, "sampling_rate": 1.0}
    finished = run(plan_of(BLOBS, rounds=6, local_evaluation=3, ledger="sqlite:///one.db", **settings))
    second = run(plan_of(BLOBS, rounds=2, ledger="sqlite:///other.db", **settings)).result.arrays
    third, sixth = finished.records[2], finished.records[5]
    assert [bool(record.evaluations) for record in finished.records] == [False, False, True, False, False, True]
    for name, true, near in zip(("records", "accuracy", "loss"), true_scores(second), (2, 0.01, 0.05), strict=True):
        assert third.metrics[f"clients_{name}"] == pytest.approx(float(true), abs=near)
    assert set(sixth.evaluations) == {f"client-{number}" for number in range(4)}
    for number in range(4):
        told = sixth.evaluations[f"client-{number}"]
        assert told.records == pytest.approx(30 + number, abs=1.5)
        assert 0 < told.deviations["accuracy"] < 0.05
    assert "clients_accuracy" not in finished.records[4].metrics
    assert [record.spent["client-0"].steps for record in finished.records] == [2, 4, 7, 9, 11, 14]
    assert finished.result.evaluate_metrics_clientapp[3]["clients_loss"] == third.metrics["clients_loss"]


@pytest.mark.exhaustive
def test_it_is_in_the_folder_and_comes_back(tmp_path):
    settings = {"rounds": 2, "noise_multiplier": 1.0, "clients": 2, "local_evaluation": 2, "seed": 3}
    result = simulate(Blobs(), out=tmp_path / "run", **settings)
    report = (tmp_path / "run" / "report.html").read_text()
    first, second = read_history(tmp_path / "run").rounds
    assert not first.evaluations and set(second.evaluations) == {"client-0", "client-1"}
    assert pld.epsilon(second.most_charged, 1e-3) == pytest.approx(second.max_epsilon, rel=1e-4)
    assert sum(second.most_charged.values()) == second.spent["client-0"].steps
    assert "A person there with 10 records" in report
    line = rounds_of(tmp_path / "run")[1]
    assert line["evaluations"]["client-1"]["means"] == second.evaluations["client-1"].means
    assert "On the clients" in report and f"{second.evaluations['client-1'].means['loss']:.3g} ±" in report
    assert result.metrics["clients_records"] == second.metrics["clients_records"]
    assert "evaluations" not in rounds_of(tmp_path / "run")[0]


class Unscored(Blobs):
    name = dataset = "unscored"

    def __init__(self, scores):
        self._scores = scores

    def scores(self):
        return self._scores


def broken(outputs, targets):
    return outputs @ targets


@pytest.mark.parametrize(
    ("scores", "complaint"),
    [
        ({"loss": broken}, r"scores\(\) must return fedprivacy.Score"),
        ({"mean": Score(lambda outputs, targets: outputs.mean())}, r"score 'mean' returns \[\] for 2 records"),
        ({f"{n}": Score(is_right) for n in range(256)}, "returns 256 scores; return 255 at most"),
        ({"records": Score(lambda outputs, targets: targets)}, "a score is called 'records'"),
        ({"accuracy": Score(lambda outputs, targets: is_right(outputs[:, :1], targets))}, "accuracy is of classes"),
        ({"rank": Score(lambda outputs, targets: targets.argsort())}, "score 'rank' of a record is another one"),
        ({"random": Score(lambda outputs, targets: torch.rand(len(targets)))}, "score 'random' of a record is another"),
    ],
    ids=["a function", "a mean", "too many", "its name", "not of classes", "of others", "random"],
)
def test_scores_that_cannot_be_taken_are_named_before_anything_is_spent(tmp_path, scores, complaint):
    with pytest.raises(ValueError, match=complaint):
        simulate(Unscored(scores), out=tmp_path / "run", rounds=2, noise_multiplier=1.0, local_evaluation=1, clients=2)
    assert not (tmp_path / "run").exists()


def test_an_evaluation_is_charged_as_one_of_the_steps(node):
    reply = train(node, steps=3, local_evaluation=True)
    receipt = Receipt.of(reply)
    assert spent(node) == 3 == receipt.steps
    assert len(receipt.noisy_sums) == 3
    assert not Receipt.of(train(node, round=2, steps=3)).noisy_sums


def test_an_evaluation_shares_neither_sample_nor_noise_with_a_step_of_its_round(node, monkeypatch):
    """Whoever knows a step's noise knows that of whatever was drawn at the same place."""
    drawn, subkey = defaultdict(list), Keystream.subkey

    def noted(keystream, purpose, position):
        drawn[purpose].append((position.round, position.step))
        return subkey(keystream, purpose, position)

    monkeypatch.setattr(Keystream, "subkey", noted)
    train(node, round=5, steps=3, local_evaluation=True)
    assert {purpose: sorted(places) for purpose, places in drawn.items()} == {
        Purpose.SAMPLING: [(5, 1), (5, 2), (5, 3)],
        Purpose.NOISE: [(5, 1), (5, 2), (5, 3)],
    }


def test_a_grant_for_scores_that_cannot_be_taken_is_refused_before_it_is_charged(node):
    task = Unscored({"broken": Score(broken)})
    refused = code(train(node, task=task, steps=3, local_evaluation=True))
    assert refused is RefusalCode.GRANT_INVALID and refused.before_any_record
    assert spent(node) == 0
    assert Receipt.of(train(node, task=task, steps=2)).steps == 2  # it trains, though


def test_estimates_have_the_same_bits_in_whatever_order_clients_answer():
    """Whoever evaluates another number of scores, or comes too late, counts in none."""

    def told(order):
        receipts = {n: replace(A_RECEIPT, evaluation=f"[{0.1 * 3**n}, 0.7, 0.3]") for n in order}
        verdicts = {f"client-{n}": GrantOutcome(receipt=receipt) for n, receipt in receipts.items()}
        verdicts["client-8"] = GrantOutcome(receipt=replace(A_RECEIPT, evaluation="[9.0, 0.7]"))
        late = replace(A_RECEIPT, evaluation="[9.0, 0.7, 0.3]")
        verdicts["client-9"] = GrantOutcome(receipt=late, failure=TOO_LATE)
        released = evaluations(verdicts, open_task(task=Blobs()).scores())
        return list(released), estimate_scores(open_task(task=Blobs()).scores(), list(released.values()))

    assert told(range(4)) == told([2, 3, 0, 1])
    assert told(range(4))[0] == [f"client-{n}" for n in range(4)]
