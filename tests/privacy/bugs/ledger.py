"""Bugs of the server's book."""

from tests.privacy.bugs import guarantees
from tests.privacy.bugs.bug import Bug

BUGS = (
    Bug(
        meaning="a ledger that was written anew passes for the one whose head was signed",
        place="fedprivacy.ledger.verify:_check_head",
        old="hashes[head.number] != head.hash",
        new="False",
        breaks=guarantees.UNSEEN,
        tests=("tests/ledger/test_verify.py::test_a_ledger_that_was_written_anew_contradicts_its_signed_head[sqlite]",),
    ),
    Bug(
        meaning="a client is granted what it is asked for, not what is left",
        place="fedprivacy.ledger.charges:within_budget",
        old="""
            min(
                steps,
                allowed(dataset_id, accounts.get(dataset_id, NOTHING_SPENT).history, in_force[dataset_id]),
            )
        """,
        new="""
            max(
                steps,
                allowed(dataset_id, accounts.get(dataset_id, NOTHING_SPENT).history, in_force[dataset_id]),
            )
        """,
        breaks=guarantees.BUDGET,
        tests=("tests/ledger/test_store.py::test_a_grant_is_the_smaller_of_wanted_and_allowed[sqlite]",),
    ),
    Bug(
        meaning="a confirmed charge is given back",
        place="fedprivacy.ledger.charges:settle_charges",
        old="was_void or state is ChargeState.VOID",
        new="not was_void",
        breaks=guarantees.LEDGER_FIRST,
        tests=("tests/ledger/test_store.py::test_reserved_and_committed_charges_count_and_void_ones_do_not[sqlite]",),
    ),
    Bug(
        meaning="a budget that has expired grants steps",
        place="fedprivacy.ledger.charges:within_budget",
        old="""
            {
                dataset_id: min(
                    steps,
                    allowed(dataset_id, accounts.get(dataset_id, NOTHING_SPENT).history, in_force[dataset_id]),
                )
                for dataset_id, steps in wanted.items()
                if not in_force[dataset_id].expired
            }
        """,
        new="""
            {
                dataset_id: min(
                    steps,
                    allowed(dataset_id, accounts.get(dataset_id, NOTHING_SPENT).history, in_force[dataset_id]),
                )
                for dataset_id, steps in wanted.items()
            }
        """,
        breaks=guarantees.BUDGET,
        tests=("tests/runs/test_accountant.py::test_nothing_is_granted_or_shown_as_left_once_a_budget_has_expired",),
    ),
    Bug(
        meaning="steps of one run hide what a client holds of another",
        place="fedprivacy.ledger.charges:steps_of_run",
        old="""
            select(func.sum(charges.c.steps)).where(
                charges.c.dataset_id == dataset_id,
                charges.c.run_id == run_id,
                charges.c.state != ChargeState.VOID,
                *(charges.c[name] == value for name, value in _columns(event).items()),
            )
        """,
        new="""
            select(func.sum(charges.c.steps)).where(
                charges.c.dataset_id == dataset_id,
                charges.c.state != ChargeState.VOID,
                *(charges.c[name] == value for name, value in _columns(event).items()),
            )
        """,
        breaks=guarantees.LEDGER_FIRST,
        tests=(
            "tests/ledger/test_store.py::test_claims_that_grow_are_charged_by_what_they_grew_each_in_its_own_run[sqlite]",
        ),
    ),
    Bug(
        meaning="charges are entered and their sum is not",
        place="fedprivacy.ledger.charges:_insert",
        old="_count(connection, rows, 1)",
        new="pass",
        breaks=guarantees.LEDGER_FIRST,
        tests=("tests/ledger/test_store.py::test_runs_and_mechanisms_add_up_on_one_ledger[sqlite]",),
    ),
    Bug(
        meaning="what a client holds more than the ledger is entered as nothing",
        place="fedprivacy.ledger.charges:charge_difference",
        old="claimed - held",
        new="held - held",
        breaks=guarantees.LEDGER_FIRST,
        tests=(
            "tests/ledger/test_store.py"
            "::test_what_another_run_charges_meanwhile_stops_the_client_that_it_concerns_and_no_other[sqlite]",
        ),
    ),
    Bug(
        meaning="what another run charges meanwhile is not read again",
        place="fedprivacy.ledger.changes",
        old='lambda entry: entry["charges"]',
        new="lambda _: ()",
        breaks=guarantees.LEDGER_FIRST,
        tests=(
            "tests/ledger/test_changes.py::test_what_another_program_writes_is_read_again_and_nothing_else",
            "tests/runs/test_odometer.py::test_after_any_acts_of_two_runs_every_client_is_read_as_from_scratch",
        ),
    ),
    Bug(
        meaning="a receipt of another round proves a charge",
        place="fedprivacy.ledger.verify:_check_receipt",
        old="key[1:] != Attempt.named_in(said)",
        new="False",
        breaks=guarantees.RECEIPTS,
        tests=("tests/ledger/test_verify.py::test_a_receipt_of_another_round_or_run_proves_no_charge[sqlite-round]",),
    ),
    Bug(
        meaning="a run by person is charged to what was charged by row",
        place="fedprivacy.ledger.store:Ledger.open_run",
        old="runs.c.unit != str(unit)",
        new="runs.c.unit != runs.c.unit",
        breaks=guarantees.LEDGER_FIRST,
        tests=("tests/ledger/test_store.py::test_another_unit_of_the_same_records_is_refused[sqlite-to persons]",),
    ),
    Bug(
        meaning="a receipt for another unit of privacy proves a charge",
        place="fedprivacy.ledger.verify:_check_receipt",
        old="unit_in(said) != run.unit",
        new="False",
        breaks=guarantees.RECEIPTS,
        tests=("tests/ledger/test_verify.py::test_a_run_whose_unit_was_written_anew_contradicts_its_receipts[sqlite]",),
    ),
    Bug(
        meaning="a receipt of another run proves a charge",
        place="fedprivacy.ledger.verify:_check_receipt",
        old="key[1:] != Attempt.named_in(said)",
        new="key[2:] != Attempt.named_in(said)[1:]",
        breaks=guarantees.RECEIPTS,
        tests=("tests/ledger/test_verify.py::test_a_receipt_of_another_round_or_run_proves_no_charge[sqlite-run]",),
    ),
    Bug(
        meaning="a certificate may state half of what its history costs",
        place="fedprivacy.ledger.certificate:Certificate.read",
        old="certificate.epsilon + _TOLERANCE",
        new="2.0 * certificate.epsilon + _TOLERANCE",
        breaks=guarantees.EPSILON,
        tests=(
            "tests/ledger/test_certificate.py"
            "::test_a_certificate_that_states_one_percent_less_than_its_history_or_a_question_costs_is_refused",
        ),
    ),
    Bug(
        meaning="a certificate may state half of what a question costs",
        place="fedprivacy.ledger.certificate:Certificate.read",
        old="stated + _TOLERANCE",
        new="2.0 * stated + _TOLERANCE",
        breaks=guarantees.EPSILON,
        tests=(
            "tests/ledger/test_certificate.py"
            "::test_a_certificate_that_states_one_percent_less_than_its_history_or_a_question_costs_is_refused",
        ),
    ),
)
