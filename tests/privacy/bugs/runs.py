"""Bugs of plans, accounts and the course of a run."""

from tests.privacy.bugs import guarantees
from tests.privacy.bugs.bug import Bug

BUGS = (
    Bug(
        meaning="a run that goes on takes its spend once more",
        place="fedprivacy.runs.accountant:CentralAccountant.enrol",
        old="without(history, own.get(dataset, NOTHING_SPENT).history)",
        new="history",
        breaks=guarantees.SPEND,
        tests=("tests/runs/test_accountant.py::test_a_run_that_goes_on_has_its_spend_once",),
    ),
    Bug(
        meaning="a mechanism that does not compose with the charges is granted all the same",
        place="fedprivacy.runs.accountant:_steps_left",
        old="return 0",
        new="return 1",
        breaks=guarantees.BUDGET,
        tests=(
            "tests/ledger/test_store.py"
            "::test_what_another_run_charges_meanwhile_stops_the_client_that_it_concerns_and_no_other[sqlite]",
        ),
    ),
    Bug(
        meaning="epsilon is shown for the last round alone",
        place="fedprivacy.runs.odometer:Odometer._epsilons",
        old="account.history.items()",
        new="[(e, n // account.rounds) for e, n in account.history.items()]",
        breaks=guarantees.FIGURE,
        tests=("tests/flower/test_rounds.py::test_epsilon_composes_over_rounds_and_never_passes_the_budget",),
    ),
    Bug(
        meaning="a budget that ends during a run goes on being shown as open",
        place="fedprivacy.runs.odometer:Odometer.read",
        old="self._expired()",
        new="set()",
        breaks=guarantees.FIGURE,
        tests=(
            "tests/runs/test_odometer.py"
            "::test_a_budget_that_ends_between_two_readings_leaves_nothing_though_nobody_writes",
        ),
    ),
    Bug(
        meaning="what a receipt has confirmed is given back",
        place="fedprivacy.runs.accountant:CentralAccountant.commit",
        old="self._settle(attempt, receipts, ChargeState.COMMITTED)",
        new="self._settle(attempt, receipts, ChargeState.VOID)",
        breaks=guarantees.LEDGER_FIRST,
        tests=(
            "tests/runs/test_accountant.py::test_what_is_settled_is_the_attempt_that_is_named_and_the_first_if_none_is",
        ),
    ),
    Bug(
        meaning="a deployed client's answer is thrown away for a drop-out that was made up",
        place="fedprivacy.runs.participation:check_participation",
        old="deployed and made_up",
        new="False",
        breaks=guarantees.FIGURE,
        tests=("tests/flower/test_participation.py::test_nobody_makes_up_what_real_clients_do",),
    ),
    Bug(
        meaning="a client trains twice from one model, and its second training has the first one's noise",
        place="fedprivacy.participation.asynchronous:_Going._is_done",
        old="self.training.remove(dispatch)",
        new="""
            self.training.remove(dispatch)
            self.waiting[dispatch.client_id] = None
        """,
        breaks=guarantees.NO_REPEAT,
        tests=(
            "tests/participation/test_asynchronous.py"
            "::test_a_step_is_made_of_the_first_answers_of_this_round_and_of_rounds_before",
        ),
    ),
    Bug(
        meaning="a round's average is released first, and charged afterwards",
        place="fedprivacy.runs.user_level_book:UserLevelBook.charge",
        old='write(self._file, (json.dumps(entry) + "\\n").encode())',
        new="pass",
        breaks=guarantees.LEDGER_FIRST,
        tests=("tests/flower/test_user_level.py::test_a_round_is_on_the_disk_before_its_average_is_handed_on",),
    ),
    Bug(
        meaning="a round that is released again with other noise is charged once",
        place="fedprivacy.runs.user_level_book:UserLevelBook._is_paid",
        old="self._repeatable and (attempt.round, attempt.attempt) in self._charged",
        new="(attempt.round, attempt.attempt) in self._charged",
        breaks=guarantees.LEDGER_FIRST,
        tests=(
            "tests/runs/test_user_level_book.py"
            "::test_a_release_that_is_made_again_after_a_crash_is_charged_again_unless_it_has_the_same_bits",
        ),
    ),
    Bug(
        meaning="all clients of a batch size add the noise that the largest shard needs",
        place="fedprivacy.runs.plans.plan:RunPlan.least_noise",
        old="disclosed.get(client_id, 0)",
        new="max(disclosed.values(), default=0)",
        breaks=guarantees.SAMPLED,
        tests=(
            "tests/flower/test_noise_by_rate.py"
            "::test_every_client_spends_its_whole_budget_and_no_more_and_the_smaller_its_shard_the_more_noise_it_adds",
        ),
    ),
    Bug(
        meaning="the noise for a client's own rate forgets what the client has spent before",
        place="fedprivacy.runs.plans.standing:Standing.alike",
        old="frozenset(self.past.items())",
        new="frozenset()",
        breaks=guarantees.BUDGET,
        tests=("tests/flower/test_noise_by_rate.py::test_who_has_spent_before_adds_the_least_noise_after_that",),
    ),
    Bug(
        meaning="a run that goes on finds each client's noise anew, and not the one that it has charged",
        place="fedprivacy.runs.plans.plan:RunPlan.events_of",
        old="{c: noise for c, s in seeking.items() if (noise := s.charged_at(rates[c])) is not None}",
        new="{}",
        breaks=guarantees.SAMPLED,
        tests=(
            "tests/flower/test_noise_by_rate.py"
            "::test_a_deployed_run_that_is_killed_goes_on_with_the_noise_that_each_client_had",
        ),
    ),
    Bug(
        meaning="a deadline is counted from the beginning of the run, and not of the round",
        place="fedprivacy.participation.participation:Participation.closes",
        old="began + self.deadline",
        new="self.deadline",
        breaks=guarantees.FIGURE,
        tests=("tests/flower/test_participation.py::test_a_deadline_is_counted_from_the_beginning_of_its_own_round",),
    ),
)
