"""Whole rounds with deployed clients: signed grants and receipts, two books, late and lost answers."""

import itertools
import json
import logging
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, RecordDict

from fedprivacy._support import signing
from fedprivacy._support.signing import client_key, server_key, server_public_key, sign
from fedprivacy._support.software import software
from fedprivacy.commands.ledger_tables import charges
from fedprivacy.flower import RoundFailedError
from fedprivacy.flower.server.accounts import RunAccounts
from fedprivacy.flower.server.checkpoint import load_checkpoint
from fedprivacy.flower.server.nodes import EnrolledClient
from fedprivacy.flower.wire.messages import GRANT, RECEIPT, Receipt
from fedprivacy.guard import Guard
from fedprivacy.ledger import ChargeState, Ledger, LedgerError, verify
from fedprivacy.ledger.certificate import certify
from fedprivacy.ledger.journal import FIRST_HASH, Entry, canonical, entry_hash, read_entries
from fedprivacy.ledger.replay import BrokenJournalError
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.runs.records.witnesses import WITNESS
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from tests.flower.deployment import DeployedGrid, deployed_plan, pem, start
from tests.flower.runs import answering


@pytest.fixture
def plan(tmp_path):
    return deployed_plan(tmp_path, noise_multiplier=2.0, epsilon=20.0)


def changed_replies(plan, change, name="hospital-1"):
    """The real ClientApp; one client's updates are changed on their way."""

    def changed(message, context, reply):
        return change(message, reply, context) if context.node_config["client-id"] == name else reply

    return answering(plan, changed)


def states_of(plan, name):
    """The outcomes of a client's charges, one after another."""
    return [charge["state"] for charge in charges(Ledger(plan.config.ledger), f"blobs/{name}")]


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    """The ledger's entries after a round."""
    folder = tmp_path_factory.mktemp("journal")
    plan = deployed_plan(folder, noise_multiplier=2.0, epsilon=20.0, rounds=1)
    start(plan, DeployedGrid(plan, folder))
    with Ledger(plan.config.ledger).database.reading() as connection:
        return list(read_entries(connection))


@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (lambda receipt, signature, key: [receipt, "00" * 104, key], "is not signed by its client"),
        (lambda receipt, signature, key: [receipt.replace('"steps": 2', '"steps": 1'), signature, key], "not signed"),
        (lambda receipt, signature, key: [receipt.replace(software().digest, "ab" * 32), signature, key], "not signed"),
        (lambda receipt, signature, key: [receipt, signature, key.replace("A", "B")], "comes with another key"),
        (lambda receipt, signature, key: [receipt, signature], "missing 1 required"),
        (lambda receipt, signature, key: ["[]", signature, key], "list indices"),
    ],
    ids=["signature", "text", "program", "key", "part", "other JSON"],
)
def test_a_receipt_that_its_client_did_not_sign_breaks_the_journal_though_every_hash_is_right(journal, forge, words):
    entries = [(entry.number, json.loads(entry.text)) for entry in journal]
    forged, last = [], FIRST_HASH
    for number, entry in entries:
        if entry["kind"] == "settlement":
            broken, receipts = number, entry["receipts"]
            receipts["blobs/hospital-1"] = forge(*receipts["blobs/hospital-1"])
        last = entry_hash(last, canonical(entry))
        forged.append(Entry(number, canonical(entry), last))
    with pytest.raises(BrokenJournalError, match=rf"entry {broken}: the receipt for blobs/hospital-1 .*{words}"):
        verify.verify_parts(forged, (), ())


def resigned(reply, grid, name, **changes):
    """The reply with another receipt, signed with the key of client `name`."""
    receipt = replace(Receipt.from_record(reply.content[RECEIPT]), **changes)
    key = client_key(grid.keys[name].private_key)
    receipt = replace(receipt, signature=sign(key, signing.RECEIPT, receipt.signed_bytes()))
    reply.content = RecordDict({**reply.content, RECEIPT: receipt.to_record()})
    return reply


def unsigned(reply, **changes):
    record = ConfigRecord({**Receipt.from_record(reply.content[RECEIPT]).to_record(), **changes})
    reply.content = RecordDict({**reply.content, RECEIPT: record})
    return reply


