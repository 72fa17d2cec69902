"""The ledger holds what a plain list of charges would, in any order of acts, restarts and cut-off connections."""

import datetime
import tempfile
from collections import Counter
from contextlib import nullcontext

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from fedprivacy.ledger import Allowance, ChargeState, Ledger, LedgerError
from fedprivacy.ledger.journal import sign_head
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from tests.ledger.acts import COUNT, EVENT, KEY, MEAN, OTHER, answers_of, cut_off

DATASETS = ("a", "b", "c")
QUOTA = 20
LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
COMMITTED, RESERVED, VOID = ChargeState.COMMITTED, ChargeState.RESERVED, ChargeState.VOID

who = st.integers(0, 1)  # two programs use the ledger
rounds = st.tuples(st.sampled_from(["one", "two"]), st.integers(1, 3), st.integers(1, 2))  # run, round, attempt
some = st.sets(st.sampled_from(DATASETS), min_size=1)
states = st.sampled_from([COMMITTED, VOID])
events = st.sampled_from([EVENT, OTHER])
wanted = st.dictionaries(st.sampled_from(DATASETS), st.integers(1, 9), min_size=1)
cuts = st.sampled_from([*[None] * 8, "before", "after"])


def allowed(_, history, allowance):
    """A budget of epsilon is one of so many steps."""
    return int(allowance.budget.epsilon) - sum(history.values())


