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
from fedprivacy.audit.gates.claimed_epsilon import check_run
from fedprivacy.flower.simulated.populations import CohortUpdate
from fedprivacy.ledger import Ledger
from fedprivacy.mechanisms.gaussian_sum import ROUNDING_ALLOWANCE
from fedprivacy.runs.records.folder import CLIENT_TERMS, read_lines
from fedprivacy.runs.records.store import RunStore, url_in
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.trackers.tracker import settings as tracked
from fedprivacy.values.budget import PrivacyBudget
from tests.flower.blobs import BLOBS, Blobs, plan_of
from tests.flower.deployment import DeployedGrid, charged, deployed_plan, start
from tests.flower.runs import model_of, run, run_together, stop_once_in_round_two
from tests.flower.wards import Wards
from tests.privacy.asking import Canaries, deviation_range, root_mean_square

CLIENTS = 20
KINDS = (
    {"epsilon": 1.5},
    {"noise_multiplier": 3.0, "sampling_rate": 0.2},
    {"epsilon": 12.0, "sampling_rate": 0.8},
    {"epsilon": 2.0, "noise_multiplier": 1.6},  # spent before the run ends
    {},
)


def terms(clients):
    """A table in which the five kinds of terms take turns."""
    width = len(str(clients - 1))
    return {f"client-{n:0{width}}": KINDS[n % len(KINDS)] for n in range(clients) if KINDS[n % len(KINDS)]}


def plan_with(given, task=None, **settings):
    return plan_of(task or BLOBS, **{"client_terms": json.dumps(given), "epsilon": 3.0, "clients": CLIENTS} | settings)


def test_each_client_of_a_stack_adds_its_own_noise(monkeypatch):
    """Catches: the noise, or the divisor, of the run or of another client, where its own is charged."""
    task, moved = Canaries(torch.zeros(3, 1_000)), {}
    add = CohortUpdate.add

    def watched(self, ranks, orders, portion):
        moved.update(zip((order.client_id for order in orders), portion.parameters.double().numpy(), strict=True))
        add(self, ranks, orders, portion)

    monkeypatch.setattr(CohortUpdate, "add", watched)
    plan = plan_with(terms(CLIENTS), task, rounds=1, local_steps=1, learning_rate=1.0, clipping_norm=1.0)
    run_together(plan)
    by_kind = defaultdict(list)
    for number in range(CLIENTS):
        client_id = f"client-{number:02}"
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
    run(plan)
    in_force = Ledger(url).allowances([f"blobs/client-{n}" for n in range(4)])
    assert [in_force[f"blobs/client-{n}"].budget for n in range(4)] == [
        PrivacyBudget(epsilon, 1e-3) for epsilon in (1.0, 9.0, 3.0, 3.0)
    ]
    other = plan_with({"client-1": {"epsilon": 9.0}}, clients=4, ledger=url, noise_multiplier=5.0)
    with pytest.raises(ValueError, match=r"gives dataset blobs/client-0 a budget of epsilon 1, .* asks for epsilon 3,"):
        run(other)


@pytest.mark.exhaustive
def test_averages_weighed_by_noise_have_the_least():
    """Weights in the ratio (q n / sigma)^2: with them the average of pure noise has the variance 1 / their sum."""
    task = Canaries(torch.zeros(3, 5_000))
    settings = {"rounds": 1, "local_steps": 1, "learning_rate": 1.0, "clipping_norm": 1.0}
    plan = plan_with(terms(CLIENTS), task, weighting="inverse-variance", **settings)
    moved = model_of(run_together(plan)).double().numpy()
    events = [plan.event(client_id=client_id) for client_id in plan.simulated_clients]
    deviations = np.array([e.noise_multiplier / e.sampling_rate / task.nominal_shard_size for e in events])
    low, high = deviation_range(moved.size, (deviations**-2.0).sum() ** -0.5 * (1 + ROUNDING_ALLOWANCE))
    assert low <= root_mean_square(moved) <= high < np.sqrt((deviations**2).sum()) / CLIENTS


