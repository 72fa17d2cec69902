"""Bugs that would weaken a guarantee, planted one at a time: the tests must notice each.

    python -m tests.privacy.mutants

A mutant is described by what it means; the line is how it is planted today. When the code has moved on and the old
text is gone, plant the same meaning in the new text. `benchmarks.mutation` tries every small change instead of
these, and takes an hour.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from tests.privacy.workbench import ROOT, Workbench, import_heavy

LIMIT = 60.0  # seconds for the tests of one mutant: many times what they need


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug.

    Attributes:
        meaning: what goes wrong for the people whose records these are.
        file: where it is planted, relative to the project.
        old: the text that it replaces; stands in the file once.
        new: the text in its place.
        tests: the ones that must fail, as few and quick as will do.
    """

    meaning: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def planted_in(self, source: str) -> str:
        """The file's text with the bug.

        Raises:
            LookupError: the old text is not there, or not once.
        """
        if source.count(self.old) != 1:
            raise LookupError(
                f"{self.file} holds the text of the mutant '{self.meaning}' {source.count(self.old)} times, not once: "
                f"the code has moved on. Plant the same meaning in today's code in {Path(__file__).name}:\n{self.old}"
            )
        return source.replace(self.old, self.new)


CLIENT = "tests/flower/test_deployed_client.py"
MEMORY = "tests/gradients/test_memory.py"
EQUAL_ROWS = "tests/gradients/test_equal_rows.py"
VIEWS = "tests/training/test_augment.py"
ALGORITHMS = "tests/flower/test_algorithms.py"
GUARD = "tests/guard/test_guard.py"
SPEND = "tests/accounting/test_spend.py"
GAUSSIANS = "tests/accounting/test_gaussian_filter.py"
QUESTIONS = "tests/guard/test_questions.py"
LOG = "tests/guard/test_log.py"
STORE = "tests/ledger/test_store.py"
ROUNDS = "tests/flower/test_rounds.py"
PARTICIPATION = "tests/flower/test_participation.py"
COURSE = "tests/participation/test_asynchronous.py"
ASYNCHRONOUS = "tests/flower/test_asynchronous.py"
RELEASE = "tests/flower/test_release.py"
ACCOUNTANT = "tests/runs/test_accountant.py"
SUM = "tests/gradients/test_clipped_sum.py"
CLIPPING = "tests/gradients/test_clipping.py"
ADAPTIVE = "tests/training/test_adaptive.py"
SURVIVORS = "tests/privacy/test_survivors.py"
ASKED = "tests/privacy/test_questions_attacked.py"
REPLAYED = "tests/privacy/test_questions_replayed.py"
NEIGHBOURS = "tests/privacy/test_questions_neighbours.py"
STANDARDISED = "tests/privacy/test_standardised_attacked.py"
ANSWERED = "tests/flower/test_questions.py"
MOMENTS = "tests/questions/test_moments.py"
CLOPPER_PEARSON = "tests/audit/bounds/test_clopper_pearson.py"
FINE_TUNED = "test_fine_tuning_begins_at_the_global_model_whatever_an_algorithm_kept_before"
STACKED = "tests/gradients/test_stacked.py"
TOGETHER = "tests/training/test_cohort.py"
PLAIN_SGD = "SGD(learning_rate=0.5, momentum=0.0, weight_decay=0.0)"
POPULATIONS = "tests/flower/test_cohorts.py"
BASELINE_COHORTS = "tests/flower/test_baseline_cohorts.py"
TERMS = "tests/flower/test_client_terms.py"
RATES = "tests/flower/test_noise_by_rate.py"
USER_LEVEL = "tests/training/test_user_level.py"
USER_LEVEL_RUNS = "tests/flower/test_user_level.py"
POPULATION = "tests/accounting/test_population.py"
WRITTEN = "tests/deploy/test_handouts.py"
HANDOUT = "fedprivacy/deploy/handout"
DASHBOARD = "tests/server/dashboard/test_security.py"
CERTIFICATE = "tests/ledger/test_certificate.py"
UNDERSTATED = "test_a_certificate_that_states_one_percent_less_than_its_history_or_a_question_costs_is_refused"
NOT_TRUSTED = f"{STACKED}::test_a_stack_that_computes_something_else_is_not_trusted"

NULL_ROWS = "tests/privacy/test_null_rows.py"
NO_BIT = "test_a_null_row_leaves_no_bit_and_a_record_in_its_place_moves_a_sum_by_the_clipping_norm"
NODE = "tests/flower/test_node.py"
DOOR = "tests/test_front_door.py"

