"""Clients with terms of their own: each one's noise, charge and budget are its own, by messages and together."""

import json
import logging
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

import fedprivacy as fp
from fedprivacy.audit.gates.ledger import check_run
from fedprivacy.commands.run_tables import client_table
from fedprivacy.flower.baseline.assignment import Assignment
from fedprivacy.flower.client.cohort import CohortUpdate
from fedprivacy.ledger import Ledger
from fedprivacy.runs.configuration import ConfigError
from fedprivacy.runs.folder import CLIENT_TERMS
from fedprivacy.runs.store import RunStore
from fedprivacy.server.dashboard.forecasts import forecast
from fedprivacy.trackers.protocol import settings as tracked
from fedprivacy.training.mechanisms import ROUNDING_ALLOWANCE
from fedprivacy.values.budget import PrivacyBudget
from tests.flower.blobs import Blobs, plan_of
from tests.flower.deployment import DeployedGrid
from tests.flower.runs import stop_once_in_round_two
from tests.flower.test_cohorts import check_same, model_of, run
from tests.flower.test_deployed_rounds import start
from tests.flower.wards import Wards
from tests.privacy.asking import Canaries, deviation_range, root_mean_square

CLIENTS = 102  # a population
KINDS = (
    {"epsilon": 1.5},
    {"noise_multiplier": 3.0, "sampling_rate": 0.2},
    {"epsilon": 12.0, "sampling_rate": 0.8},
    {"epsilon": 2.0, "noise_multiplier": 1.6},  # spent before the run ends
    {},
)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def terms(clients=CLIENTS):
    """A table in which the five kinds of terms take turns."""
    width = len(str(clients - 1))
    return {f"client-{n:0{width}}": KINDS[n % len(KINDS)] for n in range(clients) if KINDS[n % len(KINDS)]}


def plan_with(given, task=None, **settings):
    return plan_of(
        task or Blobs(), **{"client_terms": json.dumps(given), "epsilon": 3.0, "clients": CLIENTS} | settings
    )


def test_every_client_is_charged_for_what_it_does_however_it_is_asked():
    """By messages and in a population the same run, and each epsilon that of the client's own history."""
    finished = []
    for together in (False, True):
        plan = plan_with(terms(), rounds=3, local_steps=2, ledger=f"sqlite:///{together}.db")
        finished.append(run(plan, together=together))
    check_same(*finished)
    for file in ("False.db", "True.db"):
        accounts = Ledger(f"sqlite:///{file}").accounts([f"blobs/client-{n:03}" for n in range(CLIENTS)])
        for number in range(CLIENTS):
            client_id, own = f"client-{number:03}", KINDS[number % len(KINDS)]
            spent, event = finished[1].records[-1].spent[client_id], plan.event(30 + number, client_id)
            assert event.sampling_rate == spent.sampling_rate == own.get("sampling_rate", 0.5)
            assert event.noise_multiplier == spent.noise_multiplier
            assert event.noise_multiplier == own.get("noise_multiplier", event.noise_multiplier)
            history = accounts[f"blobs/{client_id}"].history
            assert history == {event: spent.steps} and spent.steps <= 6
            cost = {"noise_multiplier": event.noise_multiplier, "sampling_rate": event.sampling_rate}
            exact = fp.epsilon(**cost, steps=spent.steps, delta=1e-3, relation=event.relation)
            assert spent.epsilon == pytest.approx(exact, rel=1e-4)
            assert spent.epsilon <= spent.budget_epsilon == own.get("epsilon", 3.0)
            assert (spent.steps < 6) == (number % len(KINDS) == 3)


