"""The guard charges first, allows no more than the budget, and forgets nothing."""

import json
import math
import re
import tempfile
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fedprivacy._support import failpoints
from fedprivacy.accounting import FILTERS, AdaptiveFilter, MechanismChanged, pld
from fedprivacy.guard import (
    KEPT_UPDATES,
    AlreadyChargedError,
    BudgetExhaustedError,
    Guard,
    GuardError,
    InvalidGrantError,
    LogDamagedError,
    LogError,
    LogWriteError,
    QuestionsExhaustedError,
    SealError,
)
from fedprivacy.guard.frames import ENTRIES_AT, SLOT_AT
from fedprivacy.guard.log import EntryLog, identity_of
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import UNNAMED, NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.unit import Unit
from tests.guard.account import BUDGET, EVENT, key, kinds, payloads, sealed_folder
from tests.processes import KILLED, at_once, in_child

OTHER = PoissonSampledGaussian(0.1, 2.0, NeighbouringRelation.ZERO_OUT)
QUESTIONS = [PoissonSampledGaussian(1.0, noise, NeighbouringRelation.ZERO_OUT) for noise in (20.0, 60.0)]
QUOTA = FILTERS["fixed-mechanism"](BUDGET).quota({}, EVENT)


def updates(file):
    return sorted(path.name for path in sealed_folder(file).iterdir())


def test_a_grant_beyond_the_budget_is_refused_and_nothing_is_charged(file, guard):
    guard.charge(key(1), EVENT, QUOTA - 1)
    before = payloads(file)
    with pytest.raises(BudgetExhaustedError, match=r"epsilon 3\.0 at delta 1e-05.*allows 1 more steps.*asks for 2"):
        guard.charge(key(2), EVENT, 2)
    assert payloads(file) == before
    guard.charge(key(2), EVENT, 1)
    assert pld.epsilon(guard.history(), BUDGET.delta) <= BUDGET.epsilon


def test_a_replayed_grant_is_refused_and_a_new_attempt_or_round_is_charged(guard):
    guard.charge(key(1, 0), EVENT, 2)
    for steps in (1, 2, 3):
        with pytest.raises(AlreadyChargedError, match="run 'run', round 1, attempt 0"):
            guard.charge(key(1, 0), EVENT, steps, elsewhere={EVENT: 50})
    assert guard.history() == {EVENT: 2}
    guard.charge(key(1, 1), EVENT, 2)
    guard.charge(key(2, 0), EVENT, 2)
    assert guard.history() == {EVENT: 6}


def test_an_unknown_filter_is_refused_before_a_file_is_made(file):
    with pytest.raises(ValueError, match=r"filter is 'none'; choose one of fixed-mechanism, adaptive"):
        Guard(file, BUDGET, "none")
    assert not file.exists()


def test_what_the_server_counts_beyond_the_client_counts_from_then_on(file, guard):
    guard.charge(key(1), EVENT, 2, elsewhere={EVENT: 2})
    assert kinds(file) == ["charge"]
    guard.charge(key(2), EVENT, 3, elsewhere={EVENT: 15})
    assert kinds(file) == ["charge", "correction", "charge"]
    correction = json.loads(payloads(file)[1])
    assert (correction["client_steps"], correction["server_steps"]) == (2, 12)
    assert (correction["run_id"], correction["round"]) == ("run", 2)
    assert Guard(file, BUDGET).history() == {EVENT: 15}
    assert guard.by_run() == {"run": {EVENT: 5}, UNNAMED: {EVENT: 10}}  # it states all that it knows
    guard.charge(key(3), EVENT, 1, elsewhere={EVENT: 16})
    assert kinds(file)[3:] == ["charge"]


def test_what_the_client_counts_beyond_the_server_stands(guard):
    guard.charge(key(1), EVENT, 9)
    guard.charge(key(2), EVENT, 1, elsewhere={EVENT: 1})
    guard.charge(key(3), EVENT, 1)
    assert guard.history() == {EVENT: 11}


