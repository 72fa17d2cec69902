"""The gates of a deployed client: quiet where nothing is wrong, and each bug of the deployed path is noticed."""

import json
import socket
import tempfile
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from flwr.app import ConfigRecord, Context

from fedprivacy.audit import auditor
from fedprivacy.audit.auditor import NODE_GATES, NodeAuditError, audit_node, silence
from fedprivacy.audit.gates.deployed_client import NOBODY_S
from fedprivacy.audit.host import Host, Node, NotTheAuditorsError
from fedprivacy.audit.our_client.audited_client import Audited
from fedprivacy.flower.client import local
from fedprivacy.flower.client import release as release_module
from fedprivacy.flower.client.local import LocalClient
from fedprivacy.flower.client.node import Answerable, NodeSettings
from fedprivacy.flower.client.release import Released
from fedprivacy.guard import AlreadyChargedError, Guard
from fedprivacy.mechanisms import gaussian_sum
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import PoissonSampledGaussian
from tests.audit.gates.host import content_of, home_of

NOISE = gaussian_sum.add_lattice_noise


def failing(error):
    def check(*_):
        raise error

    return check


def gates(home, names=tuple(NODE_GATES), seed=1):
    """Findings of a deployed client's gates, by name."""
    node = Node.read(home)
    no_network = mock.patch.object(socket.socket, "connect", side_effect=AssertionError("an audit needs no network"))
    with silence(), no_network, Host.of(node) as host:
        audited = Audited.of(node.worst(), node.shard, seed=seed)
        return {name: NODE_GATES[name](audited, host) for name in names}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return home_of(tmp_path_factory.mktemp("host") / "sides")


@pytest.fixture(scope="module")
def hidden(tmp_path_factory):
    return home_of(tmp_path_factory.mktemp("host") / "hidden", task="Hidden")


