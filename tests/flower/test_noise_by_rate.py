"""A batch size and a budget for all: each client adds the least noise for its own sampling rate and its own past."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

import fedprivacy as fp
from fedprivacy.accounting import filters, pld
from fedprivacy.audit.gates.claimed_epsilon import check_run
from fedprivacy.audit.owner_host import Node
from fedprivacy.commands.run_tables import plan_table
from fedprivacy.flower.server.checkpoint import load_checkpoint
from fedprivacy.ledger import Ledger
from fedprivacy.runs.plans.client_groups import client_groups
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.prospect import Prospect, spending
from fedprivacy.runs.records.folder import RunWriter, read_history
from fedprivacy.runs.records.store import RunStore
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.trackers.tracker import settings as tracked
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import PoissonSampledGaussian
from fedprivacy.values.rounds import Stage
from tests.audit.gates.host import home_of
from tests.flower.blobs import Blobs, Uneven, plan_of
from tests.flower.deployment import DeployedGrid, deployed_plan, start
from tests.flower.runs import history_of, run

SIZES = Uneven.sizes

TIGHT = 0.999
"""Share of a budget that a calibrated noise multiplier spends at least."""


class Private(Uneven):
    """The same, and nobody knows how large they are."""

    shard_sizes_public = False
    nominal_shard_size = 100


def uneven(task=None, **settings):
    return plan_of(task or Uneven(), **{"batch_size": 12.0, "epsilon": 3.0, "filter": "fixed-mechanism"} | settings)


def test_every_client_spends_its_whole_budget_and_no_more_and_the_smaller_its_shard_the_more_noise_it_adds():
    """Catches: the noise, or the rate, of another client; one noise for all."""
    plan = uneven(ledger="sqlite:///ledger.db")
    done = run(plan)
    spent = done.records[-1].spent
    for number, size in enumerate(SIZES):
        client = spent[f"client-{number}"]
        event = PoissonSampledGaussian(12.0 / size, client.noise_multiplier, plan.relation)
        assert history_of(plan.config.ledger, client.client_id) == {event: 6}
        assert TIGHT * 3.0 <= pld.epsilon({event: 6}, 1e-3) <= 3.0
        assert client.epsilon == pytest.approx(pld.epsilon({event: 6}, 1e-3), rel=1e-4) and client.epsilon <= 3.0
        least = fp.noise_multiplier(epsilon=3.0, delta=1e-3, sampling_rate=12.0 / size, steps=6, relation=plan.relation)
        assert client.noise_multiplier == least
        assert client.steps_left == 0
    noises = [spent[f"client-{number}"].noise_multiplier for number in range(4)]
    assert noises == sorted(noises, reverse=True) and noises[0] > 2 * noises[-1]


def test_a_batch_larger_than_the_shard_is_the_whole_shard():
    assert plan_of(Blobs(), batch_size=1_000.0, noise_multiplier=2.0).event(30).sampling_rate == 1.0


def test_private_sizes_make_one_rate_and_one_noise_and_public_ones_none_of_the_run():
    plan = uneven(Private())
    noise = fp.noise_multiplier(epsilon=3.0, delta=1e-3, sampling_rate=0.12, steps=6)
    assert {plan.event(size) for size in SIZES} == {PoissonSampledGaussian(0.12, noise, plan.relation)}
    assert plan.noise.of() == plan.noise.shared == noise
    plan = uneven()
    assert plan.noise.shared is None and plan.noise.bounds(plan.simulated_clients) is None
    with pytest.raises(ValueError, match="each client has the least noise for its own sampling rate"):
        _ = plan.noise.of()


@pytest.mark.exhaustive
def test_who_has_spent_before_adds_the_least_noise_after_that():
    url = "sqlite:///ledger.db"
    settings = {"ledger": url, "filter": "adaptive", "epsilon": 12.0, "spend": 1.0}
    run(uneven(**settings))
    Ledger(url).open_run("earlier", "blobs", "4 clients: 4 blobs")
    earlier = PoissonSampledGaussian(0.5, 4.0, uneven().relation)
    Ledger(url).reserve(Attempt("earlier", 1), earlier, {"blobs/client-2": 3}, lambda *_: 3)
    before = {f"client-{n}": history_of(url, f"client-{n}") for n in range(4)}
    second = uneven(**settings)
    spent = run(second).records[-1].spent
    for number, size in enumerate(SIZES):
        client = spent[f"client-{number}"]
        past = before[client.client_id]
        least = second.limit(past).noise_multiplier(12.0 / size, 6, second.relation)
        event = PoissonSampledGaussian(12.0 / size, least, second.relation)
        assert history_of(url, client.client_id) == {**past, event: 6}
        assert client.noise_multiplier == least
        assert pld.epsilon({**past, event: 6}, 1e-3) <= pld.epsilon(past, 1e-3) + 1.0
    # Of equal spends the later takes less noise: losses compose like squares.
    without = {event: steps for event, steps in before["client-2"].items() if event != earlier}
    assert spent["client-2"].noise_multiplier < second.limit(without).noise_multiplier(0.08, 6, second.relation)


@pytest.mark.exhaustive
def test_whose_past_leaves_too_little_takes_part_as_long_as_that_lasts():
    url = "sqlite:///ledger.db"
    run(uneven(ledger=url, rounds=2, filter="fixed-mechanism", spend=2.5))
    plan = uneven(ledger=url, rounds=40, filter="fixed-mechanism")
    records = run(plan).records
    assert records[1].participants and set(records[-1].spent.exhausted) == {f"client-{n}" for n in range(4)}
    assert records[-1].round < 40 and records[-1].max_epsilon <= 3.0


def test_terms_of_a_client_s_own_come_before():
    table = {"client-1": {"noise_multiplier": 5.0}, "client-2": {"epsilon": 1.0}, "client-3": {"sampling_rate": 0.5}}
    plan = uneven(client_terms=json.dumps(table))
    events = plan.events({f"client-{n}": size for n, size in enumerate(SIZES)})
    assert events["client-1"] == PoissonSampledGaussian(0.3, 5.0, plan.relation)
    assert pld.epsilon({events["client-2"]: 6}, 1e-3) == pytest.approx(1.0, rel=2e-3)
    assert events["client-3"].sampling_rate == 0.5
    assert pld.epsilon({events["client-3"]: 6}, 1e-3) == pytest.approx(3.0, rel=2e-3)
    assert events["client-0"] == uneven().event(SIZES[0])


# What is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch-size": 8, "sampling-rate": 0.1, "noise-multiplier": 1.0}, "give one of them"),
        ({"batch-size": 0.0, "noise-multiplier": 1.0}, "batch-size is 0.0; choose a number above 0"),
    ],
)
def test_what_a_batch_size_does_not_go_with(settings, message):
    with pytest.raises(ConfigError, match=message):
        TrainingPlan.of(settings, Blobs())


def test_a_budget_that_no_noise_meets_is_refused_before_there_is_a_folder():
    given = {"batch_size": 12, "delta": 1e-12, "out": "run", "progress": False}
    table = {"client-2": {"epsilon": 1e-9}}
    with pytest.raises(ConfigError, match=r"^client-terms: the table \(client-2\): epsilon is 1e-09"):
        fp.simulate(Uneven(), clients=4, epsilon=3.0, client_terms=table, **given)
    with pytest.raises(ConfigError, match=r"^client-0 and 1 other client: epsilon is 1e-09 .* choose a larger epsilon"):
        fp.simulate(Uneven(), clients=5, epsilon=1e-9, **given)
    with pytest.raises(ConfigError, match=r"^client-0: epsilon is 1e-09"):
        client_groups(uneven(epsilon=1e-9, delta=1e-12))
    assert not list(Path().iterdir())


def deployed(tmp_path, **settings):
    return deployed_plan(tmp_path, Uneven(), **{"batch_size": 12.0, "epsilon": 3.0} | settings)


def test_a_deployed_client_whose_budget_no_noise_meets_stays_out_alone_and_its_budget_is_not_settled(tmp_path, caplog):
    plan = deployed(tmp_path, delta=1e-12, client_terms=json.dumps({"hospital-1": {"epsilon": 1e-9}}))
    with caplog.at_level(logging.WARNING, "fedprivacy.server"):
        last = start(plan, DeployedGrid(plan, tmp_path), checkpoints=tmp_path).records[-1]
    assert last.participants == ("hospital-0", "hospital-2")
    assert "Client hospital-1 is left out: client-terms: the table (hospital-1): epsilon is 1e-09" in caplog.text
    assert Ledger(plan.config.ledger).dataset_ids() == ["blobs/hospital-0", "blobs/hospital-2"]


# Deployments


@pytest.mark.exhaustive
def test_deployed_clients_have_theirs_in_both_books_and_late_ones_too(tmp_path):
    """The last comes for the second round, with a past of its own; its noise is the least for that and its own rate."""
    plan = deployed(tmp_path, clients=2)
    url = plan.config.ledger
    Ledger(url).open_run("earlier", "blobs", "own folders")
    earlier = PoissonSampledGaussian(0.5, 4.0, plan.relation)
    Ledger(url).open_budgets({"blobs/hospital-2": plan.allowance()})
    Ledger(url).reserve(Attempt("earlier", 1), earlier, {"blobs/hospital-2": 2}, lambda *_: 2)
    grid = Late(deployed(tmp_path), tmp_path)
    grid.all_there = False
    records = start(plan, grid, on_phase=grid.watch, checkpoints=tmp_path).records
    assert [len(record.participants) for record in records] == [2, 3, 3] and "hospital-2" in records[1].participants
    for number in range(3):
        name, steps = f"hospital-{number}", 4 if number == 2 else 6
        charged = {e: n for e, n in history_of(url, name).items() if e != earlier}
        (event,) = charged
        past = {earlier: 2} if number == 2 else {}
        assert charged == {event: steps} and grid.guard(plan, name).history() == past | charged
        least = plan.limit(past).noise_multiplier(12.0 / SIZES[number], 6, plan.relation)
        assert event == PoissonSampledGaussian(12.0 / SIZES[number], least, plan.relation)
        assert records[-1].spent[name].noise_multiplier == least
        assert (least > plan.limit({}).noise_multiplier(12.0 / SIZES[number], 6, plan.relation)) == (number == 2)


class Late(DeployedGrid):
    """The last hospital is not there before the second round."""

    all_there = True  # while keys are made

    def get_node_ids(self):
        nodes = list(super().get_node_ids())
        return nodes if self.all_there else nodes[:2]

    def get_nodes(self):
        return [node for node in super().get_nodes() if node.node_id in self.get_node_ids()]

    def watch(self, phase):
        """Once the first round is over the others are there, too."""
        self.all_there = self.all_there or (phase.stage is Stage.EVALUATING and phase.round == 1)


# Runs that go on


class Killed(BaseException):
    """The process ends here: nobody handles it."""


@pytest.mark.exhaustive
def test_a_deployed_run_that_is_killed_goes_on_with_the_noise_that_each_client_had(tmp_path, monkeypatch):
    """Another run charges hospital-1 while it is down: its noise would be another one if it were found anew."""

    def go_on(**kwargs):
        plan, resume = deployed(tmp_path, spend=1.0), kwargs.get("resume")
        writer = RunWriter(tmp_path, plan, resume.round if resume else None)
        start(plan, DeployedGrid(plan, tmp_path), observers=[writer], checkpoints=tmp_path, **kwargs)

    def die(phase):
        if (phase.stage, phase.round) == (Stage.TRAINING, 2):  # it is charged
            raise Killed

    with pytest.raises(Killed):
        go_on(on_phase=die)
    plan = deployed(tmp_path, spend=1.0)
    other = PoissonSampledGaussian(0.5, 9.0, plan.relation)
    Ledger(plan.config.ledger).open_run("other", "blobs", "own folders")
    Ledger(plan.config.ledger).reserve(Attempt("other", 1), other, {"blobs/hospital-1": 1}, lambda *_: 1)
    anew = plan.charged_to(plan.config.ledger, "a new run").events({"hospital-1": SIZES[1]})["hospital-1"]
    go_on(resume=load_checkpoint(tmp_path))
    for number in range(3):
        charged = {e: n for e, n in history_of(plan.config.ledger, f"hospital-{number}").items() if e != other}
        assert list(charged.values()) == [6] and anew not in charged
    assert check_run(tmp_path).passed


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A simulation to its end."""
    return simulated(tmp_path_factory.mktemp("whole") / "run")