def test_what_the_server_s_ledger_lacks_is_noted_with_the_charge(file):
    guard = Guard(file, BUDGET, "adaptive")
    stated = [({EVENT: 2}, 0), ({EVENT: 2}, 2), ({EVENT: 6}, 0), ({OTHER: 2}, 6), ({}, 0), ({EVENT: 7, OTHER: 4}, 1)]
    for round, (elsewhere, _) in enumerate(stated):
        guard.charge(key(round), OTHER if OTHER in elsewhere else EVENT, 2, elsewhere=elsewhere)
    for each in (guard, Guard(file, BUDGET)):
        assert [charge.beyond for charge in each.charges()] == [beyond for _, beyond in stated]


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"attempt": key(run_id="x" * 129)}, "run_id has 129 characters; choose 1 to 128"),
        ({"attempt": key(run_id="")}, "run_id has 0 characters"),
        ({"attempt": key(run_id="\ud800")}, "printable"),
        ({"attempt": key(round=-1)}, "round is -1; choose an integer from 0"),
        ({"attempt": key(attempt=2**63)}, "attempt is 9223372036854775808"),
        ({"steps": 0}, "steps is 0; choose an integer from 1"),
        ({"steps": 1.5}, "steps is 1.5"),
        ({"elsewhere": {EVENT: -1}}, "elsewhere: the history counts"),
        ({"elsewhere": {EVENT: math.inf}}, "elsewhere"),
        ({"elsewhere": {EVENT: 2**64}}, "elsewhere is 18446744073709551616"),
        ({"elsewhere": {EVENT: 1, PoissonSampledGaussian(0.1, 1.0): 1}}, "elsewhere: the history mixes"),
    ],
)
def test_a_grant_that_cannot_be_written_down_is_refused_before_anything_is_written(file, guard, changed, wrong):
    grant = {"attempt": key(), "event": EVENT, "steps": 1} | changed
    with pytest.raises(InvalidGrantError, match=wrong) as raised:
        guard.charge(**grant)
    assert isinstance(raised.value, ValueError)
    assert isinstance(raised.value, GuardError)
    assert payloads(file) == []


def test_a_sealed_update_is_for_the_server_that_opened_the_run(file, guard):
    own = "ab" * 32
    guard.charge(key(1), EVENT, 1, run_key=own)
    guard.seal(key(1), b"update")
    assert guard.sealed_update(key(1), run_key=own) == b"update"
    for other in ("another", "", own[:-1], own + "0", own[:-1] + "c", "c" + own[1:], own.upper()):
        with pytest.raises(InvalidGrantError, match="opened under the key"):
            guard.sealed_update(key(1), run_key=other)
        with pytest.raises(InvalidGrantError, match="opened under the key"):
            guard.charge(key(2), EVENT, 1, run_key=other)


def test_a_filter_that_nobody_names_stays_the_one_of_the_last_charge(file):
    """Another version's default must not change what was promised."""
    Guard(file, BUDGET, "fixed-mechanism").charge(key(1), EVENT, 1)
    with pytest.raises(MechanismChanged):
        Guard(file, BUDGET).charge(key(2), OTHER, 1)
    Guard(file, BUDGET).charge(key(3), EVENT, 1)
    assert {charge.allowance.filter for charge in Guard(file, BUDGET).charges()} == {"fixed-mechanism"}


def test_two_processes_that_charge_at_once_share_one_budget_and_lose_nothing(file, tmp_path):
    quota = FILTERS["fixed-mechanism"](BUDGET).quota({}, OTHER)

    def client(name):
        guard, charged = Guard(file, BUDGET), 0
        try:
            for round in range(quota + 1):
                guard.charge(key(round, run_id=name), OTHER, 3)
                charged += 3
        except BudgetExhaustedError:
            (tmp_path / name).write_text(str(charged))

    assert at_once(lambda: client("a"), lambda: client("b")) == [0, 0]
    told = {name: int((tmp_path / name).read_text()) for name in "ab"}
    assert sum(told.values()) == quota - quota % 3
    assert Guard(file, BUDGET).by_run() == {name: {OTHER: steps} for name, steps in told.items() if steps}


def test_a_relation_that_is_promised_while_a_quota_is_solved_refuses_the_charge(file, monkeypatch):
    from fedprivacy.guard import guard as module

    untried, private = module.filter_of, replace(OTHER, relation=NeighbouringRelation.ADD_OR_REMOVE_ONE)

    def promising(allowance):
        Guard(file, BUDGET).promise(NeighbouringRelation.ZERO_OUT)
        return untried(allowance)

    monkeypatch.setattr(module, "filter_of", promising)
    with pytest.raises(LogError, match="promises zero-out"):
        Guard(file, BUDGET).charge(key(1), private, 1)
    assert Guard(file, BUDGET).history() == {}