DECIDED = (
    {"task": "Hidden", "disclose_shard_size": False, "least_noise_multiplier": 2.5},
    {"epsilon": 1e6, "records": 0},
    {"task": "Standardised", "questions": "count", "question_columns": "*"},
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("changed", DECIDED, ids=str)
def test_no_gate_fails_whatever_the_owner_decided(changed, tmp_path):
    found = gates(home_of(tmp_path / "host", **changed))
    assert all(gate.passed for gate in found.values()), found


# Bugs of the deployed path

CHARGE, SEAL, OPENED, CHECK, FACTS = (
    LocalClient.charge,
    LocalClient.seal,
    local._open_client,
    NodeSettings.check_grant,
    LocalClient.public_facts,
)
REFUSAL, RELEASED, GUARD, UPDATE = release_module.refusal, Released.of, Guard.charge, release_module.update
CHECKED, SEALED = Answerable.check, LocalClient.released_before


def charging_after_training(self, grant, released, room):
    CHARGE(self, grant)
    SEAL(self, grant, released, room)


def obeying(owner, context, task, config):
    run = dict(context.run_config)
    seed = run.pop("seed", None)
    opened = OPENED(owner, Context(1, 7, context.node_config, context.state, run), task, config)
    return opened if seed is None else replace(opened, seed=seed)


def charging_again(self, grant):
    with suppress(AlreadyChargedError):
        CHARGE(self, grant)


def talkative(message, code):
    reply = REFUSAL(message, code)
    reply.content["why"] = ConfigRecord({"text": "the shard has 83 records"})
    return reply


def charging_a_step(self, attempt, event, steps, **rest):
    GUARD(self, attempt, event, 1, **rest)


def charging_when_sent_again(self, grant):
    sealed = SEALED(self, grant)
    if sealed is not None:
        with suppress(AlreadyChargedError):
            CHARGE(self, replace(grant, attempt=grant.attempt + 1))
    return sealed


def forgetting(self, grant, released, room):
    with suppress(Exception):
        SEAL(self, grant, released, room)


def saying_more(message, released):
    reply = UPDATE(message, released)
    reply.content["seconds"] = ConfigRecord({"training": 1.5})
    return reply


def copied(self, standardise):
    inputs, targets = (torch.from_numpy(rows.numpy().copy()) for rows in (self.shard.inputs, self.shard.targets))
    return replace(self, shard=self.shard.holding(inputs, targets))


def checked_with(**settings):
    return [(NodeSettings, "check_grant", lambda self, grant: CHECK(replace(self, **settings), grant))]


def telling(**facts):
    """At enrolment the client tells these of itself."""
    of = lambda client: {name: fact(client) for name, fact in facts.items()}  # noqa: E731
    return [(LocalClient, "public_facts", lambda self: replace(FACTS(self), **of(self)))]


def unsigned(grant, trained, evaluated, key):
    return RELEASED(grant, trained, evaluated, None)


NOTHING = lambda *_, **__: None  # noqa: E731
QUICK = "The client's book changed though nothing was granted"

PLANTS = {  # by the gate's words
    QUICK: [(LocalClient, "released_before", charging_when_sent_again)],
    "A record is read before its charge is on the disk": [
        (LocalClient, "charge", NOTHING),
        (LocalClient, "seal", charging_after_training),
    ],
    "The client's book does not hold the charge": [(LocalClient, "charge", NOTHING), (LocalClient, "seal", NOTHING)],
    "A grant that costs more than the client's own budget is not refused": [(Guard, "charge", charging_a_step)],
    "a seed, by which a server could subtract the noise": [(local, "_open_client", obeying)],
    "a grant with less than the least noise": checked_with(least_noise_multiplier=0.29),
    "not, for that reason: a grant of more than the most steps": checked_with(most_steps=10**9),
    "a grant without a signature": [(NodeSettings, "_is_signed", lambda *_: True)],
    "a grant for other neighbours": [(LocalClient, "check_promise", NOTHING)],
    "The client says who it is to whom it should not": [(NodeSettings, "check_enrolment", NOTHING)],
    "Asked again, a client trains again for nothing (the same grant)": [
        (LocalClient, "released_before", NOTHING),
        (LocalClient, "charge", charging_again),
        (LocalClient, "seal", NOTHING),
    ],
    "A client that died while it trained trains the same grant again": [(LocalClient, "charge", charging_again)],
    "An update that was lost is trained again, though it was granted once": [
        (LocalClient, "charge", charging_again),
        (LocalClient, "seal", forgetting),
    ],
    "The client refuses a grant that its own configuration allows": [
        (LocalClient, "check_memory", failing(RuntimeError()))
    ],
    "A reply holds more than an update and its receipt": [(release_module, "update", saying_more)],
    "When the client reads its records could not be seen": [(LocalClient, "with_standardised_inputs", copied)],
    "At enrolment the client says something else than what is public": telling(spent=lambda _: ""),
    "with more than a constant code": [(release_module, "refusal", talkative)],
    "A receipt is not what was granted and sent, signed": [(Released, "of", staticmethod(unsigned))],
    "At enrolment the client says more than is public": telling(shard_size=lambda client: len(client.shard)),
}


@pytest.mark.parametrize(
    "words", [pytest.param(words, marks=[pytest.mark.exhaustive] * (words != QUICK)) for words in PLANTS]
)
def test_a_bug_of_the_deployed_path_is_named(words, home, hidden, monkeypatch):
    for plant in PLANTS[words]:
        monkeypatch.setattr(*plant)
    found = gates(hidden if "more than is public" in words else home, ("node",))["node"]
    assert any(words in reason for reason in found.reasons), found.reasons
    assert not any(character.isdigit() for character in "".join(found.reasons))  # an exact gate has no number to tell


@pytest.mark.exhaustive
def test_half_of_the_noise_is_named(home, monkeypatch):
    halved = lambda total, claimed, *rest: NOISE(total, claimed / 2, *rest)  # noqa: E731
    monkeypatch.setattr(gaussian_sum, "add_lattice_noise", halved)
    found = gates(home, ("node-noise",))["node-noise"]
    assert any("of updates is 0." in reason for reason in found.reasons), found.reasons


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "check",
    [NOTHING, lambda self, asked: CHECKED(replace(self, columns=frozenset({"*"})), asked)],
    ids=["any question is answered", "any column is looked at"],
)
def test_a_question_that_should_be_refused_is_noticed(check, tmp_path, monkeypatch):
    home = home_of(tmp_path / "host", task="Counted", questions="count", question_columns="x")
    (home / "hospital_tasks.py").write_text((home / "hospital_tasks.py").read_text().replace('"y"', f'"{NOBODY_S}"'))
    monkeypatch.setattr(Answerable, "check", check)
    found = gates(home, ("node",))
    assert any("question" in reason or "column" in reason for reason in found["node"].reasons), found["node"].reasons


@pytest.mark.exhaustive
def test_a_reader_that_lets_one_cell_change_other_records_is_noticed(tmp_path):
    home = home_of(tmp_path / "host", task="Guessing")
    rows = "".join(f"{n},{-n},{n % 2}\n" for n in range(30))
    (home / "records" / "people.csv").write_text(f"x,y,side\n{rows}")
    found = gates(home, ("reading",))["reading"]
    assert not found.passed and found.statistic == 3.0
    assert any("people.csv, column 'side': a text in one cell, and other records change" in r for r in found.reasons)
    assert all("fedprivacy.read_table" in reason for reason in found.reasons)


