"""Asynchronous rounds of whole runs: the model is FedBuff's, and every training is charged once, come what may."""

import gc
import shutil
from collections import Counter
from contextlib import contextmanager
from heapq import heapify, heappop, heappush

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg, FedAvgM, FedMedian

import fedprivacy as fp
from fedprivacy.accounting import FILTERS
from fedprivacy.audit.gates.claimed_epsilon import check_run
from fedprivacy.commands.outcome import outcome_text
from fedprivacy.flower import InProcessGrid, PrivateStrategy, private_client
from fedprivacy.flower.server.checkpoint import load_checkpoint
from fedprivacy.flower.server.rounds import RunRounds
from fedprivacy.flower.simulated.engine import check_rounds
from fedprivacy.flower.simulated.populations import Population
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.runs.placement import HERE
from fedprivacy.runs.records.folder import RunWriter, read_config, read_lines
from fedprivacy.runs.settings.configuration import ConfigError, Engine
from fedprivacy.simulation.simulate import simulate
from fedprivacy.training import cohort
from fedprivacy.values.attempt import Attempt
from tests.flower.blobs import BLOBS, plan_of
from tests.flower.runs import SAMPLING, model_of, order_of, run_together
from tests.flower.wards import Wards
from tests.runs.rounds import falsify, rounds_of

BUFFERED = {"concurrency": 4, "buffer_size": 2, "speeds": "lognormal:1", "clients": 9, "rounds": 9}
NOISE = {"noise_multiplier": 2.0, "epsilon": 50.0}


def plan(name="run", **settings):
    return plan_of(BLOBS, **NOISE | BUFFERED | {"ledger": f"sqlite:///{name}.db"} | settings)


def trained(plan, client, version, model):
    """Where local DP-SGD takes one client from a model, flat: by the cohort's own code, which has tests of its own."""
    event, records = plan.event(), 30 + client
    asked = {"expected_batch_size": event.sampling_rate * records, "weight": float(records), "event": event}
    order = order_of(client, steps=plan.config.local_steps, **asked)
    weight, bias = model.float().split([4, 2])
    arrays = ArrayRecord({"weight": Array(weight.reshape(2, 2).numpy()), "bias": Array(bias.numpy())})
    update = Population(plan.task, plan.config).train([order], arrays, Attempt("any", version + 1), 0, 0.0)
    return update.mean().double()


def fedbuff(plan, seconds, size, steps):
    """Nguyen et al. 2022, algorithm 1, in its own words, where everybody trains who has not just answered."""
    model, version, buffer = torch.zeros(6, dtype=torch.float64), 0, []
    training = [(each * plan.config.local_steps, client, version, model) for client, each in enumerate(seconds)]
    heapify(training)
    idle, models = [], []
    while len(models) < steps:
        now, client, began, start = heappop(training)
        weight = 30 + client
        difference = trained(plan, client, began, start) - start
        buffer.append((weight, weight * difference / (1 + version - began) ** 0.5))
        idle.append(client)
        if len(buffer) == size:
            total = sum(weight for weight, _ in buffer)
            model = (model + sum(difference for _, difference in buffer) / total).float().double()
            models.append(model)
            version, buffer = version + 1, []
            for each in idle:
                heappush(training, (now + seconds[each] * plan.config.local_steps, each, version, model))
            idle = []
    return models


def test_the_model_is_that_of_fedbuff(tmp_path):
    seconds = [1.0, 1.7, 2.9, 4.3, 7.1]  # no two are ever done at the same moment
    (tmp_path / "speeds.csv").write_text("client,seconds\n" + "".join(f"{n},{s}\n" for n, s in enumerate(seconds)))
    settings = plan(clients=5, concurrency=5, buffer_size=3, speeds=str(tmp_path / "speeds.csv"), rounds=10)
    done = run_together(settings)
    assert max(record.buffered.max_staleness for record in done.records) >= 2
    assert (model_of(done) - fedbuff(settings, seconds, 3, 10)[-1]).abs().max() < 1e-5