def test_each_client_of_a_stack_adds_its_own_noise(monkeypatch):
    """Catches: the noise, or the divisor, of the run or of another client, where its own is charged."""
    task, moved = Canaries(torch.zeros(3, 1_000)), {}
    add = CohortUpdate.add

    def watched(self, ranks, orders, portion):
        moved.update(zip((order.client_id for order in orders), portion.parameters.double().numpy(), strict=True))
        add(self, ranks, orders, portion)

    monkeypatch.setattr(CohortUpdate, "add", watched)
    plan = plan_with(terms(), task, rounds=1, local_steps=1, learning_rate=1.0, clipping_norm=1.0)
    run(plan, together=True)
    by_kind = defaultdict(list)
    for number in range(CLIENTS):
        client_id = f"client-{number:03}"
        event = plan.event(client_id=client_id)
        divisor = event.sampling_rate * task.nominal_shard_size
        by_kind[event].append(moved[client_id] * divisor)
    assert len(by_kind) == len(KINDS)
    for event, noise in by_kind.items():
        together = np.concatenate(noise)
        low, high = deviation_range(together.size, event.noise_multiplier * (1 + ROUNDING_ALLOWANCE))
        assert low <= root_mean_square(together) <= high
        worst = max(map(root_mean_square, noise)) / event.noise_multiplier
        assert worst < 1.2 and min(map(root_mean_square, noise)) / event.noise_multiplier > 0.8  # 9 deviations


def test_the_budget_of_each_is_what_the_ledger_enforces():
    url = "sqlite:///ledger.db"
    plan = plan_with({"client-0": {"epsilon": 1.0}, "client-1": {"epsilon": 9.0}}, clients=4, ledger=url)
    run(plan, together=False)
    in_force = Ledger(url).allowances([f"blobs/client-{n}" for n in range(4)])
    assert [in_force[f"blobs/client-{n}"].budget for n in range(4)] == [
        PrivacyBudget(epsilon, 1e-3) for epsilon in (1.0, 9.0, 3.0, 3.0)
    ]
    other = plan_with({"client-1": {"epsilon": 9.0}}, clients=4, ledger=url, noise_multiplier=5.0)
    with pytest.raises(ValueError, match=r"gives dataset blobs/client-0 a budget of epsilon 1, .* asks for epsilon 3,"):
        run(other, together=False)


def test_a_second_run_on_a_ledger_takes_what_each_has_left():
    """Whoever has spent all is left out, and the others' noise is as if it were not there."""
    url, table = "sqlite:///ledger.db", {"client-0": {"epsilon": 2.0}, "client-1": {"epsilon": 9.0}}
    run(plan_with(table, clients=4, ledger=url, filter="adaptive", spend=1.5), together=False)
    second = plan_with(table, clients=4, ledger=url, filter="adaptive", spend=1.5)
    assert second.noise_multiplier_of("client-0") > second.noise_multiplier_of("client-1")
    spent = run(second, together=False).records[-1].spent
    assert [spent[f"client-{n}"].epsilon <= (2.0, 3.0, 3.0, 3.0)[n] for n in range(4)] == [True] * 4


def test_averages_weighed_by_noise_are_the_same_by_messages_and_together_and_have_the_least():
    """Weights in the ratio (q n / sigma)^2: with them the average of pure noise has the variance 1 / their sum."""
    settings = {"weighting": "inverse-variance", "rounds": 1, "local_steps": 1, "learning_rate": 1.0}
    plans = [plan_with(terms(), **settings, ledger=f"sqlite:///{together}.db") for together in (False, True)]
    check_same(*(run(plan, together=together) for plan, together in zip(plans, (False, True), strict=True)))
    task = Canaries(torch.zeros(3, 20_000))
    for weighting in ("size", "inverse-variance"):
        own = {"weighting": weighting, "ledger": f"sqlite:///{weighting}.db", "clipping_norm": 1.0}
        plan = plan_with(terms(), task, **settings | own)
        moved = model_of(run(plan, together=True)).double().numpy()
        deviations = [plan.event(client_id=c) for c in plan.simulated_clients]
        deviations = np.array([e.noise_multiplier / e.sampling_rate / task.nominal_shard_size for e in deviations])
        least = (deviations**-2.0).sum() ** -0.5
        mean = least if weighting == "inverse-variance" else np.sqrt((deviations**2).sum()) / CLIENTS
        low, high = deviation_range(moved.size, mean * (1 + ROUNDING_ALLOWANCE))
        assert low <= root_mean_square(moved) <= high and least <= mean


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"strategy": "krum", "clients": 6}, "strategy 'krum' weighs no update; choose one of fedavg"),
        ({"user_level_epsilon": 8.0}, "all clients count alike"),
        ({"weighting": "epsilon"}, "choose one of size, inverse-variance"),
    ],
)
def test_weights_where_nothing_is_weighed_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        plan_of(Blobs(), **{"weighting": "inverse-variance"} | settings)