def simulated(folder):
    settings = {"batch_size": 12, "epsilon": 3.0, "rounds": 3, "seed": 3}
    return fp.simulate(Uneven(), clients=4, **settings, out=folder, progress=False)


# What shows it


@pytest.mark.exhaustive
def test_whatever_shows_the_run_shows_each_client_s_own_noise(whole):
    noises = [client["noise_multiplier"] for client in whole.clients]
    assert noises == sorted(noises, reverse=True) and len(set(noises)) == 4
    prospect = fp.plan(Uneven(), clients=4, batch_size=12, epsilon=3.0, rounds=3)
    assert prospect.noise_multiplier is None
    assert [row["noise_multiplier"] for row in prospect.clients] == noises
    for row, client in zip(prospect.clients, whole.clients, strict=True):
        assert row["epsilon_by_round"][-1] == pytest.approx(client["epsilon"], rel=1e-6)
    assert json.loads((whole.folder / "config.json").read_text())["noise_multiplier"] is None
    facts, text = whole.history.facts, f"{min(noises):.4g} to {max(noises):.4g}"
    assert facts.noise_text == text == RunStore(f"sqlite:///{whole.folder}/ledger.db").runs()[0].facts.noise_text
    report = whole.report.read_text()
    assert all(f"{noise:.6g}" in report for noise in noises)
    assert check_run(whole.folder).passed
    assert read_history(whole.folder).noise_multiplier is None
    facts = replace(whole.history.facts, noise_multiplier=0.0, largest_noise_multiplier=0.0)
    assert facts.noise_text == tracked(facts)["noise-multiplier"] == "each client's own"