def simulated(folder, given=None, **settings):
    given = terms(6) if given is None else given
    return fp.simulate(Blobs(), clients=6, client_terms=given, rounds=3, seed=3, out=folder, progress=False, **settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A simulation of six clients, to its end."""
    return simulated(tmp_path_factory.mktemp("whole") / "run", epsilon=3.0)


@pytest.mark.exhaustive
def test_a_stopped_run_goes_on_with_the_terms_that_it_had_and_no_others(whole, monkeypatch, undrawn):
    stop_once_in_round_two(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        simulated("stopped", epsilon=3.0)
    with pytest.raises(ConfigError, match=r"its own, which are in 'stopped/client-terms.csv'; leave client_terms open"):
        fp.simulate(Blobs(), resume="stopped", client_terms={"client-0": {"epsilon": 99}}, progress=False)
    table = Path("stopped", CLIENT_TERMS)
    table.rename("kept.csv")
    with pytest.raises(ConfigError, match=r"client-terms.csv', which cannot be read"):
        fp.simulate(Blobs(), resume="stopped", progress=False)
    Path("kept.csv").rename(table)
    Path("moved").symlink_to("stopped")
    resumed = fp.simulate(Blobs(), resume="moved", client_terms=terms(6), progress=False)
    assert resumed.clients == whole.clients
    assert read_lines(Path("stopped")) == read_lines(whole.folder)


@pytest.mark.exhaustive
def test_whatever_shows_the_run_shows_each_client_s_own_noise_and_budget(whole):
    noises = [client["noise_multiplier"] for client in whole.clients]
    assert noises[1] == 3.0 and len(set(noises)) == 5 and noises[0] == noises[5]
    assert [client["budget_epsilon"] for client in whole.clients] == [1.5, 3.0, 12.0, 2.0, 3.0, 1.5]
    assert [row["noise_multiplier"] for row in whole.history.summary()["clients"]] == noises
    facts = whole.history.facts
    assert (facts.noise_multiplier, facts.largest_noise_multiplier) == (min(noises), max(noises))
    assert tracked(facts)["noise-multiplier"] == f"{min(noises):.4g} to {max(noises):.4g}"
    report = whole.report.read_text()
    assert f"{min(noises):.6g} to {max(noises):.6g}" in report and all(f"{noise:.6g}" in report for noise in noises)
    store = RunStore(url_in(whole.folder))
    (standing,) = store.runs()
    stored = store.run(standing.facts.run_id).standings_of([client["client_id"] for client in whole.clients])
    assert [client.spent.noise_multiplier for client in stored] == noises
    assert check_run(whole.folder).passed
    table = Path(folder := shutil.copytree(whole.folder, "changed"), CLIENT_TERMS)
    table.write_text(table.read_text().replace("3.0,0.2", "3.5,0.2"))
    assert any("client-1 was charged for" in reason for reason in check_run(Path(folder)).reasons)
    row = fp.compare(whole, whole).rows[0]
    assert (row["epsilon"], row["budget"]) == max((c["epsilon"], c["budget_epsilon"]) for c in whole.clients)
    assert (row["noise_multiplier"], row["largest_noise_multiplier"]) == (min(noises), max(noises))


@pytest.mark.exhaustive
def test_questions_are_charged_to_each_client_s_own_budget_and_a_task_s_own_too(undrawn):
    """With one noise for all; a client whose budget is smaller than a question takes is not asked."""
    url = "sqlite:///ledger.db"
    own = {"client-0": {"epsilon": 1.0, "noise_multiplier": 9.0, "sampling_rate": 0.1}, "client-1": {"epsilon": 9.0}}
    done = fp.simulate(Wards(), client_terms=own, ledger=url, seed=1, out="run", progress=False)
    assert [client["budget_epsilon"] for client in done.clients] == [1.0, 9.0, 3.0, 3.0, 3.0, 3.0]
    assert all(client["epsilon"] <= client["budget_epsilon"] for client in done.clients)
    accounts = Ledger(url).accounts([f"wards/client-{n}" for n in range(6)])
    asked = [{event for event in account.history if event.sampling_rate == 1.0} for account in accounts.values()]
    assert len(set(map(frozenset, asked))) == 1 and all(len(events) == 1 for events in asked)
    own["client-0"]["epsilon"] = 0.05
    asked = fp.ask(Wards(), fp.ask.count(), client_terms=own, spend=0.2, ledger="other.db", seed=1)
    assert asked.failures == {"client-0": "budget-exhausted"}
    assert asked.event.sampling_rate == 1.0 and asked.event.noise_multiplier != 9.0
    assert [spent.epsilon for spent in asked.spent.values()] == pytest.approx([0.0, *[0.2] * 5], rel=0.01)


def deployed(tmp_path, own, **settings):
    return deployed_plan(tmp_path, client_terms=json.dumps(own), **{"epsilon": 3.0} | settings)


def test_deployed_clients_have_theirs_in_both_books(tmp_path, caplog):
    own = {"hospital-0": {"epsilon": 1.0}, "hospital-1": {"noise_multiplier": 4.0, "sampling_rate": 0.25}}
    plan = deployed(tmp_path, own | {"hospital-7": {"epsilon": 2.0}})
    grid = DeployedGrid(plan, tmp_path)
    with caplog.at_level(logging.WARNING, "fedprivacy.server"):
        last = start(plan, grid, checkpoints=tmp_path).records[-1]
    assert "client-terms are for hospital-7" in caplog.text
    for name in grid.names.values():
        assert charged(plan, grid, name) == {plan.event(30, name): 6}
        assert last.spent[name].budget_epsilon == own.get(name, {}).get("epsilon", 3.0)
    assert last.spent["hospital-1"].sampling_rate == 0.25