def with_update_of_another_model(reply):
    arrays = reply.content["arrays"]
    swapped = {name: type(array)(array.numpy() + 1) for name, array in arrays.items()}
    reply.content = RecordDict({**reply.content, "arrays": type(arrays)(swapped)})
    return reply


ANOTHER = f"fedprivacy 0.3.1 {'ab' * 32}"

FORGERIES = [
    (lambda grid, reply: unsigned(reply, signature=""), "forged-receipt"),
    (lambda grid, reply: unsigned(reply, signature="00" * 100), "forged-receipt"),
    (lambda grid, reply: unsigned(reply, clipping_norm=0.5), "forged-receipt"),
    (lambda grid, reply: unsigned(reply, software=ANOTHER), "forged-receipt"),
    (lambda grid, reply: unsigned(reply, software="<b>all is well</b>"), "malformed-receipt"),
    (lambda grid, reply: resigned(reply, grid, "hospital-2"), "forged-receipt"),
    (lambda grid, reply: resigned(reply, grid, "hospital-1", steps=1), "receipt-does-not-match-grant"),
    (lambda grid, reply: with_update_of_another_model(reply), "receipt-of-another-update"),
]


@pytest.mark.exhaustive
def test_a_forged_receipt_drops_the_update_and_the_charge_stays(tmp_path):
    """In each round another one."""
    plan = deployed_plan(tmp_path, noise_multiplier=2.0, epsilon=50.0, rounds=len(FORGERIES))
    forging = iter(FORGERIES)
    grid = DeployedGrid(plan, tmp_path, changed_replies(plan, lambda _, reply, __: next(forging)[0](grid, reply)))
    records = start(plan, grid).records
    assert [record.failures for record in records] == [{"hospital-1": reason} for _, reason in FORGERIES]
    assert all(record.participants == ("hospital-0", "hospital-2") for record in records)
    assert records[-1].spent["hospital-1"].steps == 2 * len(FORGERIES)
    certified, *_ = certify(Ledger(plan.config.ledger), (), server_public_key(server_key(plan.config.signing_key_file)))
    ran = {"software": software().name, "digest": software().digest}
    assert certified.client_ran == (ran | {"charges": len(FORGERIES)},) and certified.ran == (ran | {"runs": 1},)


def test_who_comes_with_another_key_than_at_first_is_left_out_and_nobody_else(plan, tmp_path):
    grid = DeployedGrid(plan, tmp_path)
    clients = [EnrolledClient(name, 30, 0, pem(grid.keys[name]), {}) for name in grid.names.values()]
    accounts = RunAccounts(plan, "run", clients)
    assert accounts.admit(clients) == [] and not accounts.left_out
    (problem,) = accounts.admit([replace(clients[0], public_key=clients[1].public_key), *clients[1:]])
    assert "another key than at its first round" in str(problem) and accounts.left_out == {"hospital-0"}
    accounts.close()


class Slow(DeployedGrid):
    """One client's first answer comes when the next round has begun."""

    slow, rounds = None, 0

    def push_messages(self, messages):
        self.rounds += any("fedprivacy.grant" in message.content for message in messages)
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        replies = list(super().pull_messages(set(message_ids) - {self.slow} if self.rounds == 1 else message_ids))
        for reply in replies:
            if self.slow is None and reply.metadata.src_node_id == 1001 and RECEIPT in reply.content:
                self.slow = reply.metadata.reply_to_message_id
                self._replies[self.slow] = reply
        return [r for r in replies if self.rounds > 1 or r.metadata.reply_to_message_id != self.slow]


@pytest.mark.exhaustive
def test_a_late_receipt_confirms_its_charge_and_its_update_is_not_averaged(plan, tmp_path, caplog):
    plan = replace(plan, config=replace(plan.config, round_timeout=0.3))
    grid = Slow(plan, tmp_path)
    with caplog.at_level(logging.WARNING, "fedprivacy.server"):
        records = start(plan, grid).records
    assert [record.failures for record in records] == [{"hospital-1": "no-reply"}, {}, {}]
    assert [record.unreconciled for record in records] == [("hospital-1",), (), ()]
    assert "hospital-1 answered round 1 too late; its charge is confirmed" in caplog.text
    assert states_of(plan, "hospital-1") == [ChargeState.COMMITTED] * 3