MUTANTS: tuple[Mutant, ...] = (
    # The client's guard.
    Mutant(
        "the client trains first, and charges afterwards what it can",
        "fedprivacy/flower/client/app.py",
        """\
        client.charge(grant)
        client = client.standardised(standardise)
        keystream = client.keystream(grant)
        evaluated = client.evaluated(grant, measured, keystream)  # before training moves the model
        steps, number = grant.training_steps, grant.round
        trained = training.train(engine, client.shard, steps=steps, round=number, keystream=keystream, before=before)
""",
        """\
        client = client.standardised(standardise)
        keystream = client.keystream(grant)
        evaluated = client.evaluated(grant, measured, keystream)  # before training moves the model
        steps, number = grant.training_steps, grant.round
        trained = training.train(engine, client.shard, steps=steps, round=number, keystream=keystream, before=before)
        client.charge(grant)
""",
        (f"{CLIENT}::test_the_charge_comes_before_the_training_and_no_text_crosses",),
    ),
    Mutant(
        "the client trains one step more than it charged",
        "fedprivacy/flower/client/app.py",
        "steps, number = grant.training_steps, grant.round",
        "steps, number = grant.training_steps + 1, grant.round",
        (f"{ROUNDS}::test_epsilon_composes_over_rounds_and_never_passes_the_budget",),
    ),
    Mutant(
        "the guard's budget is compared off by one",
        "fedprivacy/guard/guard.py",
        "if left < steps:",
        "if left < steps - 1:",
        (f"{GUARD}::test_the_budget_is_kept_whatever_is_asked",),
    ),
    Mutant(
        "questions may take the whole budget",
        "fedprivacy/guard/guard.py",
        "if limit and may_be_asked < steps:",
        "if limit and may_be_asked < 0:",
        (f"{QUESTIONS}::test_answers_stop_at_their_own_budget_and_training_goes_on",),
    ),
    Mutant(
        "every question has the budget of all of them",
        "fedprivacy/guard/tally.py",
        "return entry.attempt.asks if isinstance(entry, ChargeEntry) else",
        "return False if isinstance(entry, ChargeEntry) else",
        (f"{QUESTIONS}::test_answers_stop_at_their_own_budget_and_training_goes_on",),
    ),
    Mutant(
        "questions that only the server's ledger holds may be asked again",
        "fedprivacy/guard/tally.py",
        "else is_unsampled_gaussian(entry.event)",
        "else False",
        (f"{QUESTIONS}::test_what_a_server_counts_beyond_the_client_is_taken_for_questions_where_it_may_be",),
    ),
    Mutant(
        "a replayed grant is trained again under its old charge",
        "fedprivacy/guard/guard.py",
        "if attempt in tally.charges:",
        "if attempt in tally.sealed:",
        (f"{GUARD}::test_a_replayed_grant_is_refused_and_a_new_attempt_or_round_is_charged",),
    ),
    Mutant(
        "what the server's ledger holds more is not believed",
        "fedprivacy/guard/guard.py",
        "if server_steps > client_steps:",
        "if False:",
        (f"{GUARD}::test_what_the_server_counts_beyond_the_client_counts_from_then_on",),
    ),
    Mutant(
        "a server can lower what the client has counted",
        "fedprivacy/guard/guard.py",
        "if server_steps > client_steps:",
        "if server_steps != client_steps:",
        (f"{GUARD}::test_what_the_client_counts_beyond_the_server_stands",),
    ),
    Mutant(
        "another server takes over a run, and gets what was sealed for the first",
        "fedprivacy/guard/guard.py",
        "if opened != signer:",
        "if not opened:",
        (f"{GUARD}::test_a_sealed_update_is_for_the_server_that_opened_the_run",),
    ),
    Mutant(
        "two different updates leave under one charge",
        "fedprivacy/guard/guard.py",
        "if before is not None and before.sha256 != digest:",
        "if before is not None and not digest:",
        (f"{GUARD}::test_another_update_is_not_sealed_in_the_place_of_one_and_the_same_one_is_no_error",),
    ),
    Mutant(
        "a sealed update is written down before it is on the disk",
        "fedprivacy/guard/guard.py",
        """\
            try:
                seals.write(file, update)
            except OSError as error:
                raise LogWriteError(file, error, undone=True) from error
            write(SealedEntry(attempt, name, digest, now()))
""",
        """\
            write(SealedEntry(attempt, name, digest, now()))
            try:
                seals.write(file, update)
            except OSError as error:
                raise LogWriteError(file, error, undone=True) from error
""",
        (
            "tests/guard/test_seals.py::test_update_name_and_folder_are_on_the_disk_before_the_log_says_that_it_is_sealed",
        ),
    ),
    Mutant(
        "the newest charge replaces the ones before it",
        "fedprivacy/guard/tally.py",
        "self.history.get(entry.event, 0) + entry.steps",
        "entry.steps",
        (f"{GUARD}::test_charges_add_up_over_rounds_runs_and_processes",),
    ),
    Mutant(
        "a sealed update that somebody changed is sent",
        "fedprivacy/guard/seals.py",
        "return update if sha256(update).hexdigest() == digest else None",
        "return update",
        (f"{GUARD}::test_a_sealed_update_that_is_torn_or_damaged_is_not_sent",),
    ),
    Mutant(
        "a charge stands on the disk once, so that one fault makes it disappear",
        "fedprivacy/guard/log.py",
        "            write_at(fd, frames.slot_block(frame), SLOT_AT)\n            reach",
        "            reach",
        (f"{LOG}::test_each_copy_of_an_entry_is_on_the_disk_before_the_next_write_begins",),
    ),
    Mutant(
        "a log that the disk does not give back is taken for an empty one",
        "fedprivacy/guard/log.py",
        """\
                self._read(fd)
            except OSError as error:
                raise LogWriteError(self.file, error, undone=True) from error
""",
        """\
                self._read(fd)
            except OSError:
                pass
""",
        ("tests/guard/test_tally.py::test_a_tally_that_the_disk_does_not_give_back_is_not_taken_for_an_empty_one",),
    ),
    Mutant(
        "two processes charge one budget at once",
        "fedprivacy/guard/log.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        (f"{LOG}::test_a_process_that_waits_too_long_is_told_so",),
    ),
    Mutant(
        "a log that lost entries since it was read is believed",
        "fedprivacy/guard/log.py",
        "if found.frames[: len(self._frames)] != self._frames or self.identity",
        "if self.identity",
        (f"{LOG}::test_a_log_that_lost_entries_since_it_was_read_is_noticed_though_it_looks_whole",),
    ),
    Mutant(
        "a grant that nobody signed counts",
        "fedprivacy/flower/client/node.py",
        "return signing.signed_by_server(self.server_key, message.purpose, message.signed_bytes(), message.signature)",
        "return True",
        (f"{CLIENT}::test_a_grant_that_its_server_did_not_sign_is_refused_before_anything_is_charged",),
    ),
    Mutant(
        "a deployed client answers a grant whoever sent it",
        "fedprivacy/flower/client/local.py",
        "        owner.check_grant(grant)\n",
        "        pass\n",
        ("tests/flower/test_apps.py::test_the_deployed_client_tells_another_server_nothing",),
    ),
    Mutant(
        "the server that the data owner named is not the only one",
        "fedprivacy/flower/client/node.py",
        """\
        if grant.server_key != self.server_key or not self._signed(grant):
""",
        """\
        if not signing.signed_by_server(grant.server_key, signing.GRANT, grant.signed_bytes(), grant.signature):
""",
        ("tests/flower/test_node.py::test_a_grant_is_held_against_the_configuration_before_anything_is_read",),
    ),
    Mutant(
        "a deployed client's noise comes from a seed that can be known",
        "fedprivacy/flower/client/local.py",
        "return Keystream.secret()",
        "return Keystream.from_seed(0, self.task.dataset)",
        (f"{CLIENT}::test_two_deployed_clients_never_share_noise",),
    ),
    Mutant(
        "the app that trains without privacy works in a deployment, too",
        "fedprivacy/flower/client/local.py",
        """\
    if _owner(context) is not None:
        raise Refused(RefusalCode.GRANT_INVALID, "This app""",
        """\
    if False:
        raise Refused(RefusalCode.GRANT_INVALID, "This app""",
        ("tests/privacy/test_baseline.py::test_its_app_deployed_all_the_same_refuses_every_message",),
    ),
    Mutant(
        "a private run can be given the books that charge nothing",
        "fedprivacy/flower/baseline/accounts.py",
        "        if config.privacy:\n",
        "        if False:\n",
        ("tests/privacy/test_baseline.py::test_nobody_trains_privately_without_being_charged",),
    ),
    Mutant(
        "the server's books take a run without privacy",
        "fedprivacy/flower/server/accounts.py",
        "        if not config.privacy:\n",
        "        if False:\n",
        ("tests/privacy/test_baseline.py::test_a_server_refuses_the_setting_before_anything_is_sent",),
    ),
    Mutant(
        "the number of records leaves though it is private",
        "fedprivacy/flower/client/local.py",
        "len(self.shard) if self.task.shard_sizes_public else 0",
        "len(self.shard)",
        (f"{ROUNDS}::test_private_shard_sizes_never_leave",),
    ),
    # What leaves the client.
    Mutant(
        "a receipt signs nothing about the update",
        "fedprivacy/flower/client/release.py",
        "found.update(array.tobytes())",
        "pass",
        (f"{RELEASE}::test_a_receipt_is_for_one_update_s_values_names_types_and_shapes",),
    ),
    Mutant(
        "a receipt is for an update's bytes, whatever they are the bytes of",
        "fedprivacy/flower/client/release.py",
        """        found.update(f"{name} {array.dtype.str} {array.shape}\\n".encode())\n""",
        "",
        (f"{RELEASE}::test_a_receipt_is_for_one_update_s_values_names_types_and_shapes",),
    ),
    Mutant(
        "a receipt says more noise than was added",
        "fedprivacy/flower/client/release.py",
        "client_id, steps, update.event, update",
        "client_id, steps, type(e := update.event)(e.sampling_rate, 2.0 * e.noise_multiplier, e.relation), update",
        (f"{ROUNDS}::test_epsilon_composes_over_rounds_and_never_passes_the_budget",),
    ),
    # Answers to questions.
    Mutant(
        "the client answers first, and charges afterwards what it can",
        "fedprivacy/flower/client/app.py",
        """\
        client.charge(grant)
        mechanism = GaussianAnswers(grant.event, client.answerable.smallest_cohort)
        answers = mechanism.release(asked, table, client.keystream(grant), Position(grant.round, 1))
""",
        """\
        mechanism = GaussianAnswers(grant.event, client.answerable.smallest_cohort)
        answers = mechanism.release(asked, table, client.keystream(grant), Position(grant.round, 1))
        client.charge(grant)
""",
        (f"{REPLAYED}::test_the_charge_is_on_the_disk_before_a_record_is_counted",),
    ),
    Mutant(
        "an answer is charged to nobody",
        "fedprivacy/flower/client/local.py",
        "        if self.guard is not None:\n            self.guard.charge(\n",
        "        if self.guard is not None and not grant.charged_as.asks:\n            self.guard.charge(\n",
        (f"{ANSWERED}::test_both_books_hold_the_charge_that_the_answer_cost",),
    ),
    Mutant(
        "questions have the client's whole budget, whatever its owner says",
        "fedprivacy/flower/client/local.py",
        "of_questions=self.answerable.budget,",
        "of_questions=None,",
        (f"{ANSWERED}::test_questions_have_a_budget_of_their_own",),
    ),
    Mutant(
        "an attempt that was paid for one question is answered with it for another",
        "fedprivacy/flower/client/app.py",
        "    elif not released.answers(grant):\n",
        "    elif False:\n",
        (f"{REPLAYED}::test_another_grant_for_an_attempt_that_was_answered_is_refused",),
    ),
    Mutant(
        "a receipt for answers does not say to which questions",
        "fedprivacy/flower/client/release.py",
        'update=digest(arrays, grant.questions) if key else "",',
        'update=digest(arrays) if key else "",',
        (f"{REPLAYED}::test_a_receipt_is_for_these_answers_to_these_questions",),
    ),
    Mutant(
        "the data owner's list is not read",
        "fedprivacy/flower/client/app.py",
        "    client.answerable.check(asked)\n",
        "",
        (f"{ASKED}::test_what_the_list_does_not_name_is_refused_wherever_it_stands",),
    ),
    Mutant(
        "the list of columns holds for what is summed, and not for conditions and groups",
        "fedprivacy/questions/question.py",
        "return frozenset((*self.reads, *looked_at))",
        "return frozenset(self.reads or looked_at)",
        (f"{ASKED}::test_what_the_list_does_not_name_is_refused_wherever_it_stands",),
    ),
    Mutant(
        "the list of kinds holds for the first question alone",
        "fedprivacy/questions/questionnaire.py",
        "return frozenset(question.kind for question in self.questions)",
        "return frozenset(question.kind for question in self.questions[:1])",
        (f"{ASKED}::test_what_the_list_does_not_name_is_refused_wherever_it_stands",),
    ),
    Mutant(
        "the least noise holds for training alone",
        "fedprivacy/flower/client/node.py",
        "if grant.noise_multiplier < self.least_noise_multiplier:",
        "if isinstance(grant, Grant) and grant.noise_multiplier < self.least_noise_multiplier:",
        (f"{ASKED}::test_less_noise_than_the_data_owner_wants_is_refused_whatever_the_shares",),
    ),
    Mutant(
        "a signature of a grant for training is one for questions, too",
        "fedprivacy/flower/wire/messages.py",
        "name, purpose = QUESTION_GRANT, signing.QUESTIONS",
        "name, purpose = QUESTION_GRANT, signing.GRANT",
        (f"{ASKED}::test_a_signature_that_was_made_for_something_else_is_none",),
    ),
    Mutant(
        "a grant for training may call itself a question",
        "fedprivacy/flower/wire/messages.py",
        "if self.earlier_runs < 0 or self.charged_as.asks:",
        "if self.earlier_runs < 0:",
        (f"{ASKED}::test_a_grant_for_training_asks_nothing_and_one_for_questions_trains_nothing",),
    ),
    Mutant(
        "a column's name begins a line of the client's log",
        "fedprivacy/questions/errors.py",
        "not name.isprintable()",
        "not is_writable(name)",
        (f"{ASKED}::test_what_a_server_asks_cannot_forge_a_line_in_the_client_s_log",),
    ),
    Mutant(
        "the sensitivity of sums and means is that of their count",
        "fedprivacy/questions/moments.py",
        "return sum(weight**2 for weight in self.weights)",
        "return self.weights[0] ** 2",
        (f"{NEIGHBOURS}::test_the_bound_is_reached",),
    ),
    Mutant(
        "the sensitivity of quantiles is that of a record in the last interval",
        "fedprivacy/questions/quantiles.py",
        "return int((coefficients(self.points) ** 2).sum())",
        "return int(coefficients(self.points)[0] ** 2)",
        (f"{NEIGHBOURS}::test_one_record_moves_noisy_totals_by_what_is_charged_and_nothing_else",),
    ),
    Mutant(
        "every question has the noise of all of them together",
        "fedprivacy/questions/questionnaire.py",
        "return [sigma * math.sqrt(whole / share) * ROUNDED_UP for share in self.shares]",
        "return [sigma * ROUNDED_UP for share in self.shares if whole]",
        (f"{NEIGHBOURS}::test_every_question_carries_the_noise_of_its_share",),
    ),
    Mutant(
        "whether a group is told goes by its true number of records",
        "fedprivacy/questions/release.py",
        "question.records(Noisy(totals[group], scale))",
        "question.records(Noisy(exact.numpy()[group], scale))",
        (f"{NEIGHBOURS}::test_whether_a_group_is_told_is_decided_by_its_noisy_number_alone",),
    ),
    Mutant(
        "the totals of a group that is too small leave anyway",
        "fedprivacy/questions/release.py",
        "np.where(told[:, np.newaxis], totals, 0.0)",
        "np.where(told[:, np.newaxis] | True, totals, 0.0)",
        (f"{NEIGHBOURS}::test_what_is_not_told_of_one_question_is_no_matter_to_another",),
    ),
    Mutant(
        "all questions of a grant have the same noise",
        "fedprivacy/questions/release.py",
        "Position(position.round, position.step + number)",
        "Position(position.round, position.step)",
        ("tests/privacy/test_questions_seeded.py::test_whatever_names_an_answer_gives_it_other_noise",),
    ),
    Mutant(
        "answers draw their noise where training does",
        "fedprivacy/questions/release.py",
        "keystream.reader(Purpose.ANSWERS,",
        "keystream.reader(Purpose.NOISE,",
        ("tests/privacy/test_questions_seeded.py::test_no_noise_is_drawn_twice_on_one_ledger",),
    ),
    Mutant(
        "an answer of another client is read again as one's own",
        "fedprivacy/flower/server/asking.py",
        "_reread(question, each[dataset][-1])",
        "_reread(question, next(iter(each.values()))[-1])",
        (f"{ANSWERED}::test_an_answer_is_read_again_for_nothing_and_asked_anew_for_its_price",),
    ),
    Mutant(
        "inputs are standardised by the shard itself",
        "fedprivacy/tasks/standardising.py",
        "- self.mean) / self.scale)",
        "- inputs[:, :count].double().nanmean(0)) / self.scale)",
        (f"{STANDARDISED}::test_inputs_become_what_the_server_s_numbers_say_and_those_of_the_bounds_if_it_sends_none",),
    ),
    Mutant(
        "inputs are not moved to their bounds",
        "fedprivacy/tasks/standardising.py",
        ".double().clamp(self.low, self.high)",
        ".double()",
        (f"{STANDARDISED}::test_inputs_become_what_the_server_s_numbers_say_and_those_of_the_bounds_if_it_sends_none",),
    ),
    Mutant(
        "records are standardised before their charge",
        "fedprivacy/flower/client/app.py",
        """\
        client.charge(grant)
        client = client.standardised(standardise)
""",
        """\
        client = client.standardised(standardise)
        client.charge(grant)
""",
        (f"{STANDARDISED}::test_no_record_is_read_before_its_charge_is_on_the_disk",),
    ),
    Mutant(
        "numbers to standardise by may be anything",
        "fedprivacy/flower/client/local.py",
        '    if not (received["scale"] > 0.0).all():\n',
        "    if False:\n",
        (f"{STANDARDISED}::test_numbers_that_are_none_are_refused_before_anything_is_charged",),
    ),
    # The server's accountant and ledger.
    Mutant(
        "a client is granted what it is asked for, not what is left",
        "fedprivacy/ledger/charges.py",
        "dataset_id: min(\n",
        "dataset_id: max(\n",
        (f"{STORE}::test_a_grant_is_the_smaller_of_wanted_and_allowed[sqlite]",),
    ),
    Mutant(
        "a confirmed charge is given back",
        "fedprivacy/ledger/charges.py",
        "if was_void or state is ChargeState.VOID:",
        "if not was_void:",
        (f"{STORE}::test_reserved_and_committed_charges_count_and_void_ones_do_not[sqlite]",),
    ),
    Mutant(
        "a budget that has expired grants steps",
        "fedprivacy/ledger/charges.py",
        "        if not in_force[dataset_id].expired\n",
        "",
        (f"{ACCOUNTANT}::test_nothing_is_granted_or_shown_as_left_once_a_budget_has_expired",),
    ),
    Mutant(
        "steps of one run hide what a client holds of another",
        "fedprivacy/ledger/charges.py",
        "        charges.c.run_id == run_id,\n        charges.c.state != ChargeState.VOID,\n",
        "        charges.c.state != ChargeState.VOID,\n",
        ("tests/ledger/test_charges.py::test_claims_that_grow_are_charged_by_what_they_grew_each_in_its_own_run",),
    ),
    Mutant(
        "charges are entered and their sum is not",
        "fedprivacy/ledger/charges.py",
        "    insert_rows(connection, charges, rows)\n    _count(connection, rows, 1)\n",
        "    insert_rows(connection, charges, rows)\n",
        (f"{STORE}::test_runs_and_mechanisms_add_up_on_one_ledger[sqlite]",),
    ),
    Mutant(
        "what a client holds more than the ledger is entered as nothing",
        "fedprivacy/ledger/charges.py",
        '"steps": claimed - held',
        '"steps": held - held',
        (f"{STORE}::test_what_another_run_charges_meanwhile_stops_the_client_that_it_concerns_and_no_other[sqlite]",),
    ),
    Mutant(
        "delta is not divided between the filters of one mechanism and of several",
        "fedprivacy/accounting/filters.py",
        "delta=(1.0 - SHARE_FOR_OTHERS) * self.budget.delta",
        "delta=self.budget.delta",
        (f"{SPEND}::test_going_from_one_filter_to_another_would_pass_the_budget_had_delta_not_been_divided_before",),
    ),
    Mutant(
        "who goes back to the first mechanism gets its tight quota back",
        "fedprivacy/accounting/filters.py",
        "if executed.keys() <= {event}:",
        "if event in executed or not executed:",
        (f"{SPEND}::test_a_change_is_for_ever",),
    ),
    Mutant(
        "the sensitivity of a question under replacement is taken for that of removal",
        "fedprivacy/accounting/filters.py",
        "(Fraction(event.sensitivity) / Fraction(event.noise_multiplier))",
        "(1 / Fraction(event.noise_multiplier))",
        (f"{GAUSSIANS}::test_as_many_executions_as_exactly_fit_are_granted_and_not_one_more[3.0-replace-one]",),
    ),
    Mutant(
        "questions that were asked count for nothing when the next one is",
        "fedprivacy/accounting/filters.py",
        "max(self._parts - spent, 0) // cost",
        "self._parts // cost",
        (f"{GAUSSIANS}::test_no_sequence_passes_the_budget_whatever_the_noises",),
    ),
    Mutant(
        "what a run has taken of its spend is forgotten",
        "fedprivacy/accounting/spend.py",
        "max(whole - taken, 0)",
        "whole",
        (f"{SPEND}::test_a_run_takes_its_spend_and_not_one_step_more",),
    ),
    Mutant(
        "a run that goes on takes its spend once more",
        "fedprivacy/runs/accountant.py",
        "without(history, own.get(dataset, NOTHING_SPENT).history)",
        "history",
        ("tests/runs/test_accountant.py::test_a_run_that_goes_on_has_its_spend_once",),
    ),
    Mutant(
        "a guard changes its filter with the program's default",
        "fedprivacy/guard/guard.py",
        "last = tally.allowance.filter if tally.allowance else usual",
        "last = usual",
        (f"{GUARD}::test_a_filter_that_nobody_names_stays_the_one_of_the_last_charge",),
    ),
    Mutant(
        "a mechanism that does not compose with the charges is granted all the same",
        "fedprivacy/runs/accountant.py",
        "    except ValueError:\n        return 0\n",
        "    except ValueError:\n        return 1\n",
        (f"{STORE}::test_what_another_run_charges_meanwhile_stops_the_client_that_it_concerns_and_no_other[sqlite]",),
    ),
    Mutant(
        "epsilon is shown for the last round alone",
        "fedprivacy/runs/odometer.py",
        "for event, steps in account.history.items()\n        ]",
        "for event, steps in [(e, n // account.rounds) for e, n in account.history.items()]\n        ]",
        (f"{ROUNDS}::test_epsilon_composes_over_rounds_and_never_passes_the_budget",),
    ),
    Mutant(
        "what another run charges meanwhile is not read again",
        "fedprivacy/ledger/changes.py",
        'lambda entry: entry["charges"]',
        "lambda _: ()",
        (
            "tests/ledger/test_changes.py::test_what_another_program_writes_is_read_again_and_nothing_else",
            "tests/runs/test_odometer.py::test_after_any_acts_of_two_runs_every_client_is_read_as_from_scratch",
        ),
    ),
    Mutant(
        "a budget that ends during a run goes on being shown as open",
        "fedprivacy/runs/odometer.py",
        "self._unread |= self._expired()",
        "self._unread |= set()",
        (
            "tests/runs/test_odometer.py::test_a_budget_that_ends_between_two_readings_leaves_nothing_though_nobody_writes",
        ),
    ),
    Mutant(
        "what a receipt has confirmed is given back",
        "fedprivacy/runs/accountant.py",
        "self._settle(attempt, receipts, ChargeState.COMMITTED)",
        "self._settle(attempt, receipts, ChargeState.VOID)",
        (f"{ACCOUNTANT}::test_what_is_settled_is_the_attempt_that_is_named_and_the_first_if_none_is",),
    ),
    # What a simulation makes up.
    Mutant(
        "a client that drops out gets its charge back, as if the server knew that it did nothing",
        "fedprivacy/flower/server/replies.py",
        "update=None, failure=reason)",
        "update=None, failure=reason, untouched=True)",
        (f"{PARTICIPATION}::test_a_drop_out_trains_nothing_and_stays_charged",),
    ),
    Mutant(
        "what comes too late is averaged all the same",
        "fedprivacy/flower/server/replies.py",
        "replace(self.verdicts[client_id], update=None, failure=reason)",
        "replace(self.verdicts[client_id], failure=reason)",
        (f"{PARTICIPATION}::test_what_comes_too_late_is_not_in_the_average",),
    ),
    Mutant(
        "a deployed client's answer is thrown away for a drop-out that was made up",
        "fedprivacy/runs/participation.py",
        "if deployed and made_up:",
        "if False:",
        (f"{PARTICIPATION}::test_nobody_makes_up_what_real_clients_do",),
    ),
    Mutant(
        "of those that an asynchronous round lets train, only whose updates come in time for its step are charged",
        "fedprivacy/flower/server/asynchronous.py",
        "        granted = self.accounts.reserve(attempt, clients.values(), again=again)\n",
        "        fresh = [c for c in clients.values() if dispatched[c.client_id] in course.answered]\n"
        "        granted = {c: steps[c] for c in dispatched} | self.accounts.reserve(attempt, fresh, again=again)\n",
        (f"{ASYNCHRONOUS}::test_every_training_is_charged_once_when_it_begins_and_epsilon_is_what_its_client_s_cost",),
    ),
    Mutant(
        "a client that goes away in an asynchronous round is not charged, as if the server knew that it did nothing",
        "fedprivacy/flower/server/asynchronous.py",
        "(client := registry[n]).client_id in dispatched}",
        "(client := registry[n]).client_id in dispatched and dispatched[client.client_id].answers}",
        (f"{ASYNCHRONOUS}::test_every_training_is_charged_once_when_it_begins_and_epsilon_is_what_its_client_s_cost",),
    ),
    Mutant(
        "a client trains twice from one model, and its second training has the first one's noise",
        "fedprivacy/participation/asynchronous.py",
        "            self.training.remove(dispatch)\n",
        "            self.training.remove(dispatch)\n            self.waiting[dispatch.client_id] = None\n",
        (f"{COURSE}::test_a_step_is_made_of_the_first_answers_of_this_round_and_of_rounds_before",),
    ),
    Mutant(
        "all trainings of a simulated client have the same noise",
        "fedprivacy/flower/client/cohort.py",
        "Start(arrays, attempt.round, base,",
        "Start(arrays, 1, base,",
        (f"{ASYNCHRONOUS}::test_no_two_trainings_share_a_draw_of_noise",),
    ),
    # The mechanism.
    Mutant(
        "records join half as often again as q says",
        "fedprivacy/training/mechanisms.py",
        "math.floor(sampling_rate * 2.0**64)",
        "math.floor(min(1.5 * sampling_rate, 0.99) * 2.0**64)",
        ("tests/training/test_keystream.py::test_poisson_sampling_is_binomial_and_independent_between_records",),
    ),
    Mutant(
        "a batch comes in the order of the shard, so that one record less rounds all blocks of the sum anew",
        "fedprivacy/training/mechanisms.py",
        'return joined[np.argsort(words[joined], kind="stable")]',
        "return joined",
        ("tests/training/test_sampling.py::test_every_order_of_a_batch_is_equally_likely[0.6]",),
    ),
    Mutant(
        "half of the noise is added",
        "fedprivacy/training/mechanisms.py",
        "return self.event.noise_multiplier",
        "return 0.5 * self.event.noise_multiplier",
        ("tests/privacy/test_noise_added.py::test_each_step_adds_as_much_noise_as_the_receipt_says",),
    ),
    Mutant(
        "every step of a round has the same sample and the same noise",
        "fedprivacy/training/dpsgd.py",
        "Position(round, step)",
        "Position(round, 1)",
        ("tests/training/test_dpsgd.py::test_noise_is_added_once_for_each_local_step",),
    ),
    Mutant(
        "every round has the same sample and the same noise",
        "fedprivacy/training/dpsgd.py",
        "Position(round, step)",
        "Position(1, step)",
        ("tests/training/test_dpsgd.py::test_the_same_randomness_repeats_and_another_round_does_not",),
    ),
    Mutant(
        "the update says fewer steps than were taken",
        "fedprivacy/training/dpsgd.py",
        "self.mechanism.event, steps, norm, update.kept)",
        "self.mechanism.event, steps - 1, norm, update.kept)",
        ("tests/training/test_dpsgd.py::test_the_update_states_the_event_of_the_mechanism_that_ran",),
    ),
    Mutant(
        "a sum is not rounded to the lattice before the noise",
        "fedprivacy/training/noise.py",
        "np.add(_limited(sums, LARGEST_SUM * step), _CENTRE * step, dtype=np.float64)",
        "np.add(_limited(sums, LARGEST_SUM * step), 0.0, dtype=np.float64)",
        ("tests/training/test_noise.py::test_every_released_value_is_a_whole_number_of_steps",),
    ),
    Mutant(
        "a sum is not rounded to the lattice before the noise where both are added in one compiled pass",
        "fedprivacy/training/fused.py",
        "((total + centre) + words[place] * widths[layer]) - centre",
        "((total + words[place] * widths[layer]) + centre) - centre",
        ("tests/training/test_fused.py::test_one_pass_has_the_bits_of_numpy_s_passes[1.0-1.0]",),
    ),
    Mutant(
        "a rate of .9 or more takes everybody",
        "fedprivacy/training/mechanisms.py",
        "if sampling_rate >= 1.0:",
        "if sampling_rate >= 0.9:",
        ("tests/privacy/test_sampled.py::test_as_many_records_join_as_the_rate_on_the_receipt_says",),
    ),
    Mutant(
        "the noise of adaptive clipping keeps the norm that it began with",
        "fedprivacy/training/dpsgd.py",
        "clipping_norm=adaptive.sensitivity(norm)",
        "clipping_norm=adaptive.sensitivity(self.mechanism.clipping_norm)",
        ("tests/privacy/test_noise_added.py::test_the_noise_of_adaptive_clipping_follows_its_norm_from_step_to_step",),
    ),
    Mutant(
        "the sum of adaptive clipping gets noise for the gradients alone",
        "fedprivacy/training/dpsgd.py",
        "clipping_norm=adaptive.sensitivity(norm)",
        "clipping_norm=norm",
        ("tests/privacy/test_noise_added.py::test_the_noise_of_adaptive_clipping_covers_the_count_too",),
    ),
    Mutant(
        "what a finished run has left is deleted for another run that a server makes up",
        "fedprivacy/flower/client/kept.py",
        "if kept.run_id == whose.run_id and kept.path != file",
        "if kept.path != file",
        ("tests/flower/test_kept.py::test_a_finished_run_s_model_gives_way_to_no_other_run",),
    ),
    # The engine.
    Mutant(
        "the rows that fill a part up count like records",
        "fedprivacy/gradients/engine.py",
        "None if records == len(inputs) else _first(records, inputs)",
        "None",
        (f"{SUM}::test_equals_the_per_record_loop",),
    ),
    Mutant(
        "a record that has no finite gradient counts like the one in its place",
        "fedprivacy/gradients/engine.py",
        "usable = finite if usable is None else finite & usable",
        "usable = usable",
        (f"{SUM}::test_a_record_without_a_finite_gradient_contributes_zero",),
    ),
    Mutant(
        "the copies that fill the last part up are taken for records",
        "fedprivacy/gradients/engine.py",
        "part = self._measured(*rows, len(inputs))",
        "part = self._measured(*rows, size)",
        (f"{SUM}::test_equals_the_per_record_loop",),
    ),
    Mutant(
        "small parts are used whether or not a record has the same bits in them",
        "fedprivacy/gradients/invariance.py",
        "count = min(count, WHOLE)",
        "count = 0",
        ("tests/gradients/test_invariance.py::test_one_last_bit_of_one_record_in_a_small_part_is_enough[12]",),
    ),
    Mutant(
        "records that memory does not hold together all count for nothing, which one of them more decides",
        "fedprivacy/gradients/engine.py",
        "return out_of_memory(error) and not self._admitted.alone",
        "return False",
        (f"{MEMORY}::test_one_record_more_takes_no_other_out_of_the_sum",),
    ),
    Mutant(
        "how many records memory holds together is found out with true ones",
        "fedprivacy/gradients/engine.py",
        "sizes=self._sizes_that_fit(probe)",
        "sizes=self._admitted.sizes",
        (f"{MEMORY}::test_sizes_that_memory_does_not_hold_drop_out_before_there_are_records",),
    ),
    Mutant(
        "that records are kept apart is judged before their views are averaged",
        "fedprivacy/gradients/methods/admission.py",
        "return _apart(chosen, model, of_views(probe, views), wanted, by_single_rows=not half)",
        "return replace(_apart(replace(chosen, means=means), model, probe, wanted, by_single_rows=False), "
        "means=of_records)",
        (f"{MEMORY}::test_an_average_over_views_that_shows_who_else_is_there_is_not_used",),
    ),
    Mutant(
        "a product that adds up some rows in another order is not seen where a loss hides it",
        "fedprivacy/gradients/invariance.py",
        "    return EqualRowsStayEqual(size) if tried else nullcontext()",
        "    return nullcontext()",
        (f"{EQUAL_ROWS}::test_a_product_that_a_flat_loss_hides_rules_out_the_size_in_which_it_is",),
    ),
    Mutant(
        "products are tried in the largest parts alone",
        "fedprivacy/gradients/invariance.py",
        "with _products_tried(size, first and start == 0), NothingLeftOver(size):",
        "with NothingLeftOver(size):",
        (f"{EQUAL_ROWS}::test_a_product_that_a_flat_loss_hides_rules_out_the_size_in_which_it_is",),
    ),
    Mutant(
        "a product is tried on too few numbers",
        "fedprivacy/gradients/equal_rows.py",
        "range(max(2, -(-ENOUGH * rows // numbers)))",
        "range(2)",
        (f"{EQUAL_ROWS}::test_an_order_that_seldom_shows_is_noticed",),
    ),
    Mutant(
        "in half precision rounding hides the order of a sum",
        "fedprivacy/gradients/equal_rows.py",
        "                self._take_back(made, *factors)",
        "                pass",
        (f"{EQUAL_ROWS}::test_it_is_noticed_in_half_precision_where_a_last_bit_is_mostly_rounded_away",),
    ),
    Mutant(
        "scores that were judged with products of single rows are computed with others",
        "fedprivacy/gradients/apart.py",
        "with one_row_at_a_time() if self.single_rows else nullcontext():",
        "with nullcontext():",
        ("tests/gradients/test_single_rows.py::test_scores_are_computed_in_company_too",),
    ),
    # The sum.
    Mutant(
        "a part in which nobody counts takes no room, so that one record rounds all later blocks anew",
        "fedprivacy/gradients/summation.py",
        "        self._begin()\n        self._advance(rows)\n",
        "        pass\n",
        (f"{SURVIVORS}::test_a_part_that_is_left_out_takes_the_room_of_one_that_counts_nothing",),
    ),
    Mutant(
        "a block of the sum never ends, and float32 holds it all",
        "fedprivacy/gradients/summation.py",
        "if self._held >= self._block_rows:",
        "if False:",
        (f"{SURVIVORS}::test_the_allowance_covers_the_rounding_of_every_block_that_is_made[256]",),
    ),
    Mutant(
        "the blocks are added up in float32",
        "fedprivacy/gradients/summation.py",
        "dtype=torch.float64, device=device)",
        "dtype=torch.float32, device=device)",
        (f"{SURVIVORS}::test_the_sum_of_many_blocks_loses_nothing",),
    ),
    Mutant(
        "a product adds four times as many records as the allowance has room for",
        "fedprivacy/gradients/pieces.py",
        "STRETCH = 32",
        "STRETCH = 128",
        (f"{SURVIVORS}::test_the_allowance_covers_the_rounding_of_every_block_that_is_made[256]",),
    ),
    # Clipping.
    Mutant(
        "a gradient longer than C is left as it is",
        "fedprivacy/gradients/clipping.py",
        "return squared_norms.rsqrt().mul_(clipping_norm * _ROUNDING_MARGIN).clamp_(max=1.0)",
        "return squared_norms.rsqrt().mul_(clipping_norm * _ROUNDING_MARGIN).clamp_(min=1.0)",
        (f"{CLIPPING}::test_a_scaled_gradient_is_no_longer_than_c_though_every_step_rounds_to_float32",),
    ),
    Mutant(
        "each layer is clipped to C, all of them together to more",
        "fedprivacy/gradients/clipping.py",
        "clipping_norm * _ROUNDING_MARGIN / len(squared_norms) ** 0.5",
        "clipping_norm * _ROUNDING_MARGIN",
        (f"{CLIPPING}::test_a_scaled_gradient_is_no_longer_than_c_though_every_step_rounds_to_float32",),
    ),
    Mutant(
        "the count that steers the clipping norm is not in the sensitivity",
        "fedprivacy/training/adaptive.py",
        "return clipping_norm / math.sqrt(1.0 - self.share)",
        "return clipping_norm",
        (f"{ADAPTIVE}::test_one_record_moves_the_joined_vector_by_no_more_than_the_sensitivity",),
    ),
    Mutant(
        "the noise on the count is half of what its share says",
        "fedprivacy/training/adaptive.py",
        "return 2.0 * clipping_norm * math.sqrt(self.share / (1.0 - self.share))",
        "return 4.0 * clipping_norm * math.sqrt(self.share / (1.0 - self.share))",
        (f"{ADAPTIVE}::test_one_record_moves_the_joined_vector_by_no_more_than_the_sensitivity",),
    ),
    # User-level noise.
    Mutant(
        "the server forgets the noise on the sum of the clients' updates",
        "fedprivacy/training/user_level.py",
        "scale = self.event.noise_multiplier * longest * (1.0 + CLIENT_ALLOWANCE)",
        "scale = 1e-6 * longest",
        (
            f"{USER_LEVEL_RUNS}::test_the_model_moves_by_noise_of_the_promised_deviation_where_no_client_moves_it[silent]",
        ),
    ),
    Mutant(
        "a client's update is not clipped",
        "fedprivacy/training/user_level.py",
        "return unit * (clipping_norm / length), False",
        "return update, False",
        (f"{USER_LEVEL}::test_no_client_moves_the_sum_by_more_than_its_part_whatever_it_sends[fixed-0.3-7]",),
    ),
    Mutant(
        "cohorts have a fixed size, and are accounted as Poisson samples",
        "fedprivacy/training/user_level.py",
        "return {client_id for client_id in client_ids if _word(keystream, position, client_id) < bound}",
        "drawn = sorted(client_ids, key=lambda client_id: _word(keystream, position, client_id))\n"
        "        return set(drawn[: round(len(drawn) * bound / 2**64)])",
        (f"{USER_LEVEL}::test_clients_join_by_poisson_sampling",),
    ),
    Mutant(
        "the noisy sum is divided by how many clients joined",
        "fedprivacy/flower/server/user_level.py",
        "moved = np.split(flat + released.mean, ",
        "joined = max(len(updates), 1)\n"
        "        moved = np.split(flat + released.mean * self._mechanism.expected_clients / joined, ",
        (f"{USER_LEVEL_RUNS}::test_clients_count_alike_and_are_divided_by_the_expected_cohort",),
    ),
    Mutant(
        "a round that nobody joined tells so by ending the run",
        "fedprivacy/flower/server/replies.py",
        "return bool(self.over) or not (self.asked or self.sampled)",
        "return bool(self.over) or not self.messages",
        (
            f"{USER_LEVEL_RUNS}::test_the_model_moves_by_noise_of_the_promised_deviation_where_no_client_moves_it[nobody]",
        ),
    ),
    Mutant(
        "a round's average is released first, and charged afterwards",
        "fedprivacy/runs/user_level_book.py",
        'write(self._file, (json.dumps(entry) + "\\n").encode())',
        "pass",
        (f"{USER_LEVEL_RUNS}::test_a_round_is_on_the_disk_before_its_average_is_handed_on",),
    ),
    Mutant(
        "a round that is released again with other noise is charged once",
        "fedprivacy/runs/user_level_book.py",
        "return self._repeatable and (attempt.round, attempt.attempt) in self._charged",
        "return (attempt.round, attempt.attempt) in self._charged",
        ("tests/runs/test_user_level_book.py",),
    ),
    # Many clients at once.
    Mutant(
        "a stack sums gradients that it has not clipped",
        "fedprivacy/gradients/stacked.py",
        "return scales.where(usable, 0.0).view(self._groups, -1, ROWS)",
        "return torch.ones_like(scales).where(usable, 0.0).view(self._groups, -1, ROWS)",
        (f"{STACKED}::test_each_client_s_sum_is_what_the_engine_makes_of_it_alone[mlp-flat]",),
    ),
    Mutant(
        "all clients of a stack are clipped to the first one's C",
        "fedprivacy/gradients/stacked.py",
        "norms.index_select(0, owners)",
        "norms.index_select(0, 0 * owners)",
        (f"{STACKED}::test_each_client_s_sum_is_what_the_engine_makes_of_it_alone[mlp-flat]",),
    ),
    Mutant(
        "all clients of a stack have their gradients at the first one's parameters",
        "fedprivacy/gradients/stacked.py",
        "[matrix.index_select(0, owners) for matrix in matrices]",
        "[matrix.index_select(0, 0 * owners) for matrix in matrices]",
        (f"{STACKED}::test_each_client_s_sum_is_what_the_engine_makes_of_it_alone[mlp-flat]",),
    ),
    Mutant(
        "rows that no record fills count in a client's sum",
        "fedprivacy/gradients/stacked.py",
        "counted = rows < len(pool.inputs) - 1",
        "counted = torch.ones_like(rows, dtype=torch.bool)",
        (f"{STACKED}::test_each_client_s_sum_is_what_the_engine_makes_of_it_alone[mlp-flat]",),
    ),
    Mutant(
        "a slot's sum goes to the client after its own",
        "fedprivacy/gradients/stacked.py",
        "total.index_add_(0, owners, at.sums",
        "total.index_add_(0, (owners + 1) % len(total), at.sums",
        (f"{STACKED}::test_each_client_s_sum_is_what_the_engine_makes_of_it_alone[mlp-flat]",),
    ),
    Mutant(
        "one record's gradient without end spoils its client's sum",
        "fedprivacy/gradients/stacked.py",
        "usable = counted & (whole.sum(0) <= _LONGEST_SQUARED)",
        "usable = counted",
        (f"{STACKED}::test_records_without_a_gradient_count_for_nothing[flat]",),
    ),
    Mutant(
        "a huge input times a scaled gradient that is subnormal is more than C",
        "fedprivacy/gradients/stacked.py",
        "inputs, gradients) <= _LONGEST_SQUARED, math.nan)",
        "inputs, gradients) <= math.inf, math.nan)",
        (f"{STACKED}::test_no_record_adds_more_than_c_though_its_gradient_has_factors_from_both_ends_of_float32",),
    ),
    Mutant(
        "the products of a stack are not tried on equal rows of one slot",
        "fedprivacy/gradients/stack_check.py",
        "EqualRowsStayEqual(len(slots), (0, 1))",
        "EqualRowsStayEqual(len(slots))",
        (f"{EQUAL_ROWS}::test_a_stack_whose_products_treat_a_slot_or_a_row_apart_is_not_used",),
    ),
    Mutant(
        "the check of a stack believes the stack's own clip",
        "fedprivacy/gradients/stack_check.py",
        "factors = self._clipping.scales(squared, float(self._norms[number]))",
        "factors = self._stack.scales(squared, torch.ones(ROWS, dtype=torch.bool), self._norms[[number]])[:, 0]",
        (f"{STACKED}::test_a_stack_that_computes_something_else_is_not_trusted[no clip]",),
    ),
    Mutant(
        "the noise of a cohort's rows is forgotten",
        "fedprivacy/training/mechanisms.py",
        "scales = np.array([mechanism.noise_scale for mechanism in mechanisms])",
        "scales = np.array([1e-9 * mechanism.noise_scale for mechanism in mechanisms])",
        (f"{TOGETHER}::test_the_noise_of_many_clients_is_that_of_each",),
    ),
    Mutant(
        "all clients of a cohort have the same noise",
        "fedprivacy/training/keystream.py",
        "np.array([keystream.stream for keystream in keystreams], dtype=np.uint64)",
        "np.array([first.stream for _ in keystreams], dtype=np.uint64)",
        (f"{TOGETHER}::test_the_noise_of_many_clients_is_that_of_each",),
    ),
    Mutant(
        "all clients of a cohort have one client's sample",
        "fedprivacy/training/mechanisms.py",
        "words = Readers(keystreams, Purpose.SAMPLING, position)",
        "words = Readers([keystreams[0]] * len(keystreams), Purpose.SAMPLING, position)",
        (f"{TOGETHER}::test_samples_of_many_clients_are_those_of_each",),
    ),
    Mutant(
        "a cohort's local steps share their noise, which their difference is free of",
        "fedprivacy/training/cohort.py",
        "trainees, norms, Position(round, step))",
        "trainees, norms, Position(round, 1))",
        (f"{TOGETHER}::test_each_client_ends_where_it_would_end_alone[flat-{PLAIN_SGD}]",),
    ),
    Mutant(
        "the count that steers a cohort's clipping norm is not in the sensitivity",
        "fedprivacy/training/cohort.py",
        "[self.adaptive.sensitivity(norm) for norm in norms.tolist()]",
        "norms.tolist()",
        (f"{TOGETHER}::test_each_client_ends_where_it_would_end_alone[adaptive-{PLAIN_SGD}]",),
    ),
    Mutant(
        "how a cohort's updates are added up depends on private numbers of records",
        "fedprivacy/training/cohort.py",
        "nbytes = _public_bytes(trainees[place])",
        "nbytes = trainees[place].shard.inputs.nbytes",
        (f"{TOGETHER}::test_portions_go_by_public_sizes_not_by_how_many_records_there_are",),
    ),
    Mutant(
        "all clients of a population draw from one stream",
        "fedprivacy/flower/client/cohort.py",
        "keystream = base.of(client.dataset_id)",
        "keystream = base",
        (f"{POPULATIONS}::test_a_population_has_the_run_of_its_messages[fedavg]",),
    ),
    Mutant(
        "two runs of a population on one ledger share their noise",
        "fedprivacy/flower/client/cohort.py",
        'Keystream.from_seed(seed, "", earlier_runs, attempt.attempt)',
        'Keystream.from_seed(seed, "", 0, attempt.attempt)',
        (f"{POPULATIONS}::test_two_runs_on_one_ledger_share_no_noise",),
    ),
    Mutant(
        "another attempt at a population's round has the noise of the first",
        "fedprivacy/flower/client/cohort.py",
        'Keystream.from_seed(seed, "", earlier_runs, attempt.attempt)',
        'Keystream.from_seed(seed, "", earlier_runs)',
        (f"{POPULATIONS}::test_another_attempt_draws_other_noise",),
    ),
    Mutant(
        "a cohort trains before anybody is charged",
        "fedprivacy/flower/server/cohorts.py",
        "steps = self.accounts.reserve(attempt, clients.values(), again=again)",
        "steps = dict.fromkeys((c.client_id for c in clients.values()), self.rounds.plan.config.local_steps)",
        (f"{POPULATIONS}::test_charges_come_first_and_stand_in_a_ledger_that_proves_itself",),
    ),
    Mutant(
        "a private run's cohort may be given training without privacy",
        "fedprivacy/flower/baseline/cohort.py",
        "    if config.privacy:\n",
        "    if False:\n",
        (f"{BASELINE_COHORTS}::test_a_private_run_cannot_be_given_its_training",),
    ),
    # Clients with terms of their own.
    Mutant(
        "all clients of a stack add the noise of the first one",
        "fedprivacy/training/cohort.py",
        "mechanisms, totals = [one.mechanism for one in trainees], clipped.totals",
        "mechanisms, totals = [trainees[0].mechanism for _ in trainees], clipped.totals",
        (f"{TERMS}::test_each_client_of_a_stack_adds_its_own_noise",),
    ),
    Mutant(
        "a cohort's clients are charged for noise of their own, and add the run's",
        "fedprivacy/flower/server/accounts.py",
        "            event=self.event(client.client_id),\n            clipping_norm=self.clipping_norm",
        "            event=self._plan.event(client.shard_size),\n            clipping_norm=self.clipping_norm",
        (f"{TERMS}::test_each_client_of_a_stack_adds_its_own_noise",),
    ),
    Mutant(
        "a client that is asked by message is charged for noise of its own, and adds the run's",
        "fedprivacy/flower/server/accounts.py",
        "event, config = self.event(client.client_id), self._plan.config",
        "event, config = self._plan.event(client.shard_size), self._plan.config",
        (f"{TERMS}::test_deployed_clients_have_theirs_in_both_books",),
    ),
    Mutant(
        "the ledger keeps the run's budget where a client has a smaller one",
        "fedprivacy/flower/server/accounts.py",
        "{client.client_id: plan.budget(client.client_id) for client in own},",
        "{},",
        (f"{TERMS}::test_the_budget_of_each_is_what_the_ledger_enforces",),
    ),
    Mutant(
        "local training sends the model that it keeps at home",
        "fedprivacy/training/algorithms/local.py",
        "LocalUpdate(sent=client.shared, kept=client.descend(client.own, client.steps))",
        "LocalUpdate(sent=(own := client.descend(client.own, client.steps)), kept=own)",
        (f"{ALGORITHMS}::test_what_stays_at_home_is_in_no_byte_that_leaves[local]",),
    ),
    Mutant(
        "a personal head leaves with the body",
        "fedprivacy/training/algorithms/shared_body.py",
        "sent=client.shared.where(client.personal, trained)",
        "sent=trained",
        (f"{ALGORITHMS}::test_what_stays_at_home_is_in_no_byte_that_leaves[fedper]",),
    ),
    Mutant(
        "what one algorithm keeps at home is given to another, which sends it",
        "fedprivacy/flower/client/kept.py",
        "json.dumps([whose.run_id, whose.algorithm, whose.task])",
        "json.dumps([whose.run_id, whose.task])",
        (f"{ALGORITHMS}::test_no_other_algorithm_is_given_what_a_client_kept",),
    ),
    Mutant(
        "one run's personal models are another's to begin with",
        "fedprivacy/flower/client/kept.py",
        "json.dumps([whose.run_id, whose.algorithm, whose.task])",
        "json.dumps([whose.algorithm])",
        (f"{ALGORITHMS}::test_no_other_run_is_given_what_a_client_kept",),
    ),
    Mutant(
        "an algorithm may take more private steps than were granted and charged",
        "fedprivacy/training/descent.py",
        "if self.taken + steps > self.granted:",
        "if steps > self.granted:",
        ("tests/training/test_algorithms.py::test_more_steps_than_were_granted_are_refused_before_the_first_of_them",),
    ),
    Mutant(
        "two steps of a round that an algorithm divides share their sample and their noise",
        "fedprivacy/training/descent.py",
        "gradient = self.mean_gradient(self.taken, position)",
        "gradient = self.mean_gradient(1, position)",
        ("tests/training/test_algorithms.py::test_no_two_steps_of_a_round_share_a_position_in_the_keystream",),
    ),
    Mutant(
        "what a client kept is readable by everybody on its host",
        "fedprivacy/flower/client/kept.py",
        "json.dumps(facts)}), PRIVATE)",
        "json.dumps(facts)}))",
        (f"{ALGORITHMS}::test_no_other_algorithm_is_given_what_a_client_kept",),
    ),
    Mutant(
        "all clients of a batch size add the noise that the largest shard needs",
        "fedprivacy/runs/plan.py",
        "rate = plan.sampling_rate(disclosed.get(client_id, 0), client_id)",
        "rate = plan.sampling_rate(max(disclosed.values(), default=0), client_id)",
        (
            f"{RATES}::test_every_client_spends_its_whole_budget_and_no_more_and_the_smaller_its_shard_the_more_noise_it_adds",
        ),
    ),
    Mutant(
        "the noise for a client's own rate forgets what the client has spent before",
        "fedprivacy/runs/plan.py",
        "alike.setdefault((frozenset(standing.past.items()), standing.allowance, rate), []).append(client_id)",
        "alike.setdefault((frozenset(), standing.allowance, rate), []).append(client_id)",
        (f"{RATES}::test_who_has_spent_before_adds_the_least_noise_after_that",),
    ),
    Mutant(
        "a run that goes on finds each client's noise anew, and not the one that it has charged",
        "fedprivacy/runs/plan.py",
        "return charged | _found(plan, {c: s for c, s in seeking.items() if c not in charged}, disclosed)",
        "return _found(plan, seeking, disclosed)",
        (f"{RATES}::test_a_deployed_run_that_is_killed_goes_on_with_the_noise_that_each_client_had",),
    ),
    Mutant(
        "a cohort's sum is divided by its clients, not by their weights",
        "fedprivacy/flower/client/cohort.py",
        "total / self.weight",
        "total / len(self.weights)",
        (f"{POPULATIONS}::test_a_population_has_the_run_of_its_messages[fedavg]",),
    ),
    # Views of records.
    Mutant(
        "which views a record has tells who joined before it",
        "fedprivacy/training/augment.py",
        "numbers = (sample[:, np.newaxis] * blocks",
        "numbers = (np.arange(len(sample))[:, np.newaxis] * blocks",
        (f"{VIEWS}::test_a_record_has_the_same_views_in_any_place_and_company",),
    ),
    Mutant(
        "a view may be made of other records",
        "fedprivacy/training/augment.py",
        "if not torch.allclose(together.double(), alone.double(), rtol=1e-4, atol=1e-4, equal_nan=True):",
        "if together.shape != alone.shape:",
        (f"{VIEWS}::test_what_is_no_view_of_each_record_is_refused[mean]",),
    ),
    Mutant(
        "records that show one another where few are made up are computed together",
        "fedprivacy/gradients/apart.py",
        "        return sizes_that_agree(_Judged(shown), model, probe, sizes, 0)",
        "        return tuple(sizes)",
        (f"{VIEWS}::test_records_that_are_mixed_where_nobody_looks_are_seen_one_by_one[with_those_after_the_third]",),
    ),
    Mutant(
        "a record whose view cannot be made stops the client",
        "fedprivacy/gradients/apart.py",
        "            full = out_of_memory(error) and self.sizes != (1,)",
        "            raise",
        (f"{VIEWS}::test_a_record_whose_view_cannot_be_made_is_in_its_place_as_it_is_and_stops_nobody",),
    ),
    Mutant(
        "clients that train together are given no views",
        "fedprivacy/training/cohort.py",
        "stack = self.engine.stack(*kinds) if self.views is None else None",
        "stack = self.engine.stack(*kinds)",
        (f"{VIEWS}::test_clients_that_train_together_see_what_each_sees_alone[1]",),
    ),
    # What the data owner's side accepts.
    Mutant(
        "a null row is trained on",
        "fedprivacy/tasks/protocol.py",
        "return self.holding(self.inputs[kept], self.targets[kept.to(self.targets.device)])",
        "return self",
        (f"{NULL_ROWS}::{NO_BIT}[whole numbers-sums of some]",),
    ),
    Mutant(
        "a row with NaN is trained on by a model that takes it",
        "fedprivacy/tasks/protocol.py",
        "return holding_nan(inputs) if inputs.is_floating_point() else None",
        "return torch.zeros(len(inputs), dtype=torch.bool) if inputs.is_floating_point() else None",
        (f"{NULL_ROWS}::{NO_BIT}[imputes-sums of some]",),
    ),
    Mutant(
        "whole numbers need not say which rows are null",
        "fedprivacy/tasks/protocol.py",
        "if shard.null is None and relation is NeighbouringRelation.ZERO_OUT:",
        "if False:",
        (f"{NULL_ROWS}::test_whole_numbers_with_public_sizes_must_say_which_rows_are_null",),
    ),
    Mutant(
        "a null row does not count in the size that is disclosed",
        "fedprivacy/tasks/protocol.py",
        "return len(self.inputs) if self.null is None else len(self.null)",
        "return len(self.inputs)",
        (f"{NULL_ROWS}::test_null_rows_count_in_the_size_that_is_disclosed",),
    ),
    Mutant(
        "one record of a data set gives all others its type",
        "fedprivacy/training/single.py",
        "if not (plain and torch.can_cast(value.dtype, rows.dtype)):",
        "if not plain:",
        (f"{DOOR}::test_a_record_of_a_data_set_that_is_not_of_the_prototype_s_kind_is_null[half a label]",),
    ),
    Mutant(
        "a deployed client beside a part of a split takes itself for a simulated one",
        "fedprivacy/flower/client/local.py",
        "return None if simulated and not is_deployed(node) else NodeSettings.of(node)",
        "return None if simulated else NodeSettings.of(node)",
        (f"{NODE}::test_a_deployed_client_beside_a_part_of_a_split_heeds_signed_grants_alone",),
    ),
    Mutant(
        "whoever starts Ray in a client's process makes it a simulated one",
        "fedprivacy/flower/client/local.py",
        "ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None",
        "ray.is_initialized()",
        (f"{NODE}::test_without_any_key_a_client_is_simulated_where_an_engine_runs_it_and_nowhere_else",),
    ),
    Mutant(
        "two tasks of one guard disagree on what is public",
        "fedprivacy/flower/client/node.py",
        "            if one != other:",
        "            if False:",
        (f"{NODE}::test_tasks_that_do_not_agree_on_what_is_public_are_refused_with_both_names",),
    ),
    Mutant(
        "a size is disclosed, and protected afterwards",
        "fedprivacy/flower/client/local.py",
        "            self.guard.promise(relation_of(self.task))",
        "            pass",
        (f"{NODE}::test_a_size_that_was_disclosed_is_protected_by_no_later_task_of_the_same_guard",),
    ),
    Mutant(
        "a size is protected, and disclosed afterwards",
        "fedprivacy/guard/guard.py",
        "        if before not in (None, relation):",
        "        if False:",
        (f"{NODE}::test_a_size_that_was_protected_is_disclosed_by_no_later_task_of_the_same_guard",),
    ),
    Mutant(
        "a guard's file may have two names",
        "fedprivacy/guard/log.py",
        "        if _links(self.file, fd) > 1:",
        "        if False:",
        ("tests/guard/test_names.py::test_a_file_with_a_second_name_is_refused_until_the_name_is_gone",),
    ),
    Mutant(
        "whoever comes by a link does not see what was sealed beside the file",
        "fedprivacy/guard/log.py",
        "        self.file = file.resolve()",
        "        self.file = file",
        ("tests/guard/test_names.py::test_an_older_copy_is_refused_by_whoever_comes_by_a_symbolic_link[file]",),
    ),
    Mutant(
        "an older copy is believed under another name",
        "fedprivacy/guard/seals.py",
        "        return min((folder for folder in log.parent.iterdir() if folder.name.endswith(end)), default=named)",
        "        return named",
        ("tests/guard/test_names.py::test_a_copy_under_another_name_finds_what_was_sealed_since[other.log]",),
    ),
    Mutant(
        "a guard changes its filter in the middle",
        "fedprivacy/guard/guard.py",
        'if self._named_filter not in ("", last):',
        "if False:",
        ("tests/guard/test_renewal.py::test_another_filter_in_the_middle_is_refused_and_nothing_is_charged",),
    ),
    Mutant(
        "a charge is decided by an account that another has charged since",
        "fedprivacy/guard/guard.py",
        "if len(self._kept.tally.entries) != before.entries:",
        "if False:",
        (f"{GUARD}::test_what_is_charged_while_a_quota_is_solved_counts_in_the_decision",),
    ),
    Mutant(
        "charges without a budget are not brought over",
        "fedprivacy/guard/adoption.py",
        "LEFT JOIN",
        "JOIN",
        ("tests/guard/test_adoption.py::test_every_charge_that_stands_comes_over_with_a_budget_or_without",),
    ),
    Mutant(
        "one record whose score asks for huge memory ends the release",
        "fedprivacy/gradients/apart.py",
        "            return self._in_company(ones, others, size)",
        '            raise MemoryError(f"memory does not hold {size} records at a time")',
        (f"{MEMORY}::test_a_score_or_view_that_asks_for_huge_memory_is_its_record_s_fault_alone",),
    ),
    Mutant(
        "one record whose loss asks for huge memory ends the release",
        "fedprivacy/gradients/engine.py",
        "            part = self._measured_beside_made_up(*rows, len(inputs))",
        "            raise MemoryError",
        (f"{MEMORY}::test_a_loss_that_asks_for_huge_memory_is_its_record_s_fault_alone",),
    ),
    Mutant(
        "a reader that lets one cell change all records passes",
        "fedprivacy/tasks/one_cell.py",
        "            if len(gone) > 1:",
        "            if False:",
        ("tests/tasks/test_one_cell.py::test_what_depends_on_all_records_is_found",),
    ),
    Mutant(
        "a reader that writes what all records say into the model passes",
        "fedprivacy/tasks/one_cell.py",
        "self._usual_parts = parts if parts == again else None",
        "self._usual_parts = None",
        ("tests/tasks/test_one_cell.py::test_what_reading_leaves_for_the_model_or_the_loss_is_found",),
    ),
    Mutant(
        "a relation that was promised in the meantime does not refuse a charge",
        "fedprivacy/guard/guard.py",
        "                self._check_relation(event.relation)\n                if len(",
        "                if len(",
        (f"{GUARD}::test_a_relation_that_is_promised_while_a_quota_is_solved_refuses_the_charge",),
    ),
    Mutant(
        "a guard is another file in each working directory",
        "fedprivacy/flower/client/node.py",
        "    if not path.is_absolute():",
        "    if False:",
        (f"{NODE}::test_a_path_that_means_another_place_in_another_working_directory_is_refused",),
    ),
    Mutant(
        "an import changes the filter of an account",
        "fedprivacy/guard/adoption.py",
        "own = kept.tally.allowance",
        "own = None",
        ("tests/guard/test_adoption.py::test_an_import_changes_no_filter_and_loses_no_charge_of_another_data_set",),
    ),
    # Survivors of 2026-11-25.
    Mutant(
        "an epsilon that was computed at one delta is shown at another",
        "fedprivacy/accounting/population.py",
        "<< _DELTA_BITS | number",
        "<< _DELTA_BITS",
        (f"{POPULATION}::test_the_same_steps_at_another_delta_have_another_epsilon",),
    ),
    Mutant(
        "an epsilon that was computed at one delta is shown at another that has got its number",
        "fedprivacy/accounting/population.py",
        "if not np.array_equal(number[: self._delta_number.size], self._delta_number):",
        "if False:",
        (f"{POPULATION}::test_the_same_steps_at_another_delta_have_another_epsilon",),
    ),
    Mutant(
        "a receipt of another round proves a charge",
        "fedprivacy/ledger/verify.py",
        "if key[1:] != Attempt.named_in(said):",
        "if False:",
        ("tests/ledger/test_verify.py::test_a_receipt_of_another_round_or_run_proves_no_charge[sqlite-round]",),
    ),
    Mutant(
        "a receipt of another run proves a charge",
        "fedprivacy/ledger/verify.py",
        "if key[1:] != Attempt.named_in(said):",
        "if key[2:] != Attempt.named_in(said)[1:]:",
        ("tests/ledger/test_verify.py::test_a_receipt_of_another_round_or_run_proves_no_charge[sqlite-run]",),
    ),
    Mutant(
        "a group of three people is told unless a data owner forbids it",
        "fedprivacy/flower/client/node.py",
        "SMALLEST_COHORT = 10.0",
        "SMALLEST_COHORT = 0.0",
        (f"{NEIGHBOURS}::test_a_data_owner_who_sets_no_smallest_cohort_tells_nothing_of_three_people",),
    ),
    Mutant(
        "the SuperLink that is written admits any client",
        f"{HANDOUT}/fedprivacy-superlink.service.jinja",
        "--enable-supernode-auth ",
        "",
        (f"{WRITTEN}::test_the_superlink_answers_this_host_alone_over_tls_and_admits_none_but_registered_clients",),
    ),
    Mutant(
        "the SuperLink that is written answers the network, where its other interfaces have no login",
        f"{HANDOUT}/fedprivacy-superlink.service.jinja",
        "--host 127.0.0.1",
        "--host 0.0.0.0",
        (f"{WRITTEN}::test_the_superlink_answers_this_host_alone_over_tls_and_admits_none_but_registered_clients",),
    ),
    Mutant(
        "the SuperLink that is written speaks without TLS",
        f"{HANDOUT}/fedprivacy-superlink.service.jinja",
        "--ssl-ca-certfile {{ folder }}/ca.crt ",
        "--insecure ",
        (f"{WRITTEN}::test_the_superlink_answers_this_host_alone_over_tls_and_admits_none_but_registered_clients",),
    ),
    Mutant(
        "the client that is written speaks without TLS",
        f"{HANDOUT}/fedprivacy-client.service.jinja",
        "--root-certificates {{ folder }}/ca.crt",
        "--insecure",
        (f"{WRITTEN}::test_a_client_speaks_to_none_but_the_server_over_tls_and_shows_its_own_key",),
    ),
    Mutant(
        "what a client's service writes everybody on its host reads",
        f"{HANDOUT}/fedprivacy-client.service.jinja",
        "UMask=0077",
        "UMask=0022",
        (f"{WRITTEN}::test_what_a_service_writes_no_other_account_reads",),
    ),
    Mutant(
        "the operator's commands speak without TLS",
        f"{HANDOUT}/flower-config.toml.jinja",
        "insecure = false",
        "insecure = true",
        (f"{WRITTEN}::test_the_operator_s_commands_speak_to_the_superlink_over_tls",),
    ),
    Mutant(
        "the proxy that is written lets everybody through to the interfaces without a login",
        f"{HANDOUT}/nginx.conf.jinja",
        "return 404;",
        "proxy_pass https://127.0.0.1:{{ superlink_port }};",
        (f"{WRITTEN}::test_the_proxy_lets_the_clients_interface_through_and_nothing_else",),
    ),
    Mutant(
        "a page of another origin reads a dashboard without a token by a name that begins like this machine's",
        "fedprivacy/server/dashboard/security.py",
        'if host == "localhost":',
        'if host.startswith("localhost"):',
        (f"{DASHBOARD}::test_without_a_token_only_this_machine_s_names_are_answered",),
    ),
    Mutant(
        "a dashboard may stand in the frame of any page",
        "fedprivacy/server/dashboard/security.py",
        "frame-ancestors 'none'",
        "frame-ancestors *",
        (f"{DASHBOARD}::test_a_page_runs_its_own_scripts_alone_and_stands_in_no_other_s_frame[/]",),
    ),
    Mutant(
        "an interface that can be reached and asks for a login is taken for closed",
        "fedprivacy/deploy/inspection.py",
        "door.ask(method, path).status != 404]",
        "door.ask(method, path).status not in (401, 404)]",
        (
            "tests/deploy/test_inspection.py::test_an_interface_that_answers_anything_but_that_it_is_not_there_is_open[401]",
        ),
    ),
    Mutant(
        "a certificate may state half of what its history costs",
        "fedprivacy/ledger/certificate.py",
        "> certificate.epsilon + _TOLERANCE",
        "> 2.0 * certificate.epsilon + _TOLERANCE",
        (f"{CERTIFICATE}::{UNDERSTATED}",),
    ),
    Mutant(
        "a certificate may state half of what a question costs",
        "fedprivacy/ledger/certificate.py",
        "> stated + _TOLERANCE",
        "> 2.0 * stated + _TOLERANCE",
        (f"{CERTIFICATE}::{UNDERSTATED}",),
    ),
    Mutant(
        "the audit passes a run whose rounds were charged one step too few",
        "fedprivacy/audit/gates/ledger.py",
        "if steps < asked and not",
        "if steps < asked - 1 and not",
        ("tests/audit/gates/test_finished_run.py::test_a_step_that_was_asked_for_and_not_charged_is_noticed",),
    ),
    Mutant(
        "nobody looks whether a stack shows a record or a client its company",
        "fedprivacy/gradients/stack_check.py",
        "        self._check_company(whole)\n",
        "",
        (f"{NOT_TRUSTED}[a record beside it]",),
    ),
    Mutant(
        "nobody looks whether a stack shows a record beside which other it stands",
        "fedprivacy/gradients/stack_check.py",
        """        _check(whole.of(slots, kept), beside.of(slots, kept), "by its company")\n""",
        "",
        (f"{NOT_TRUSTED}[a record beside it]",),
    ),
    Mutant(
        "nobody looks whether a stack shows a client's sum who else is in it",
        "fedprivacy/gradients/stack_check.py",
        """        _check(whole.of(slots[complete]), beside.of(slots[complete]), "by the slots beside its own")\n""",
        "",
        (f"{NOT_TRUSTED}[a client beside it]",),
    ),
    Mutant(
        "a local evaluation has the sample and the noise of its round's first step",
        "fedprivacy/flower/client/local.py",
        "Position(grant.round, grant.steps)",
        "Position(grant.round, 1)",
        (
            "tests/flower/test_local_evaluation.py"
            "::test_an_evaluation_shares_neither_sample_nor_noise_with_a_step_of_its_round",
        ),
    ),
    # Survivors of 2026-11-25: figures.
    Mutant(
        "the error of a local evaluation forgets the sampling rate",
        "fedprivacy/training/evaluation.py",
        "noise = math.hypot(*(sums.event.noise_multiplier / rate for sums, rate in zip(released, rates, strict=True)))",
        "noise = math.hypot(*(sums.event.noise_multiplier for sums in released))",
        ("tests/training/test_evaluation.py::test_the_deviation_is_how_far_the_noise_moves_the_estimate[0.25]",),
    ),
    Mutant(
        "a deadline is counted from the beginning of the run, and not of the round",
        "fedprivacy/participation/participation.py",
        "over, training = began + self.deadline",
        "over, training = self.deadline",
        (f"{PARTICIPATION}::test_a_deadline_is_counted_from_the_beginning_of_its_own_round",),
    ),
    Mutant(
        "the pull of Ditto and MR-MTL is that of one step, whatever the number of steps",
        "fedprivacy/training/algorithms/pull.py",
        " ** steps",
        "",
        ("tests/training/test_algorithms.py::test_the_pull_is_that_of_every_step_and_not_of_one",),
    ),
    Mutant(
        "workers lose what personal algorithms keep",
        "fedprivacy/flower/client/cohort.py",
        "        self.kept |= other.kept\n",
        "",
        ("tests/flower/test_workers.py::test_what_personal_algorithms_keep_comes_back_from_a_worker[fedper]",),
    ),
    Mutant(
        "a sum with bounds around zero shows a part of the records as their count",
        "fedprivacy/questions/moments.py",
        "return 1.0 / self.weights[0]",
        "return 1.0 / STEPS",
        (f"{MOMENTS}::test_a_sum_counts_every_record_once_wherever_its_bounds_lie",),
    ),
    Mutant(
        "the count of a sum with bounds around zero has next to nothing of the sensitivity",
        "fedprivacy/questions/moments.py",
        "LEAST_COUNT = 0.085",
        "LEAST_COUNT = 0.001",
        (f"{MOMENTS}::test_around_zero_the_count_of_a_sum_stays_of_use_and_the_sum_errs_hardly_more",),
    ),
    Mutant(
        "questions that are asked together are shown, and kept, with the noise of all of them",
        "fedprivacy/flower/server/asking.py",
        "sigmas = asked.noise_multipliers(plan.noise_multiplier)",
        "sigmas = [plan.noise_multiplier] * len(asked.questions)",
        (
            f"{ANSWERED}::test_questions_that_are_asked_together_each_have_the_error_of_their_share_now_and_when_read_again",
        ),
    ),
    Mutant(
        "the oldest answer is read again, though the question was asked anew since",
        "fedprivacy/flower/server/asking.py",
        "each[dataset][-1]",
        "each[dataset][0]",
        (f"{ANSWERED}::test_of_several_answers_to_one_question_the_newest_is_read_again",),
    ),
    Mutant(
        "a what-if shows rounds that a budget which has expired would allow",
        "fedprivacy/server/dashboard/forecasts.py",
        "elif allowance.expired:",
        "elif False:",
        ("tests/server/dashboard/test_api.py::test_what_if_leaves_nothing_of_a_budget_that_has_expired",),
    ),
    Mutant(
        "a threshold of Clopper and Pearson's bound is tried on the scores that chose it",
        "fedprivacy/audit/bounds/clopper_pearson.py",
        "np.delete(scores, slice(None, None, _CHOOSING)) for scores in",
        "scores[::_CHOOSING] for scores in",
        (f"{CLOPPER_PEARSON}::test_a_threshold_is_tried_on_other_scores_than_it_was_chosen_on[0.5]",),
    ),
    Mutant(
        "a threshold of Clopper and Pearson's bound is tried on all scores, with those that chose it",
        "fedprivacy/audit/bounds/clopper_pearson.py",
        "np.delete(scores, slice(None, None, _CHOOSING)) for scores in",
        "scores for scores in",
        (f"{CLOPPER_PEARSON}::test_scores_that_choose_a_threshold_prove_nothing_themselves",),
    ),
    Mutant(
        "fine-tuning of clients that train together begins at what another algorithm kept",
        "fedprivacy/flower/kept.py",
        "if algorithm != self.algorithm:",
        "if not self.algorithm:",
        (f"{ALGORITHMS}::{FINE_TUNED}[together]",),
    ),
    Mutant(
        "fine-tuning of clients that get messages begins at what another algorithm kept",
        "fedprivacy/flower/kept.py",
        ' if facts["algorithm"] == whose.algorithm else None',
        "",
        (f"{ALGORITHMS}::{FINE_TUNED}[messages]",),
    ),
    Mutant(
        "noise is solved for as if a record were added or removed, whatever the relation",
        "fedprivacy/accounting/calibration.py",
        "PoissonSampledGaussian(sampling_rate, noise, relation), steps)",
        "PoissonSampledGaussian(sampling_rate, noise), steps)",
        ("tests/accounting/test_calibration.py::test_replacing_a_record_takes_twice_the_noise_of_adding_one",),
    ),
    Mutant(
        "a reading states a smaller delta than its epsilon is of",
        "fedprivacy/accounting/views.py",
        "Epsilon(pld.epsilon(executed, delta), delta, View.SERVER, stated)",
        "Epsilon(pld.epsilon(executed, max(delta, 1e-5)), delta, View.SERVER, stated)",
        ("tests/accounting/test_views.py::test_the_server_s_reading_is_the_pld_s",),
    ),
    Mutant(
        "a mean is told of fewer records than its interval is right for",
        "fedprivacy/questions/figures.py",
        "ENOUGH = 3.0",
        "ENOUGH = 2.2",
        ("tests/questions/test_figures.py::test_too_few_records_are_divided_by_nothing",),
    ),
    Mutant(
        "any clipping norm is taken, those at which float32 clips nothing, too",
        "fedprivacy/values/events.py",
        "CLIPPING_NORMS = (1e-6, 1e6)",
        "CLIPPING_NORMS = (1e-300, 1e300)",
        ("tests/training/test_mechanisms.py::test_a_clipping_norm_that_no_noise_fits_is_refused",),
    ),
)