@pytest.mark.parametrize(
    ("round", "run_key", "unit", "refused"),
    [
        (1, "", Unit(), (AlreadyChargedError, "was charged before")),
        (2, "another", Unit(), (InvalidGrantError, "was opened under the key")),
        (2, "", Unit("patient", 8), (LogError, "promises the unit of privacy")),
    ],
)
def test_what_another_process_charges_while_a_quota_is_solved_refuses_what_it_would_have_before(
    file, monkeypatch, round, run_key, unit, refused
):
    from fedprivacy.guard import guard as module

    untried, guard = module.filter_of, Guard(file, BUDGET, unit=unit)

    def charging(allowance):
        monkeypatch.setattr(module, "filter_of", untried)
        Guard(file, BUDGET).charge(key(1), EVENT, 1)
        return untried(allowance)

    monkeypatch.setattr(module, "filter_of", charging)
    kind, words = refused
    with pytest.raises(kind, match=words):
        guard.charge(key(round), EVENT, 1, run_key=run_key)
    assert kinds(file) == ["charge"]


UNITS = [(Unit(), Unit("patient", 8)), (Unit("patient", 8), Unit()), (Unit("patient", 8), Unit("patient", 4))]


@pytest.mark.parametrize(("before", "after"), UNITS, ids=["to persons", "to rows", "to fewer rows"])
def test_an_account_keeps_its_unit_of_privacy(file, before, after):
    """A charge by one unit says nothing of another, whichever comes first; so does a refused correction."""
    with pytest.raises(BudgetExhaustedError):
        Guard(file, BUDGET, unit=before).charge(key(1), EVENT, QUOTA, elsewhere={EVENT: QUOTA + 1})
    promised = ["relation"] * (before != Unit())
    assert kinds(file) == [*promised, "correction"]
    Guard(file, BUDGET, unit=before).charge(key(1), EVENT, 2)
    other = Guard(file, BUDGET, unit=after)
    acts = [
        lambda: other.charge(key(2), EVENT, 1, elsewhere={EVENT: 50}),
        lambda: other.check(EVENT.relation),
        lambda: other.promise(EVENT.relation),
        lambda: other.quota(EVENT),
        lambda: other.noise_multiplier(0.1, 5, EVENT.relation),
    ]
    both = re.escape(f"promises the unit of privacy '{before}', and the task's is '{after}'")
    for act in acts:
        with pytest.raises(LogError, match=f"{both}.*fedprivacy guard renew"):
            act()
    Guard(file, BUDGET, unit=before).charge(key(2), EVENT, 1)
    assert Guard(file, BUDGET).history() == {EVENT: 4}
    assert kinds(file) == [*promised, "correction", "charge", "charge"]


def test_another_update_is_not_sealed_in_the_place_of_one_and_the_same_one_is_no_error(file, guard):
    guard.charge(key(1), EVENT, 2)
    guard.seal(key(1), b"update")
    guard.seal(key(1), b"update")
    assert kinds(file) == ["charge", "sealed"]
    entry = json.loads(payloads(file)[1])
    assert entry["sha256"] == sha256(b"update").hexdigest() and updates(file) == [entry["name"]]
    with pytest.raises(SealError, match="another sealed update"):
        Guard(file, BUDGET).seal(key(1), b"another update")
    assert guard.sealed_update(key(1)) == b"update"


def test_only_the_newest_updates_are_kept(guard):
    names = [key(round, run_id=run_id) for round in range(1, 4) for run_id in ("one", "two")]
    for name in names:
        guard.charge(name, EVENT, 1)
        guard.seal(name, str(name).encode())
    kept = [name for name in names if guard.sealed_update(name) == str(name).encode()]
    assert kept == names[-KEPT_UPDATES:] and guard.sealed_update(names[0]) is None


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b + b"\0", lambda b: b"U" + b[1:]])
def test_a_sealed_update_that_is_torn_or_damaged_is_not_sent(file, guard, damage):
    guard.charge(key(1), EVENT, 2)
    guard.seal(key(1), b"update")
    (path,) = sealed_folder(file).iterdir()
    path.write_bytes(damage(b"update"))
    assert guard.sealed_update(key(1)) is None and guard.adopt_update(key(1)) is None
    path.unlink()
    assert guard.sealed_update(key(1)) is None
    assert guard.history() == {EVENT: 2}