def test_every_training_is_charged_once_when_it_begins_and_epsilon_is_what_its_client_s_cost():
    settings = plan(drop_out=0.2, rounds=30)
    done = run_together(settings)
    begun = Counter()
    for record in done.records:
        begun.update(record.buffered.dispatched)
        assert {client: spent.rounds for client, spent in record.spent.items()} == {c: begun[c] for c in record.spent}
        assert {c: spent.steps for c, spent in record.spent.items()} == {c: 2 * begun[c] for c in record.spent}
    answered = Counter(client for record in done.records for client in (*record.participants, *record.failures))
    last = done.records[-1]
    assert sum((begun - answered).values()) == last.buffered.training > 0
    assert any("dropped-out" in record.failures.values() for record in done.records)
    for client, spent in last.spent.items():
        mechanism = {"sampling_rate": 0.5, "noise_multiplier": 2.0, "relation": "zero-out"}
        told = fp.epsilon(**mechanism, steps=2 * begun[client], delta=spent.delta) if begun[client] else 0.0
        assert spent.epsilon == pytest.approx(told, rel=1e-6)
    replayed = verify_ledger(Ledger(settings.config.ledger)).replay.charges
    states = Counter(charge.state for charge in replayed.values())
    committed = sum(len(record.participants) for record in done.records)
    assert states == {"committed": committed, "reserved": sum(begun.values()) - committed}
    left = {client for client in begun if begun[client] > sum(client in record.participants for record in done.records)}
    assert set(last.unreconciled) == left


def test_charges_come_before_training(monkeypatch):
    def crash(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Population, "train", crash)
    settings = plan()
    with pytest.raises(KeyboardInterrupt):
        run_together(settings)
    charged = Ledger(settings.config.ledger).accounts([f"blobs/client-{n}" for n in range(9)])
    assert len(charged) >= 4 and {account.rounds for account in charged.values()} == {1}


@pytest.mark.exhaustive
def test_no_two_trainings_share_a_draw_of_noise(monkeypatch):
    """Of 40 rounds in which fast clients answer again and again, some from models that differ by little or nothing."""
    drawn, release = [], cohort.release_by_row

    def noting(mechanisms, totals, keystreams, position):
        drawn.extend((each.key, each.stream, position) for each in keystreams)
        return release(mechanisms, totals, keystreams, position)

    monkeypatch.setattr(cohort, "release_by_row", noting)
    done = run_together(plan(rounds=40, concurrency=3, buffer_size=3))
    assert len(drawn) == sum(spent.steps for spent in done.records[-1].spent.values())
    assert len(set(drawn)) == len(drawn)


@pytest.mark.exhaustive
def test_a_run_ends_when_budgets_are_spent_and_everybody_who_trained_has_answered():
    done = run_together(plan(epsilon=1.2, rounds=60))
    assert done.result.stopped_because == "no client has budget left"
    last = done.records[-1]
    assert len(last.exhausted) == 9 and last.buffered.training == 0 and not last.unreconciled
    assert all(spent.epsilon <= 1.2 for spent in last.spent.values())
    assert not last.buffered.dispatched and last.participants  # the last ones cost nothing any more


def begin(folder, **settings):
    folder.mkdir()
    settings = plan(str(folder), out=str(folder), **settings)
    strategy = FedAvgM(**SAMPLING, server_momentum=0.5)
    return run_together(settings, strategy, checkpoints=folder, observers=[RunWriter(folder, settings)])


@contextmanager
def stopped_in(where, number):
    """Let a run be stopped at this step of a round."""
    step = getattr(RunRounds, where)

    def stopping(self, first, *rest):
        opened = first if where != "average" else first.opened
        if opened.attempt.round == number:
            raise KeyboardInterrupt
        return step(self, first, *rest)

    with pytest.MonkeyPatch.context() as monkeypatch, pytest.raises(KeyboardInterrupt):
        monkeypatch.setattr(RunRounds, where, stopping)
        yield