def main() -> int:
    """Plant every mutant; 0 if all are noticed, and nothing is noticed where there is none."""
    start = time.monotonic()
    for mutant in MUTANTS:  # an old text that is gone is told before anything else
        mutant.planted_in((ROOT / mutant.file).read_text())
    import_heavy()  # before the processes part
    processes = min(os.cpu_count() or 1, 2)
    shares = [MUTANTS[first::processes] for first in range(processes)]
    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        complaints = [complaint for share in pool.map(_unnoticed, shares) for complaint in share]
    for complaint in complaints:
        print(complaint)
    print(f"{len(MUTANTS) - len(complaints)} of {len(MUTANTS)} mutants noticed; {time.monotonic() - start:.0f} s.")
    return 1 if complaints else 0


def _unnoticed(mutants: Sequence[Mutant]) -> list[str]:
    """What is wrong with some mutants, or rather with their tests; empty if each was noticed."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Workbench(Path(folder))
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        healthy = bench.run(tests, LIMIT * len(mutants))
        if not healthy.passed:
            return [f"The tests fail where nothing is planted ({healthy.ended}):\n{healthy.output}"]
        return [complaint for mutant in mutants for complaint in _complaints(bench, mutant)]


def _complaints(bench: Workbench, mutant: Mutant) -> list[str]:
    """One, if a mutant's tests pass or cannot run."""
    with bench.planted(mutant.file, mutant.planted_in((bench.folder / mutant.file).read_text())):
        outcome = bench.run(mutant.tests, LIMIT)
    if outcome.failed:
        return []
    said = "pass" if outcome.passed else f"cannot run ({outcome.ended}):\n{outcome.output}"
    return [f"Nobody notices that {mutant.meaning} ({mutant.file}): {', '.join(mutant.tests)} {said}"]


if __name__ == "__main__":
    sys.exit(main())
