"""A whole run charges, shows and allows what the ledger's books say."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAvg

from fedprivacy.accounting import DEFAULT_FILTER, FILTERS, pld
from fedprivacy.flower import PrivateStrategy, private_client
from fedprivacy.flower.wire.messages import ENROLMENT, GRANT, RECEIPT, Enrolment, Grant, Receipt
from fedprivacy.ledger import Allowance, Ledger, LedgerError
from fedprivacy.mechanisms.gaussian_sum import ROUNDING_ALLOWANCE
from fedprivacy.runs.accountant import CentralAccountant
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import PoissonSampledGaussian
from tests.flower.blobs import Blobs, plan_of
from tests.flower.runs import SAMPLING, run
from tests.privacy.asking import Canaries, deviation_range, root_mean_square
from tests.privacy.noted import NotedDeployment, NotedGrid

# The ledger's budget, whatever a run's configuration says


def test_the_ledger_s_budget_and_delta_hold_where_a_run_s_configuration_allows_more(ledger_url, tmp_path):
    """Catches: the configuration's budget overruling the ledger's, and an epsilon at the configuration's delta."""
    budget = PrivacyBudget(4.0, 1e-6)
    settings = {"clients": 2, "noise_multiplier": 2.0, "epsilon": 9.0, "delta": 1e-3, "ledger": ledger_url}
    run(plan_of(Blobs(), rounds=1, out=str(tmp_path / "one"), **settings))
    ledger = Ledger(ledger_url)
    for client in ("client-0", "client-1"):
        ledger.set_budget(f"blobs/{client}", budget, None, "the data owner has thought again")
    done = run(plan_of(Blobs(), rounds=12, out=str(tmp_path / "two"), **settings))
    assert done.result.stopped_because
    for client, spent in done.records[-1].spent.items():
        history = ledger.accounts([f"blobs/{client}"])[f"blobs/{client}"].history
        (event,) = history
        assert history[event] == FILTERS[DEFAULT_FILTER](budget).quota({}, event)
        assert (spent.budget_epsilon, spent.delta, spent.steps_left, spent.steps) == (4.0, 1e-6, 0, history[event])
        assert spent.epsilon == pytest.approx(pld.epsilon(history, 1e-6), rel=1e-3)
        assert spent.epsilon <= 4.0


def test_a_budget_that_changes_while_a_run_is_under_way_counts_from_then_on(ledger_url):
    """Catches: a budget that is read once. The run was opened with ten times as much."""
    ledger, event = Ledger(ledger_url), PoissonSampledGaussian(0.5, 2.0)
    accountant = CentralAccountant(ledger, event.relation, PrivacyBudget(9.0, 1e-3), DEFAULT_FILTER)
    accountant.enrol({"a": "a"}, {"a": event})
    assert accountant.grant(Attempt("run", 1), {"a": 2}) == {"a": 2}
    ledger.set_budget("a", PrivacyBudget(1e-3, 1e-3), None, "it was too much")
    assert accountant.grant(Attempt("run", 2), {"a": 2}) == {}
    assert accountant.spent()["a"].exhausted


# One charge at a time


def test_nobody_charges_between_another_s_look_at_the_books_and_its_charge(ledger_url):
    """Catches: no exclusive transaction on SQLite. What was read as left must still be left when it is charged."""
    event, quota = PoissonSampledGaussian(0.1, 1.0), 10
    one, other = Ledger(ledger_url), Ledger(ledger_url, patience=0.1)
    one.open_budgets({"a": Allowance(PrivacyBudget(3.0, 1e-5), DEFAULT_FILTER)})

    def left(_, history, __):
        return quota - sum(history.values())

    def left_while_another_charges(*looked):
        with pytest.raises(LedgerError, match="locked"):
            other.reserve(Attempt("another run", 1), event, {"a": 7}, left)
        return left(*looked)

    assert one.reserve(Attempt("run", 1), event, {"a": 7}, left_while_another_charges) == {"a": 7}
    assert other.reserve(Attempt("another run", 1), event, {"a": 7}, left) == {"a": 3}
    assert one.accounts(["a"])["a"].history == {event: quota}


# One client's adapted norm is nobody else's


class Sized(Canaries):
    """Client i's gradients have norm 100^(i - 1): one client clips all of its records, one some, one none."""

    shard_sizes_public = True

    def __init__(self):
        super().__init__(torch.eye(2).repeat(20, 1))

    def shard(self, source):
        shard = super().shard(source)
        return type(shard)(shard.inputs * 100.0 ** (source.partition_id - 1), shard.targets)