class Interleavings(RuleBasedStateMachine):
    """Acts on a ledger, each also done to a dictionary."""

    def __init__(self):
        super().__init__()
        self.url = self.new_url()
        self.ledgers = [Ledger(self.url), Ledger(self.url)]
        self.ledgers[0].open_budgets(dict.fromkeys(DATASETS, Allowance(PrivacyBudget(QUOTA, 1e-5), "adaptive")))
        self.charges = {}  # [event, steps, state] by dataset, run, round and attempt
        self.quota = dict.fromkeys(DATASETS, QUOTA)
        self.highest_quota = dict(self.quota)
        self.came_late = Counter()  # steps that count though no quota allowed them, by dataset
        self.released = Counter()  # steps whose update came, by dataset
        self.runs = {}  # how many others there were before it, by run
        self.answers = {}  # which of two answers was kept, by dataset, run, round and attempt, in their order

    def spent(self, dataset):
        return sum(steps for _, steps in self.standing(dataset))

    def standing(self, dataset):
        """(event, steps) of the charges that count."""
        return [
            (event, steps) for (d, *_), (event, steps, state) in self.charges.items() if d == dataset and state != VOID
        ]

    def cut(self, by, when):
        return nullcontext() if when is None else cut_off(self.ledgers[by], committed=when == "after")

    @rule(by=who, round=rounds, wanted=wanted, event=events, when=cuts, resumed=st.booleans())
    def reserve(self, by, round, wanted, event, when, resumed):
        known = {d: self.charges[d, *round] for d in wanted if (d, *round) in self.charges}
        expected = {d: steps for d, (e, steps, state) in known.items() if state != VOID and e == event}
        for dataset, steps in wanted.items():
            if dataset not in known and (grant := min(steps, self.quota[dataset] - self.spent(dataset))) > 0:
                expected[dataset] = grant
        act = self.ledgers[by].reserve
        with self.cut(by, when):
            if known and not resumed:
                with pytest.raises(LedgerError, match="charged before"):
                    act(Attempt(*round), event, wanted, allowed)
                return
            granted = act(Attempt(*round), event, wanted, allowed, resumed=resumed)
        assert granted == expected
        for dataset in expected.keys() - known.keys():
            self.charges[dataset, *round] = [event, granted[dataset], RESERVED]

    @rule(by=who, round=rounds, nth=st.none() | st.integers(0, 99), datasets=some, state=states, when=cuts)
    def settle(self, by, round, nth, datasets, state, when):
        """Receipts and refusals: the first, the same again, late ones, and some for charges that never were."""
        known = sorted({key[1:] for key in self.charges if key[2]})
        if known and nth is not None:
            round = known[nth % len(known)]
        with self.cut(by, when):
            self.ledgers[by].settle(Attempt(*round), datasets, state)
        for dataset in datasets:
            charge = self.charges.get((dataset, *round))
            if charge is None or charge[2] == COMMITTED or charge[2] == state:
                continue
            self.came_late[dataset] += charge[1] * (charge[2] == VOID)
            self.released[dataset] += charge[1] * (state == COMMITTED)
            charge[2] = state

    @rule(by=who, nth=st.integers(0, 99), datasets=some, shift=who, when=cuts)
    def keep_answers(self, by, nth, datasets, shift, when):
        """Answers to what was charged: the first, the same again, another one, and some to what nobody has paid for."""
        known = sorted({key[1:] for key in self.charges if key[2]}) or [("one", 1, 1)]
        attempt = Attempt(*known[nth % len(known)])
        paid = all(self.charges.get((d, *attempt), [RESERVED])[-1] == COMMITTED for d in datasets)
        same = all(self.answers.get((d, *attempt), shift) == shift for d in datasets)
        with self.cut(by, when), nullcontext() if paid and same else pytest.raises(LedgerError):
            self.ledgers[by].keep_answers(attempt, answers_of(*datasets, shift=shift))
        if paid and same:
            for dataset in sorted(datasets):
                self.answers.setdefault((dataset, *attempt), shift)
        self.reread(1 - by)

    def reread(self, by):
        for question, place in ((MEAN, 0), (COUNT, 1)):
            held = self.ledgers[by].answers(question, DATASETS)
            for dataset in DATASETS:
                found = [(each.attempt, each.totals) for each in held.get(dataset, [])]
                mine = {key[1:]: shift for key, shift in self.answers.items() if key[0] == dataset}
                assert found == [(k, answers_of(dataset, shift=s)[place].totals) for k, s in mine.items()]

    @rule(
        by=who,
        dataset=st.sampled_from(DATASETS),
        run=st.sampled_from(["one", "lost"]),
        event=events,
        more=who,
        when=cuts,
    )
    def reconcile(self, by, dataset, run, event, more, when):
        """A client's own figure: what the ledger has, or some steps more, or fewer."""
        mine = [c for (d, r, *_), c in self.charges.items() if (d, r, c[0]) == (dataset, run, event) and c[2] != VOID]
        claimed = max(0, sum(steps for _, steps, _ in mine) + 7 * more - 3)
        added = 4 * more
        with self.cut(by, when):
            self.ledgers[by].reconcile(dataset, {(run, event): claimed})
        if added:
            times = sum((d, r, n) == (dataset, run, 0) for d, r, n, _ in self.charges)
            self.charges[dataset, run, 0, times + 1] = [event, added, COMMITTED]
            self.came_late[dataset] += added

    @rule(by=who, dataset=st.sampled_from(DATASETS), quota=st.integers(1, 2 * QUOTA), expired=st.booleans(), when=cuts)
    def set_budget(self, by, dataset, quota, expired, when):
        with self.cut(by, when):
            self.ledgers[by].set_budget(dataset, PrivacyBudget(quota, 1e-5), LONG_AGO if expired else None, "why")
        self.quota[dataset] = 0 if expired else quota
        self.highest_quota[dataset] = max(self.highest_quota[dataset], quota)

    @rule(by=who)
    def restart(self, by):
        self.ledgers[by].close()
        self.ledgers[by] = Ledger(self.url)

    @rule(by=who, when=cuts)
    def sign(self, by, when):
        with self.cut(by, when):
            sign_head(self.ledgers[by].database, KEY)

    @rule(by=who, run=st.sampled_from(["one", "two", "three"]), when=cuts)
    def open_run(self, by, run, when):
        """What was entered before is entered again as it was."""
        before = self.runs.setdefault(run, len(self.runs))
        with self.cut(by, when):
            assert self.ledgers[by].open_run(run, "digits", "3 parts") == before
            self.ledgers[by].bind_keys({f"client of {run}": run})
            self.ledgers[by].open_budgets({f"new in {run}": Allowance(PrivacyBudget(QUOTA, 1e-5), "adaptive")})

    @invariant()
    def nothing_is_lost_counted_twice_or_overdrawn(self):
        for ledger in self.ledgers:
            accounts = ledger.accounts(DATASETS)
            for dataset in DATASETS:
                history = Counter()
                for event, steps in self.standing(dataset):
                    history[event] += steps
                assert (dataset in accounts) == bool(history)
                if history:
                    assert accounts[dataset].history == history
                    assert accounts[dataset].rounds == len(self.standing(dataset))
                spent = history.total()
                assert self.released[dataset] <= spent <= self.highest_quota[dataset] + self.came_late[dataset]

    def teardown(self):
        replay = verify_ledger(self.ledgers[0]).replay
        held = {
            tuple(key): [charge.noise_multiplier, charge.steps, charge.state] for key, charge in replay.charges.items()
        }
        assert held == {key: [event.noise_multiplier, *rest] for key, (event, *rest) in self.charges.items()}
        assert {key[:4] for key in replay.answers} == self.answers.keys()
        for ledger in self.ledgers:
            ledger.close()


class OnSqlite(Interleavings):
    def new_url(self):
        self.folder = tempfile.TemporaryDirectory()
        return f"sqlite:///{self.folder.name}/ledger.db"


OnSqlite.TestCase.settings = settings(OnSqlite.TestCase.settings, stateful_step_count=20)
test_acts_in_any_order_on_sqlite = pytest.mark.exhaustive(OnSqlite.TestCase)


@pytest.mark.soak
def test_acts_in_any_order_on_postgresql(postgres):
    class OnPostgresql(Interleavings):
        def new_url(self):
            return postgres.new_database()

    postgres.start()
    run_state_machine_as_test(OnPostgresql, settings=OnSqlite.TestCase.settings)