# What an audit leaves as it is


@pytest.fixture
def charged(tmp_path, monkeypatch):
    """A host that has trained before: its own guard holds a charge and a sealed update."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))  # of this test alone
    home = home_of(tmp_path / "host", task="Telling")
    own = Guard(home / "guard.log", PrivacyBudget(3.0, 1e-3))
    own.charge(Attempt("earlier", 1), PoissonSampledGaussian(0.5, 5.0), 1)
    own.seal(Attempt("earlier", 1), b"an update")
    return home


def left_behind():
    return list(Path(tempfile.gettempdir()).iterdir())


class Stopped(KeyboardInterrupt):
    """Ctrl-C."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("ends", [ValueError("SECRET"), Stopped()], ids=["failed", "stopped"])
def test_the_owner_s_guard_is_not_touched_however_the_audit_ends(ends, charged, monkeypatch):
    monkeypatch.setattr(auditor, "GATES", {"ends": failing(ends)})
    monkeypatch.setattr(auditor, "lower_bounds", lambda *_, **__: ())
    before = content_of(charged)
    assert any(".sealed/" in name for name in before)
    node = Node.read(charged)
    with pytest.raises(Stopped if isinstance(ends, Stopped) else NodeAuditError) as raised:
        audit_node(node, node.worst(), seed=1)
    assert content_of(charged) == before and not left_behind()
    assert "SECRET" not in "".join(traceback.format_exception(raised.value))


def test_a_client_that_dies_within_the_deployed_path_leaves_the_guard_alone(charged, monkeypatch):
    """Ctrl-C while the deployed client trains, in the middle of a gate."""
    before = content_of(charged)
    node = Node.read(charged)
    monkeypatch.setattr(LocalClient, "keystream", failing(Stopped()))
    with pytest.raises(Stopped):
        audit_node(node, node.worst(), seed=1)
    assert content_of(charged) == before and not left_behind()


def test_where_the_copy_of_the_configuration_is_not_obeyed_nothing_is_asked(charged, monkeypatch):
    """Else the owner's own book would be charged."""
    before, node, of = content_of(charged), Node.read(charged), NodeSettings.of
    monkeypatch.setattr(NodeSettings, "of", staticmethod(lambda given: replace(of(given), guard=node.settings.guard)))
    with Host.of(node) as host, pytest.raises(NotTheAuditorsError):
        host.client()
    assert content_of(charged) == before


# What is audited


def test_the_costliest_step_that_the_owner_allows_costs_the_whole_budget(home, tmp_path):
    assert Node.read(home_of(tmp_path / "host", least_noise_multiplier=4.0)).worst().noise.shared == 4.0
    node = Node.read(home)
    plan = node.worst()
    audited = Audited.of(plan, node.shard, seed=1)
    assert (audited.grant.sampling_rate, audited.grant.steps, audited.claim.rounds) == (1.0, 1, 1)
    assert 2.9 < audited.claim.epsilon <= 3.0 and audited.claim.delta == 1e-3


def test_a_run_is_planned_with_the_client_s_own_line_of_the_table(home):
    node = Node.read(home)
    own = {"noise_multiplier": 2.5, "sampling_rate": 0.125, "epsilon": 50.0}
    run = {"rounds": 4, "local-steps": 2, "batch-size": 8.0, "noise-multiplier": 1.0, "clients": 3}
    plan = node.make_plan(run | {"client-terms": json.dumps({node.settings.client_id: own, "another": {"epsilon": 1}})})
    assert (plan.noise.of(), plan.config.sampling_rate, plan.config.batch_size) == (2.5, 0.125, None)
    assert plan.config.epsilon == 3.0  # the owner's, whatever the table says


def test_a_run_is_planned_within_the_owner_s_budget(home):
    node = Node.read(home)
    run = {"rounds": 500, "local-steps": 2, "sampling-rate": 0.2, "noise-multiplier": 1.0, "clients": 3}
    plan = node.make_plan(run)
    assert (plan.config.epsilon, plan.config.delta, plan.config.sampling_rate) == (3.0, 1e-3, 0.2)
    assert 1 <= Audited.of(plan, node.shard).claim.rounds < 500  # then the budget is spent
    with pytest.raises(ConfigError, match="allows no round of the run"):
        node.make_plan({"rounds": 1, "local-steps": 1, "sampling-rate": 1.0, "noise-multiplier": 0.4})
    with pytest.raises(ConfigError, match=r"noise multiplier is 0\.2, and this client takes no grant below 0\.3"):
        node.make_plan({"noise-multiplier": 0.2})