def test_the_quota_of_a_rate_is_sought_once_however_many_rates_there_are(monkeypatch):
    """A cache of fewer entries than there are rates would seek every quota anew, three times a round."""
    sought = []
    monkeypatch.setattr(filters, "step_quota", lambda event, budget: sought.append(event) or 10**6)
    kept = filters.FixedMechanismFilter(PrivacyBudget(4.125, 1e-5))
    events = [PoissonSampledGaussian(1 / (2 + number), 1.0) for number in range(3_000)]
    for event in events * 2:
        kept.quota({}, event)
    filters._whole_quota.cache_clear()
    assert sought == events


def test_a_plan_says_the_range_and_shows_who_adds_least_middling_and_most():
    plan = uneven(clients=4)
    told = plan_table(plan, spending(plan)).renderables
    least, most = (plan.event(size).noise_multiplier for size in (SIZES[-1], SIZES[0]))
    assert f"each client's own noise multiplier ({least:.4g} to {most:.4g})" in told[0]
    assert [str(cell) for cell in told[1].columns[3].cells] == [
        f"{plan.event(size).noise_multiplier:.4f}" for size in SIZES
    ]
    many = uneven(Blobs(), clients=8)
    table = plan_table(many, spending(many)).renderables[-1]
    assert [column.header for column in table.columns] == ["round", "client-7", "client-3", "client-0"]
    assert Prospect.of(many).noise_multiplier is None


@pytest.mark.exhaustive
def test_the_audit_of_a_host_finds_the_noise_of_its_own_rate(tmp_path):
    node = Node.read(home_of(tmp_path / "host"))
    run = {"batch-size": 5.0, "epsilon": 0.5, "rounds": 4, "local-steps": 1}
    planned = node.planned(run)
    own = TrainingPlan.of(run, node.task).event(len(node.shard))
    assert planned.config.noise_multiplier == own.noise_multiplier
