"""Bugs of the client's own book."""

from tests.privacy.bugs import guarantees
from tests.privacy.bugs.bug import Bug

BUGS = (
    Bug(
        meaning="the guard's budget is compared off by one",
        place="fedprivacy.guard.guard:Guard.charge",
        old="if left < steps: ...",
        new="if left < steps - 1: ...",
        breaks=guarantees.BUDGET,
        tests=("tests/guard/test_guard.py::test_the_budget_is_kept_whatever_is_asked",),
    ),
    Bug(
        meaning="questions may take the whole budget",
        place="fedprivacy.guard.guard:Guard.charge",
        old="may_be_asked < steps",
        new="may_be_asked < 0",
        breaks=guarantees.QUESTION_BUDGET,
        tests=("tests/guard/test_questions.py::test_answers_stop_at_their_own_budget_and_training_goes_on",),
    ),
    Bug(
        meaning="every question has the budget of all of them",
        place="fedprivacy.guard.tally:counts_as_question",
        old="entry.attempt.asks if isinstance(entry, ChargeEntry) else is_unsampled_gaussian(entry.event)",
        new="False if isinstance(entry, ChargeEntry) else is_unsampled_gaussian(entry.event)",
        breaks=guarantees.QUESTION_BUDGET,
        tests=("tests/guard/test_questions.py::test_answers_stop_at_their_own_budget_and_training_goes_on",),
    ),
    Bug(
        meaning="questions that only the server's ledger holds may be asked again",
        place="fedprivacy.guard.tally:counts_as_question",
        old="is_unsampled_gaussian(entry.event)",
        new="False",
        breaks=guarantees.QUESTION_BUDGET,
        tests=(
            "tests/guard/test_questions.py"
            "::test_what_a_server_counts_beyond_the_client_is_taken_for_questions_where_it_may_be",
        ),
    ),
    Bug(
        meaning="a replayed grant is trained again under its old charge",
        place="fedprivacy.guard.guard:_check_new",
        old="attempt in tally.charges",
        new="attempt in tally.sealed",
        breaks=guarantees.CHARGED,
        tests=("tests/guard/test_guard.py::test_a_replayed_grant_is_refused_and_a_new_attempt_or_round_is_charged",),
    ),
    Bug(
        meaning="what the server's ledger holds more is not believed",
        place="fedprivacy.guard.guard:_corrections",
        old="server_steps > client_steps",
        new="False",
        breaks=guarantees.REMEMBERED,
        tests=("tests/guard/test_guard.py::test_what_the_server_counts_beyond_the_client_counts_from_then_on",),
    ),
    Bug(
        meaning="a server can lower what the client has counted",
        place="fedprivacy.guard.guard:_corrections",
        old="server_steps > client_steps",
        new="server_steps != client_steps",
        breaks=guarantees.REMEMBERED,
        tests=("tests/guard/test_guard.py::test_what_the_client_counts_beyond_the_server_stands",),
    ),
    Bug(
        meaning="another server takes over a run, and gets what was sealed for the first",
        place="fedprivacy.guard.guard:_check_run_key",
        old="opened != signer",
        new="not opened",
        breaks=guarantees.SERVER,
        tests=("tests/guard/test_guard.py::test_a_sealed_update_is_for_the_server_that_opened_the_run",),
    ),
    Bug(
        meaning="two different updates leave under one charge",
        place="fedprivacy.guard.guard:Guard.seal",
        old="before.sha256 != digest",
        new="not digest",
        breaks=guarantees.RECEIPTS,
        tests=(
            "tests/guard/test_guard.py"
            "::test_another_update_is_not_sealed_in_the_place_of_one_and_the_same_one_is_no_error",
        ),
    ),
    Bug(
        meaning="a sealed update is written down before it is on the disk",
        place="fedprivacy.guard.guard:Guard.seal",
        old="""
            try:
                seals.write(file, update)
            except OSError as error:
                raise LogWriteError(file, error, undone=True) from error
            write(SealedEntry(attempt, name, digest, now()))
        """,
        new="""
            write(SealedEntry(attempt, name, digest, now()))
            try:
                seals.write(file, update)
            except OSError as error:
                raise LogWriteError(file, error, undone=True) from error
        """,
        breaks=guarantees.REMEMBERED,
        tests=(
            "tests/guard/test_seals.py"
            "::test_update_name_and_folder_are_on_the_disk_before_the_log_says_that_it_is_sealed",
        ),
    ),
    Bug(
        meaning="the newest charge replaces the ones before it",
        place="fedprivacy.guard.tally:Tally.add",
        old="self.history.get(entry.event, 0) + entry.steps",
        new="entry.steps",
        breaks=guarantees.REMEMBERED,
        tests=("tests/guard/test_guard.py::test_charges_add_up_over_rounds_runs_and_processes",),
    ),
    Bug(
        meaning="a sealed update that somebody changed is sent",
        place="fedprivacy.guard.seals:read",
        old="update if sha256(update).hexdigest() == digest else None",
        new="update",
        breaks=guarantees.RECEIPTS,
        tests=("tests/guard/test_guard.py::test_a_sealed_update_that_is_torn_or_damaged_is_not_sent",),
    ),
    Bug(
        meaning="a charge stands on the disk once, so that one fault makes it disappear",
        place="fedprivacy.guard.log:EntryLog._append",
        old="write_at(fd, frames.slot_block(frame), SLOT_AT)",
        new="pass",
        breaks=guarantees.REMEMBERED,
        tests=("tests/guard/test_log.py::test_each_copy_of_an_entry_is_on_the_disk_before_the_next_write_begins",),
    ),
    Bug(
        meaning="a log that the disk does not give back is taken for an empty one",
        place="fedprivacy.guard.log:EntryLog.transaction",
        old="""
            try:
                self._lock(fd)
                self._read(fd)
            except OSError as error:
                raise LogWriteError(self.file, error, undone=True) from error
        """,
        new="""
            try:
                self._lock(fd)
                self._read(fd)
            except OSError:
                pass
        """,
        breaks=guarantees.REMEMBERED,
        tests=(
            "tests/guard/test_tally.py::test_a_tally_that_the_disk_does_not_give_back_is_not_taken_for_an_empty_one",
        ),
    ),
    Bug(
        meaning="two processes charge one budget at once",
        place="fedprivacy.guard.log:EntryLog._lock",
        old="fcntl.LOCK_EX | fcntl.LOCK_NB",
        new="fcntl.LOCK_SH | fcntl.LOCK_NB",
        breaks=guarantees.REMEMBERED,
        tests=("tests/guard/test_log.py::test_a_process_that_waits_too_long_is_told_so",),
    ),
    Bug(
        meaning="a log that lost entries since it was read is believed",
        place="fedprivacy.guard.log:EntryLog._read",
        old='payloads[: len(before)] != before or self.identity not in ("", identity)',
        new='self.identity not in ("", identity)',
        breaks=guarantees.REMEMBERED,
        tests=(
            "tests/guard/test_log.py::test_a_log_that_lost_entries_since_it_was_read_is_noticed_though_it_looks_whole",
        ),
    ),
    Bug(
        meaning="a log that changed since it was read is believed if it is as long as before",
        place="fedprivacy.guard.log:EntryLog._unchanged",
        old="os.pread(fd, len(piece), ENTRIES_AT + at) == piece",
        new="len(os.pread(fd, len(piece), ENTRIES_AT + at)) == len(piece)",
        breaks=guarantees.REMEMBERED,
        tests=(
            "tests/guard/test_log.py"
            "::test_a_log_that_changed_since_it_was_read_is_mended_or_noticed_as_if_it_was_never_read[added1]",
        ),
    ),
    Bug(
        meaning="a guard changes its filter with the program's default",
        place="fedprivacy.guard.guard:Guard._allowance",
        old="tally.allowance.filter if tally.allowance else usual",
        new="usual",
        breaks=guarantees.ACCOUNT,
        tests=("tests/guard/test_guard.py::test_a_filter_that_nobody_names_stays_the_one_of_the_last_charge",),
    ),
    Bug(
        meaning="a size is protected, and disclosed afterwards",
        place="fedprivacy.guard.guard:Guard._check_promise",
        old="tally.relation not in (None, relation)",
        new="False",
        breaks=guarantees.ACCOUNT,
        tests=(
            "tests/flower/test_node.py::test_a_size_that_was_protected_is_disclosed_by_no_later_task_of_the_same_guard",
        ),
    ),
    Bug(
        meaning="a guard does not compare units of privacy",
        place="fedprivacy.guard.guard:Guard._check_promise",
        old="tally.unit != self._unit",
        new="False",
        breaks=guarantees.ACCOUNT,
        tests=("tests/guard/test_guard.py::test_an_account_keeps_its_unit_of_privacy[to persons]",),
    ),
    Bug(
        meaning="charges by person are entered as charges by record",
        place="fedprivacy.guard.guard:Guard.charge",
        old="self._unit != RECORD",
        new="False",
        breaks=guarantees.ACCOUNT,
        tests=("tests/guard/test_guard.py::test_an_account_keeps_its_unit_of_privacy[to rows]",),
    ),
    Bug(
        meaning="a guard's file may have two names",
        place="fedprivacy.guard.log:EntryLog._read",
        old="_links(self.file, fd) > 1",
        new="False",
        breaks=guarantees.ACCOUNT,
        tests=("tests/guard/test_names.py::test_a_file_with_a_second_name_is_refused_until_the_name_is_gone",),
    ),
    Bug(
        meaning="whoever comes by a link does not see what was sealed beside the file",
        place="fedprivacy.guard.log:EntryLog.__init__",
        old="file.resolve()",
        new="file",
        breaks=guarantees.ACCOUNT,
        tests=("tests/guard/test_names.py::test_an_older_copy_is_refused_by_whoever_comes_by_a_symbolic_link[file]",),
    ),
    Bug(
        meaning="an older copy is believed under another name",
        place="fedprivacy.guard.seals:folder_of",
        old="min((folder for folder in log.parent.iterdir() if folder.name.endswith(end)), default=named)",
        new="named",
        breaks=guarantees.ACCOUNT,
        tests=("tests/guard/test_names.py::test_a_copy_under_another_name_finds_what_was_sealed_since[other.log]",),
    ),
    Bug(
        meaning="a guard changes its filter in the middle",
        place="fedprivacy.guard.guard:Guard._allowance",
        old='self._named_filter not in ("", last)',
        new="False",
        breaks=guarantees.ACCOUNT,
        tests=("tests/guard/test_renewal.py::test_another_filter_in_the_middle_is_refused_and_nothing_is_charged",),
    ),
    Bug(
        meaning="a charge is decided by an account that another has charged since",
        place="fedprivacy.guard.guard:Guard.charge",
        old="len(self._kept.tally.entries) != before.entries",
        new="False",
        breaks=guarantees.CHARGED,
        tests=("tests/guard/test_guard.py::test_what_is_charged_while_a_quota_is_solved_counts_in_the_decision",),
    ),
    Bug(
        meaning="charges without a budget are not brought over",
        place="fedprivacy.guard.adoption",
        old=(
            '"SELECT dataset_id, run_id, round, attempt, steps, sampling_rate, noise_multiplier, relation, '
            "epsilon, delta, filter FROM charges LEFT JOIN budgets USING (dataset_id) WHERE state != 'void' "
            'ORDER BY charge_id"'
        ),
        new=(
            '"SELECT dataset_id, run_id, round, attempt, steps, sampling_rate, noise_multiplier, relation, '
            "epsilon, delta, filter FROM charges JOIN budgets USING (dataset_id) WHERE state != 'void' ORDER BY "
            'charge_id"'
        ),
        breaks=guarantees.REMEMBERED,
        tests=("tests/guard/test_adoption.py::test_every_charge_that_stands_comes_over_with_a_budget_or_without",),
    ),
    Bug(
        meaning="a relation that was promised in the meantime does not refuse a charge",
        place="fedprivacy.guard.guard:Guard.charge",
        old="""
            with self._kept.transaction() as write:
                self._check_promise(event.relation)
                ...
        """,
        new="""
            with self._kept.transaction() as write:
                ...
        """,
        breaks=guarantees.ACCOUNT,
        tests=(
            "tests/guard/test_guard.py::test_a_relation_that_is_promised_while_a_quota_is_solved_refuses_the_charge",
        ),
    ),
    Bug(
        meaning="an import changes the filter of an account",
        place="fedprivacy.guard.adoption:adopt",
        old="own = kept.tally.allowance",
        new="own = None",
        breaks=guarantees.ACCOUNT,
        tests=(
            "tests/guard/test_adoption.py::test_an_import_changes_no_filter_and_loses_no_charge_of_another_data_set",
        ),
    ),
)