@pytest.mark.parametrize("forgery", FORGERIES[4:7:2], ids=["malformed", "of another grant"])
def test_a_late_receipt_that_is_forged_confirms_nothing(plan, tmp_path, forgery, caplog):
    forge, reason = forgery

    def first(message, reply, context):
        return forge(grid, reply) if message.content[GRANT]["round"] == 1 else reply

    plan = replace(plan, config=replace(plan.config, round_timeout=0.3, rounds=2))
    grid = Slow(plan, tmp_path, changed_replies(plan, first))
    with caplog.at_level(logging.WARNING, "fedprivacy.server"):
        records = start(plan, grid).records
    assert [record.unreconciled for record in records] == [("hospital-1",)] * 2
    assert f"Client hospital-1 answered round 1 too late: {reason}." in caplog.text
    assert states_of(plan, "hospital-1") == [ChargeState.RESERVED, ChargeState.COMMITTED]


@pytest.mark.exhaustive
def test_a_refusal_of_what_was_executed_before_the_server_died_voids_nothing(plan, tmp_path):
    """The server comes back with another key, which its clients trust by now: their books keep to the key that opened
    the run, they refuse, and what they had released stays counted."""
    answers = itertools.count(1)

    def dying(message, context, reply):
        if next(answers) == 6:  # the last of round 2
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        start(plan, DeployedGrid(plan, tmp_path, answering(plan, dying)), run_id="run", checkpoints=tmp_path)
    other = replace(plan, config=replace(plan.config, signing_key=str(tmp_path / "another.key"), rounds=2))
    (tmp_path / WITNESS).unlink()
    with pytest.raises(RoundFailedError, match="grant-invalid"):
        start(other, grid := DeployedGrid(other, tmp_path), resume=load_checkpoint(tmp_path))
    for name in grid.names.values():
        assert grid.guard(plan, name).history() == {plan.event(): 4}
        assert states_of(plan, name) == ["committed", "reserved"]


@pytest.mark.exhaustive
def test_a_run_goes_on_only_on_the_ledger_that_it_knew(plan, tmp_path):
    """An older copy of the ledger was put back between the crash and the resumption."""
    file, older = plan.config.ledger.removeprefix("sqlite:///"), tmp_path / "older.db"

    def copy(record):
        if record.round == 1:
            with sqlite3.connect(file) as now, sqlite3.connect(older) as then:
                now.backup(then)

    two = replace(plan, config=replace(plan.config, rounds=2))
    start(two, DeployedGrid(plan, tmp_path), observers=[copy], checkpoints=tmp_path)
    for left in Path(file).parent.glob("ledger.db*"):
        left.unlink()
    older.replace(file)
    ledger = Ledger(plan.config.ledger)
    before = verify_ledger(ledger).head
    with pytest.raises(LedgerError, match=r"does not hold entry \d+ as it was signed"):
        start(plan, DeployedGrid(plan, tmp_path), resume=load_checkpoint(tmp_path), checkpoints=tmp_path)
    assert verify_ledger(ledger).head == before  # nothing was charged on it, and nobody was asked


@pytest.mark.exhaustive
def test_a_client_whose_book_does_not_go_with_the_run_is_left_out_alone(plan, tmp_path, monkeypatch, caplog):
    """By another mechanism, which the filter does not compose, or by another relation."""
    others = {
        "hospital-1": PoissonSampledGaussian(0.25, 1.0, NeighbouringRelation.ZERO_OUT),
        "hospital-2": PoissonSampledGaussian(0.5, 2.0, NeighbouringRelation.ADD_OR_REMOVE_ONE),
    }

    def by_run(guard):
        own = [event for name, event in others.items() if name in str(guard._file)]
        return {"elsewhere": dict.fromkeys(own, 3)} if own else {}

    monkeypatch.setattr(Guard, "by_run", by_run)
    plan = replace(plan, config=replace(plan.config, filter="fixed-mechanism"))
    records = start(plan, DeployedGrid(plan, tmp_path)).records
    assert all(record.participants == ("hospital-0",) for record in records)
    assert all(f"Client {name} is left out" in caplog.text for name in others)