def simulated(folder, given=None, **settings):
    given = terms(6) if given is None else given
    return fp.simulate(Blobs(), clients=6, client_terms=given, rounds=3, seed=3, out=folder, progress=False, **settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A simulation of six clients, to its end."""
    return simulated(tmp_path_factory.mktemp("whole") / "run", epsilon=3.0)


def test_a_stopped_run_goes_on_with_the_terms_and_the_noise_that_it_had(whole, monkeypatch):
    stop_once_in_round_two(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        simulated("stopped", epsilon=3.0)
    with pytest.raises(ConfigError, match=r"its own, which are in 'stopped/client-terms.csv'; leave client_terms open"):
        fp.simulate(Blobs(), resume="stopped", client_terms={"client-0": {"epsilon": 99}}, progress=False)
    Path("moved").symlink_to("stopped")
    resumed = fp.simulate(Blobs(), resume="moved", client_terms=terms(6), progress=False)
    assert resumed.clients == whole.clients
    assert Path("stopped/rounds.jsonl").read_bytes() == (whole.folder / "rounds.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="its own, which were left open"):
        fp.simulate(Blobs(), resume=simulated("plain", "").folder, client_terms=terms(6), progress=False)
    Path("stopped", CLIENT_TERMS).unlink()
    with pytest.raises(ConfigError, match=r"client-terms.csv', which cannot be read"):
        fp.simulate(Blobs(), resume="stopped", progress=False)


def test_whatever_shows_the_run_shows_each_client_s_own_noise_and_budget(whole):
    noises = [client["noise_multiplier"] for client in whole.clients]
    assert noises[1] == 3.0 and len(set(noises)) == 5 and noises[0] == noises[5]
    assert [client["budget_epsilon"] for client in whole.clients] == [1.5, 3.0, 12.0, 2.0, 3.0, 1.5]
    assert [row["noise_multiplier"] for row in whole.history.summary()["clients"]] == noises
    facts = whole.history.facts
    assert (facts.noise_multiplier, facts.largest_noise_multiplier) == (min(noises), max(noises))
    text = f"{min(noises):.4g} to {max(noises):.4g}"
    assert tracked(facts)["noise-multiplier"] == facts.noise_text == text
    report = whole.report.read_text()
    assert f"{min(noises):.6g} to {max(noises):.6g}" in report and all(f"{noise:.6g}" in report for noise in noises)
    assert "spends its whole budget, the largest" in report
    assert "each client's own budget" in str(client_table(whole.history).caption)
    store = RunStore(f"sqlite:///{whole.folder}/ledger.db")
    (standing,) = store.runs()
    assert standing.facts.noise_text == text
    stored = store.run(standing.facts.run_id)
    assert [client.spent.noise_multiplier for client in stored.named([c["client_id"] for c in whole.clients])] == noises
    assert forecast(stored, "client-1", 5.0).noise_multiplier == 3.0
    assert check_run(whole.folder).passed
    row = fp.compare(whole, whole).rows[0]
    assert (row["epsilon"], row["budget"]) == max((c["epsilon"], c["budget_epsilon"]) for c in whole.clients)
    assert (row["noise_multiplier"], row["largest_noise_multiplier"]) == (min(noises), max(noises))


def test_a_table_that_was_changed_afterwards_contradicts_the_charges(whole):
    folder = shutil.copytree(whole.folder, "run")
    table = Path(folder, CLIENT_TERMS)
    table.write_text(table.read_text().replace("3.0,0.2", "3.5,0.2"))
    assert any("client-1 was charged for" in reason for reason in check_run(Path(folder)).reasons)


def test_a_baseline_samples_at_the_same_rates(monkeypatch):
    asked = []
    to_record = Assignment.to_record
    monkeypatch.setattr(Assignment, "to_record", lambda self: asked.append(self) or to_record(self))
    done = simulated("baseline", privacy=False)
    assert {one.client_id: one.sampling_rate for one in asked} == {
        f"client-{n}": KINDS[n % 5].get("sampling_rate", 0.5) for n in range(6)
    }
    assert {client["noise_multiplier"] for client in done.clients} == {0.0}


def test_a_task_s_own_question_is_charged_to_each_client_s_own_budget():
    url = "sqlite:///ledger.db"
    own = {"client-0": {"epsilon": 1.0, "noise_multiplier": 9.0, "sampling_rate": 0.1}, "client-1": {"epsilon": 9.0}}
    done = fp.simulate(Wards(), client_terms=own, ledger=url, seed=1, out="run", progress=False)
    assert [client["budget_epsilon"] for client in done.clients] == [1.0, 9.0, 3.0, 3.0, 3.0, 3.0]
    assert all(client["epsilon"] <= client["budget_epsilon"] for client in done.clients)
    accounts = Ledger(url).accounts([f"wards/client-{n}" for n in range(6)])
    asked = [{event for event in account.history if event.sampling_rate == 1.0} for account in accounts.values()]
    assert len(set(map(frozenset, asked))) == 1 and all(len(events) == 1 for events in asked)


def test_questions_are_asked_within_each_client_s_own_budget():
    """With one noise for all; a client whose budget is smaller than that takes is not asked."""
    own = {"client-0": {"epsilon": 0.05, "noise_multiplier": 9.0, "sampling_rate": 0.1}, "client-1": {"epsilon": 9.0}}
    asked = fp.ask(Wards(), "count", client_terms=own, spend=0.2, ledger="ledger.db", seed=1)
    assert asked.failures == {"client-0": "budget-exhausted"}
    assert [spent.budget_epsilon for spent in asked.spent.values()] == [0.05, 9.0, 3.0, 3.0, 3.0, 3.0]
    assert asked.event.sampling_rate == 1.0 and asked.event.noise_multiplier != 9.0
    assert [spent.epsilon for spent in asked.spent.values()] == pytest.approx([0.0, *[0.2] * 5], rel=0.01)


class Strict(DeployedGrid):
    """Of one hospital that allows less than the server's table says."""

    def __init__(self, plan, folder, **node):
        super().__init__(plan, folder)
        context = self._contexts[next(i for i, name in self.names.items() if name == "hospital-1")]
        context.node_config = context.node_config | node


def deployed(tmp_path, own, **settings):
    key = str(tmp_path / "server.key")
    given = {"clients": 3, "seed": None, "rounds": 3, "ledger": f"sqlite:///{tmp_path}/ledger.db", "signing_key": key}
    return plan_with(own, **given | settings)


def test_deployed_clients_have_theirs_in_both_books(tmp_path, caplog):
    own = {"hospital-0": {"epsilon": 1.0}, "hospital-1": {"noise_multiplier": 4.0, "sampling_rate": 0.25}}
    plan = deployed(tmp_path, own | {"hospital-7": {"epsilon": 2.0}})
    grid = DeployedGrid(plan, tmp_path)
    with caplog.at_level(logging.WARNING, "fedprivacy.server"):
        last = start(plan, grid, checkpoints=tmp_path).records[-1]
    assert "client-terms are for hospital-7" in caplog.text
    accounts = Ledger(plan.config.ledger).accounts([f"blobs/hospital-{n}" for n in range(3)])
    for name in grid.names.values():
        event = plan.event(30, name)
        assert accounts[f"blobs/{name}"].history == grid.guard(plan, name).history() == {event: 6}
        assert last.spent[name].budget_epsilon == own.get(name, {}).get("epsilon", 3.0)
    assert last.spent["hospital-1"].sampling_rate == 0.25


def test_no_table_raises_a_deployed_client_s_own_budget_or_lowers_its_noise(tmp_path):
    """The server's table would let it spend 50; its node says 3, and its guard stops there."""
    own = {"hospital-1": {"epsilon": 50.0, "noise_multiplier": 0.8}}
    plan = deployed(tmp_path / "budget", own)
    first, *_, last = start(plan, grid := Strict(plan, tmp_path / "budget", epsilon=3.0), checkpoints=tmp_path).records
    assert first.failures == {"hospital-1": "budget-exhausted"} and not grid.guard(plan, "hospital-1").history()
    assert last.participants == ("hospital-0", "hospital-2")
    (tmp_path / "noise").mkdir()
    plan = deployed(tmp_path / "noise", own)
    grid = Strict(plan, tmp_path / "noise", epsilon=50.0, **{"least-noise-multiplier": 1.0})
    first = start(plan, grid, checkpoints=tmp_path / "noise").records[0]
    assert first.failures == {"hospital-1": "grant-invalid"} and not grid.guard(plan, "hospital-1").history()