def go_on(folder, **settings):
    settings, stopped = plan(str(folder), out=str(folder), **settings), load_checkpoint(folder)
    strategy, writer = FedAvgM(**SAMPLING, server_momentum=0.5), RunWriter(folder, settings, stopped.round)
    return run_together(settings, strategy, checkpoints=folder, resume=stopped, observers=[writer])


@pytest.mark.parametrize(
    ("where", "settings"),
    [
        ("send", {"drop_out": 0.2}),
        pytest.param("settle", {"clipping": "adaptive"}, marks=pytest.mark.exhaustive),
        pytest.param("average", {"epsilon": 1.0, "rounds": 40}, marks=pytest.mark.exhaustive),
    ],
    ids=["drop_out", "adaptive", "ending"],
)
def test_a_run_that_was_stopped_in_a_round_ends_with_the_same_bytes(where, settings, tmp_path):
    """It was charged and trained, and all that was in memory is lost: who trained meanwhile is in the checkpoint."""
    settings = {"ema_decay": 0.5, "speeds": "lognormal:1:5000"} | settings
    whole = begin(tmp_path / "whole", **settings)
    with stopped_in(where, len(whole.records) - 1):
        begin(tmp_path / "stopped", **settings)
    gc.collect()  # since Python 3.13 what was stopped is in a circle, and its lock with it
    assert load_checkpoint(tmp_path / "stopped").underway.training
    resumed = go_on(tmp_path / "stopped", **settings)
    assert torch.equal(model_of(resumed), model_of(whole))
    assert read_lines(tmp_path / "stopped") == read_lines(tmp_path / "whole")


def test_without_a_seed_what_was_lost_is_trained_and_charged_anew_and_what_is_kept_is_not(tmp_path):
    """Twice: who was asked anew in round 3 still trains when the run is stopped again, and answers in round 5."""
    (tmp_path / "speeds.csv").write_text("client,seconds\n0,1.0\n1,1.7\n")
    two = {"clients": 2, "concurrency": 2, "buffer_size": 1, "rounds": 6, "speeds": str(tmp_path / "speeds.csv")}
    with stopped_in("average", 3):
        begin(tmp_path / "stopped", seed=None, **two)
    with stopped_in("average", 4):
        go_on(tmp_path / "stopped", seed=None, **two)
    resumed = go_on(tmp_path / "stopped", seed=None, **two)
    charged = verify_ledger(Ledger(resumed.plan.config.ledger)).replay.charges
    states = {(key.round, key.attempt, key.dataset_id[-1]): charge.state for key, charge in charged.items()}
    anew = {(3, 2, "1"): "committed", (4, 2, "0"): "committed"}
    assert {key: state for key, state in states.items() if key[1] > 1} == anew
    assert states[3, 1, "1"] == "reserved" and states[2, 1, "0"] == "committed"


def test_a_client_with_less_left_than_a_round_takes_the_time_of_what_is_left(tmp_path):
    (tmp_path / "speeds.csv").write_text("client,seconds\n0,10.0\n1,10.0\n")
    settings = plan(clients=2, concurrency=2, buffer_size=1, rounds=1, speeds=str(tmp_path / "speeds.csv"))
    event, names = settings.event(), [f"blobs/client-{n}" for n in range(2)]
    run_together(settings, run_id="first")
    left = FILTERS[settings.config.allowance().filter](settings.config.budget).quota({}, event)
    Ledger(settings.config.ledger).reserve(Attempt("first", 9), event, {names[1]: left - 3}, lambda *_: left)
    (record,) = run_together(settings).records
    assert record.participants == ("client-1",) and record.spent["client-1"].steps_left == 0
    assert record.seconds == 10.0


def test_a_client_that_fails_has_an_empty_place_in_the_buffer_and_stays_charged(monkeypatch):
    settings = plan(rounds=20, concurrency=9, buffer_size=3)
    population = Population(settings.task, settings.config)
    enrolments, client = list(population.enrolments()), population._client
    monkeypatch.setattr(population, "enrolments", lambda: enrolments)
    monkeypatch.setattr(population, "_client", lambda part: 1 / 0 if part == 3 else client(part))
    done = run_together(settings, population=population)
    failed = [record for record in done.records if record.failures]
    assert failed and all(record.failures == {"client-3": "client-failed"} for record in failed)
    assert all(len(record.participants) == 2 for record in failed)
    last = done.records[-1]
    assert last.spent["client-3"].rounds >= len(failed) and "client-3" in last.unreconciled