def test_a_run_s_name_cannot_lead_out_of_the_folder(file, guard):
    names = [key(run_id=name) for name in ("../../etc/passwd", "/etc/passwd", ".", "a/..")]
    for name in names:
        guard.charge(name, EVENT, 1)
        guard.seal(name, b"update")
    assert set(file.parent.iterdir()) == {file, sealed_folder(file)}
    assert all(len(name) == 64 + len(".update") for name in updates(file))


def test_an_update_that_the_disk_refuses_is_not_sealed_and_its_charge_stands(file, guard):
    guard.charge(key(1), EVENT, 2)
    Path(f"{file}.{identity_of(file)}.sealed").write_text("no folder")
    with pytest.raises(LogWriteError, match="Nothing more was recorded"):
        guard.seal(key(1), b"update")
    assert kinds(file) == ["charge"]


@pytest.mark.parametrize(
    "payload",
    [
        b"{}",
        b"no JSON",
        b"[]",
        b'{"kind":"refund","run_id":"r","round":1,"attempt":0}',
        b'{"kind":"relation","relation":"zero-out","time":""}',  # without a unit, as an older form had it
    ],
)
def test_a_whole_entry_that_makes_no_sense_is_damage_each_time_that_it_is_read(file, guard, payload):
    guard.charge(key(1), EVENT, 2)
    with EntryLog(file).transaction() as append:
        append(payload)
    at = file.stat().st_size - len(payload) - 16
    for reader in (guard, guard, Guard(file, BUDGET)):
        with pytest.raises(LogDamagedError, match=f"byte {at}: this is no entry of a guard"):
            reader.charge(key(2), EVENT, 1)


@pytest.mark.parametrize(
    ("point", "times", "charged", "sealed"),
    [
        ("guard.before-slot", 1, False, False),
        ("guard.slot-written", 1, True, False),
        ("guard.appended", 1, True, False),
        ("client.seal-written", 1, True, False),
        ("client.seal-named", 1, True, False),
        ("guard.before-slot", 2, True, False),
        ("guard.slot-written", 2, True, True),
        ("guard.appended", 2, True, True),
    ],
)
def test_a_client_killed_anywhere_has_counted_what_it_could_have_sent_and_repeats_nothing(
    file, guard, point, times, charged, sealed
):
    guard.charge(key(1), EVENT, 2)

    def client():
        failpoints.arm(point, times)
        again = Guard(file, BUDGET)
        again.charge(key(2), EVENT, 3)
        again.seal(key(2), b"update")

    assert in_child(client) == KILLED
    after = Guard(file, BUDGET)
    assert after.history() == {EVENT: 5 if charged else 2}
    assert after.sealed_update(key(2)) == (b"update" if sealed else None)
    if charged:
        with pytest.raises(AlreadyChargedError):
            after.charge(key(2), EVENT, 3)
    else:
        after.charge(key(2), EVENT, 3)
    after.seal(key(2), b"update")
    assert after.history() == {EVENT: 5}
    assert Guard(file, BUDGET).sealed_update(key(2)) == b"update"
    assert len(updates(file)) == 1, "what a crash left behind is tidied up"