def test_each_client_is_granted_its_own_adapted_norm(ledger_url):
    """Catches: one client's adapted norm handed to another: a norm is a client's own release."""
    plan = plan_of(
        Sized(), clients=3, rounds=6, clipping="adaptive", noise_multiplier=2.0, clipping_norm=0.1, ledger=ledger_url
    )
    grid = NotedGrid(private_client(plan.task, plan.config), 3, {})
    PrivateStrategy(FedAvg(**SAMPLING), plan).start(grid)
    norms = {node: [0.1] for node in grid.get_node_ids()}
    for asked, answer in grid.exchanged:
        if GRANT in asked.content:
            reached = norms[asked.metadata.dst_node_id]
            assert Grant.from_record(asked.content[GRANT]).clipping_norm == reached[-1]
            reached.append(Receipt.from_record(answer[RECEIPT]).clipping_norm)
    ends = [reached[6] for reached in norms.values()]
    assert len(set(ends)) == 3, "clients that arrive at one norm prove nothing"
    assert ends[0] < 0.1 < min(ends[1:])


# What came out is what was charged


def moved(asked, answer):
    """The distance by which an update moved the model, read as a server would."""
    (sent,), (back,) = (content["arrays"].values() for content in (asked.content, answer))
    return back.numpy().astype(np.float64) - sent.numpy()


def test_a_deployed_client_charges_as_many_steps_as_its_noise_shows(ledger_url, tmp_path):
    """Catches: less noise, or more steps, than both books hold; in a whole run with guard, keys and signatures."""
    task = Canaries(torch.zeros(5, 5_000))
    settings = {"clients": 2, "rounds": 3, "local_steps": 4, "noise_multiplier": 3.0, "epsilon": 60.0, "seed": None}
    keys = {"ledger": ledger_url, "signing_key": str(tmp_path / "server.key")}
    plan = plan_of(task, **settings, **keys, learning_rate=1.0, sampling_rate=0.5)
    grid = NotedDeployment(plan, tmp_path)
    strategy = PrivateStrategy(FedAvg(**SAMPLING), plan)
    strategy.start(grid)
    trainings = [(asked, answer) for asked, answer in grid.exchanged if GRANT in asked.content]
    for node, name in grid.names.items():
        own = grid.guard(plan, name).by_run()[strategy.run_id]  # as charged, not as corrected
        central = Ledger(ledger_url).accounts([f"{task.dataset}/{name}"])[f"{task.dataset}/{name}"].history
        assert own == central == {plan.event(): 12}
        moves = [moved(*both) for both in trainings if both[0].metadata.dst_node_id == node]
        noise = np.concatenate(moves) * plan.event().sampling_rate * task.nominal_shard_size / plan.config.clipping_norm
        (event,) = own
        each = event.noise_multiplier * (1 + ROUNDING_ALLOWANCE)
        low, high = deviation_range(noise.size, each * math.sqrt(own[event] / len(moves)))
        assert low <= root_mean_square(noise) <= high


class Shrunk(NotedGrid):
    """A client goes away, comes back as another node, and discloses fewer records than before."""

    def __init__(self, app):
        super().__init__(app, 1, {})
        (first,) = super().get_node_ids()
        self._contexts[first + 1] = replace(self._contexts[first], node_id=first + 1)
        self.there = [first]

    def get_node_ids(self):
        return self.there

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        for reply in replies:
            if reply.metadata.src_node_id == 1001 and ENROLMENT in reply.content:
                enrolment = Enrolment.from_record(reply.content[ENROLMENT])
                reply.content[ENROLMENT] = replace(enrolment, shard_size=10).to_record()
        return replies


def test_what_is_granted_is_what_was_charged_though_a_client_discloses_another_size(ledger_url):
    """Catches: a sampling rate from the size that a client discloses now, and a charge from the one before."""
    settings = {"clients": 1, "rounds": 2, "noise_multiplier": 2.0, "batch_size": 15, "filter": "adaptive"}
    plan = plan_of(Blobs(), **settings, epsilon=50.0, ledger=ledger_url)
    grid = Shrunk(private_client(plan.task, plan.config))

    def come_back(record):
        grid.there = [1000, 1001][record.round :][:1] or grid.there

    PrivateStrategy(FedAvg(**SAMPLING), plan, observers=[come_back]).start(grid)
    assert grid.trained == [1000, 1001]
    granted = [Grant.from_record(m.content[GRANT]) for m in grid.sent.values() if GRANT in m.content]
    history = Ledger(ledger_url).accounts(["blobs/client-0"])["blobs/client-0"].history
    assert history == {plan.event(30): sum(grant.steps for grant in granted)}
    assert {grant.event for grant in granted} == history.keys()
