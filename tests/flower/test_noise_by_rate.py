"""A batch size and a budget for all: each client adds the least noise for its own sampling rate and its own past."""

import json
import logging
from pathlib import Path

import pytest

import fedprivacy as fp
from fedprivacy.accounting import pld
from fedprivacy.audit.gates.claimed_epsilon import check_run
from fedprivacy.commands.run_tables import plan_table
from fedprivacy.flower.server.checkpoint import load_checkpoint
from fedprivacy.ledger import Ledger
from fedprivacy.runs.prospect import Prospect, spending
from fedprivacy.runs.records.folder import RunWriter
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.events import PoissonSampledGaussian
from fedprivacy.values.runs import Stage
from tests.flower.blobs import Blobs, Uneven, plan_of
from tests.flower.deployment import DeployedGrid, charged, deployed_plan, start
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


def test_private_sizes_make_one_rate_and_one_noise_and_public_ones_none_of_the_run():
    plan = uneven(Private())
    noise = fp.noise_multiplier(epsilon=3.0, delta=1e-3, sampling_rate=0.12, steps=6)
    assert {plan.event(size) for size in SIZES} == {PoissonSampledGaussian(0.12, noise, plan.relation)}
    assert plan.noise.of() == plan.noise.shared == noise
    assert plan_of(Blobs(), batch_size=1_000.0, noise_multiplier=2.0).event(30).sampling_rate == 1.0  # a small shard
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


def test_a_budget_that_no_noise_meets_is_refused_before_there_is_a_folder():
    given = {"batch_size": 12, "delta": 1e-12, "out": "run", "progress": False, "clients": 5}
    with pytest.raises(ConfigError, match=r"^client-terms: the table \(client-2\): epsilon is 1e-09"):
        fp.simulate(Uneven(), epsilon=3.0, client_terms={"client-2": {"epsilon": 1e-9}}, **given)
    with pytest.raises(ConfigError, match=r"^client-0 and 1 other client: epsilon is 1e-09 .* choose a larger epsilon"):
        fp.simulate(Uneven(), epsilon=1e-9, **given)
    assert not list(Path().iterdir())


def deployed(tmp_path, **settings):
    return deployed_plan(tmp_path, Uneven(), **{"batch_size": 12.0, "epsilon": 3.0} | settings)


@pytest.mark.exhaustive
def test_a_deployed_client_whose_budget_no_noise_meets_stays_out_alone_and_its_budget_is_not_settled(tmp_path, caplog):
    plan = deployed(tmp_path, delta=1e-12, client_terms=json.dumps({"hospital-1": {"epsilon": 1e-9}}))
    with caplog.at_level(logging.WARNING, "fedprivacy.server"):
        last = start(plan, DeployedGrid(plan, tmp_path), checkpoints=tmp_path).records[-1]
    assert last.participants == ("hospital-0", "hospital-2")
    assert "Client hospital-1 is left out: client-terms: the table (hospital-1): epsilon is 1e-09" in caplog.text
    assert Ledger(plan.config.ledger).dataset_ids() == ["blobs/hospital-0", "blobs/hospital-2"]


class Late(DeployedGrid):
    """The last hospital is there from the second round on."""

    there = 3  # while keys are made

    def get_node_ids(self):
        return list(super().get_node_ids())[: self.there]

    def get_nodes(self):
        return super().get_nodes()[: self.there]

    def watch(self, phase):
        if (phase.stage, phase.round) == (Stage.EVALUATING, 1):
            self.there = 3


@pytest.mark.exhaustive
def test_who_comes_late_adds_the_least_noise_for_its_own_rate_and_after_its_own_past(tmp_path):
    """The ledger knows nothing of that past before the client's own book tells it."""
    plan, grid = deployed(tmp_path, clients=2), Late(deployed(tmp_path), tmp_path)
    earlier, grid.there = PoissonSampledGaussian(0.5, 4.0, plan.relation), 2
    grid.guard(plan, "hospital-2").charge(Attempt("earlier", 1), earlier, 2)
    records = start(plan, grid, on_phase=grid.watch, checkpoints=tmp_path).records
    assert [len(record.participants) for record in records] == [2, 3, 3]
    for number, (past, steps) in enumerate([({}, 6), ({}, 6), ({earlier: 2}, 4)]):
        rate = 12.0 / SIZES[number]
        least = plan.limit(past).noise_multiplier(rate, 6, plan.relation)
        event = PoissonSampledGaussian(rate, least, plan.relation)
        assert charged(plan, grid, f"hospital-{number}") == {**past, event: steps}


@pytest.mark.exhaustive
def test_a_deployed_run_that_is_killed_goes_on_with_the_noise_that_each_client_had(tmp_path, monkeypatch):
    """Another run charges hospital-1 while it is down: its noise would be another one if it were found anew."""

    def go_on(**kwargs):
        plan, resume = deployed(tmp_path, spend=1.0), kwargs.get("resume")
        writer = RunWriter(tmp_path, plan, resume.round if resume else None)
        start(plan, DeployedGrid(plan, tmp_path), observers=[writer], checkpoints=tmp_path, **kwargs)

    def die(phase):
        if (phase.stage, phase.round) == (Stage.TRAINING, 2):  # it is charged
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go_on(on_phase=die)
    plan = deployed(tmp_path, spend=1.0)
    other = PoissonSampledGaussian(0.5, 9.0, plan.relation)
    Ledger(plan.config.ledger).open_run("other", "blobs", "own folders")
    Ledger(plan.config.ledger).reserve(Attempt("other", 1), other, {"blobs/hospital-1": 1}, lambda *_: 1)
    anew = plan.for_ledger(plan.config.ledger, "a new run").events({"hospital-1": SIZES[1]})["hospital-1"]
    go_on(resume=load_checkpoint(tmp_path))
    for number in range(3):
        charged = {e: n for e, n in history_of(plan.config.ledger, f"hospital-{number}").items() if e != other}
        assert list(charged.values()) == [6] and anew not in charged
    assert check_run(tmp_path).passed


# What shows it


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