@pytest.fixture(scope="module")
def cancer(tmp_path_factory):
    """A run in a folder of its own."""
    settings = {"clients": 5, "rounds": 4, "noise_multiplier": 4.0, "concurrency": 4, "buffer_size": 2}
    out = tmp_path_factory.mktemp("cancer") / "run"
    return simulate("cancer", speeds="lognormal:1:60", progress=False, out=out, **settings)


@pytest.mark.exhaustive
def test_the_results_say_how_stale_updates_were_and_who_still_trained(cancer):
    done, out = cancer, cancer.folder
    lines = [each["buffered"] for each in rounds_of(out)]
    for row, line, record in zip(done.rounds, lines, done.history.rounds, strict=True):
        assert row["mean_staleness"] == line["mean_staleness"] == record.buffered.mean_staleness
        assert (row["max_staleness"], row["training"]) == (line["max_staleness"], line["training"])
        assert tuple(line["dispatched"]) == record.buffered.dispatched
    assert max(row["max_staleness"] for row in done.rounds) > 0
    assert done.rounds[-1]["training"] == 3
    told = outcome_text(done.history, read_config(out), {}, HERE)
    assert "3 clients were still training when the run ended: charged, and in no model." in told
    assert "<dd>3</dd><dt>clients were still training at the end: charged, and in no" in done.report.read_text()
    assert check_run(out).reasons == ()


@pytest.mark.exhaustive
def test_an_audit_notices_a_training_that_was_not_charged_and_an_update_that_nobody_was_asked_for(cancer, tmp_path):
    out = shutil.copytree(cancer.folder, tmp_path / "copy")
    lines = rounds_of(out)
    more = sorted({f"client-{n}" for n in range(5)} - set(lines[1]["buffered"]["dispatched"]))[0]
    answered = lines[0]["participants"][0]
    lines[1]["buffered"]["dispatched"].append(more)
    lines[0]["buffered"]["dispatched"].remove(answered)
    falsify(out, lines)
    reasons = check_run(out).reasons
    assert f"{more} took part in round 2 with 2 steps, and was charged 0." in reasons
    assert f"{answered} answered in round 1, and was not asked." in reasons


def test_where_clients_are_not_simulated_in_this_process_nothing_is_spent():
    settings = plan()
    strategy = PrivateStrategy(FedAvg(**SAMPLING), settings)
    grid = InProcessGrid(private_client(settings.task, settings.config), 9, {})
    with pytest.raises(ConfigError, match="leave both open here"):
        strategy.start(grid)
    with pytest.raises(ConfigError, match="leave both open here"):
        strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
    with pytest.raises(ConfigError, match=r"buffer-size is 2, .* choose engine in-process"):
        check_rounds(settings.config, Engine.RAY)
    assert not Ledger.exists(settings.config.ledger)


def test_a_strategy_that_may_look_at_each_update_and_a_task_that_standardises_are_refused():
    class Mine(FedAvg):
        pass

    for strategy in (FedMedian(**SAMPLING), Mine(**SAMPLING)):
        with pytest.raises(ConfigError, match=f"the strategy is {type(strategy).__name__}, which may look at each"):
            PrivateStrategy(strategy, plan())
    with pytest.raises(ConfigError, match="task wards standardises by a question, which asynchronous rounds do not"):
        plan_of(Wards(), **BUFFERED)


def test_a_strategy_that_samples_by_itself_is_refused_before_anybody_is_charged():
    settings = plan()
    with pytest.raises(ValueError, match=r"asks 2 of \d clients; in asynchronous rounds"):
        run_together(settings, strategy=FedAvg(fraction_train=0.5, **SAMPLING))
    assert not Ledger(settings.config.ledger).accounts([f"blobs/client-{n}" for n in range(9)])