class GuardMachine(RuleBasedStateMachine):
    """Any sequence of grants, seals, restarts and torn writes, beside a model of what must be counted."""

    keys = st.builds(Attempt, st.sampled_from(["one", "two", "questions-1"]), st.integers(0, 4), st.integers(0, 1))
    events = st.sampled_from([EVENT, OTHER, *QUESTIONS])
    signers = st.sampled_from(["", "", "", "foreign"])

    @initialize(epsilon=st.sampled_from([2.0, 3.0, 8.0]))
    def begin(self, epsilon):
        self.folder = tempfile.TemporaryDirectory()
        self.file = Path(self.folder.name) / "guard.log"
        self.budget = PrivacyBudget(epsilon, 1e-5)
        self.own = PrivacyBudget(epsilon / 4, 1e-5)
        self.filter, self.of_questions = AdaptiveFilter(self.budget), AdaptiveFilter(self.own)
        self.asked = Counter()  # of what is counted, what may be an answer
        self.counted, self.charged, self.signed, self.sealed = Counter(), {}, {}, {}
        self.reopen()

    @rule()
    def reopen(self):
        self.guard = Guard(self.file, self.budget, "adaptive")

    @rule(key=keys, event=events, steps=st.integers(1, 60), signer=signers)
    def grant(self, key, event, steps, signer):
        self._charge(key, event, steps, signer, {})

    @rule(key=keys, event=events, steps=st.integers(1, 9), claimed=st.dictionaries(events, st.integers(0, 60)))
    def grant_with_a_claim(self, key, event, steps, claimed):
        self._charge(key, event, steps, self.signed.get(key.run_id, ""), claimed)

    def _charge(self, key, event, steps, signer, claimed):
        expected, words = self._expected(key, event, steps, signer, claimed)
        try:
            self.guard.charge(key, event, steps, run_key=signer, elsewhere=claimed, of_questions=self.own)
            raised, told = None, ""
        except GuardError as error:
            raised, told = type(error), str(error)
        assert raised is expected and words in told

    def _expected(self, key, event, steps, signer, claimed):
        if key.asks and event not in QUESTIONS:
            return InvalidGrantError, "asks questions"
        if self.signed.get(key.run_id, signer) != signer:
            return InvalidGrantError, "was opened under the key"
        if key in self.charged:
            return AlreadyChargedError, "was charged before"
        for claim, count in claimed.items():
            more = max(0, count - (steps if claim == event else 0) - self.counted[claim])
            self.counted[claim] += more
            self.asked[claim] += more * (claim in QUESTIONS)
        if self.filter.quota(+self.counted, event) < steps:
            return BudgetExhaustedError, "This client's own budget"
        if key.asks and self.of_questions.quota(+self.asked, event) < steps:
            return QuestionsExhaustedError, "question-epsilon is"
        self.counted[event] += steps
        self.asked[event] += steps * key.asks
        self.charged[key] = (event, steps)
        self.signed[key.run_id] = signer
        return None, ""

    @rule(key=keys, update=st.binary(max_size=3))
    def seal(self, key, update):
        before = self.sealed.get(key, update)
        try:
            self.guard.seal(key, update)
            self.sealed[key] = update
            raised = False
        except SealError:
            raised = True
        assert raised == (key not in self.charged or before != update)

    @rule(share=st.floats(0, 1))
    def tear_the_last_entry(self, share):
        data = self.file.read_bytes()
        length = int.from_bytes(data[SLOT_AT + 8 : SLOT_AT + 12], "big") + 16
        if len(data) > ENTRIES_AT:
            self.file.write_bytes(data[: len(data) - round(share * length)])

    @rule(at=st.integers(SLOT_AT, SLOT_AT + 300), bit=st.integers(0, 7))
    def tear_the_slot(self, at, bit):
        self.guard.history()  # a tail that is torn as well would be a second fault
        data = bytearray(self.file.read_bytes())
        data[at] ^= 1 << bit
        self.file.write_bytes(data)
        self.guard.history()

    @invariant()
    def everything_counts_and_nothing_else(self):
        reader = Guard(self.file, self.budget, "adaptive")
        assert reader.history() == +self.counted
        assert {c.attempt: (c.event, c.steps) for c in reader.charges()} == self.charged
        for attempt in list(self.sealed)[-KEPT_UPDATES:]:
            assert reader.sealed_update(attempt, run_key=self.signed[attempt.run_id]) == self.sealed[attempt]

    def teardown(self):
        if hasattr(self, "folder"):
            released, answered = Counter(), Counter()
            for key, (event, steps) in self.charged.items():
                released[event] += steps
                answered[event] += steps * key.asks
            assert pld.epsilon(released, self.budget.delta) <= self.budget.epsilon
            assert pld.epsilon(+answered, self.own.delta) <= self.own.epsilon
            self.folder.cleanup()


GuardMachine.TestCase.settings = settings(GuardMachine.TestCase.settings, stateful_step_count=30)
test_any_sequence_counts_what_a_simple_model_counts = GuardMachine.TestCase
