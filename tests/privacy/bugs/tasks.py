"""Bugs of tasks and their records."""

from tests.privacy.bugs import guarantees
from tests.privacy.bugs.bug import Bug

BUGS = (
    Bug(
        meaning="inputs are standardised by the shard itself",
        place="fedprivacy.tasks.standardising:Standardise.forward",
        old="inputs[:, :count].double().clamp(self.low, self.high) - self.mean",
        new="inputs[:, :count].double().clamp(self.low, self.high) - inputs[:, :count].double().nanmean(0)",
        breaks=guarantees.OTHERS,
        tests=(
            "tests/privacy/test_standardised_attacked.py"
            "::test_inputs_become_what_the_server_s_numbers_say_and_those_of_the_bounds_if_it_sends_none",
        ),
    ),
    Bug(
        meaning="inputs are not moved to their bounds",
        place="fedprivacy.tasks.standardising:Standardise.forward",
        old="inputs[:, :count].double().clamp(self.low, self.high)",
        new="inputs[:, :count].double()",
        breaks=guarantees.FIGURE,
        tests=(
            "tests/privacy/test_standardised_attacked.py"
            "::test_inputs_become_what_the_server_s_numbers_say_and_those_of_the_bounds_if_it_sends_none",
        ),
    ),
    Bug(
        meaning="a null row is trained on",
        place="fedprivacy.tasks.task:Shard.present",
        old="self.holding(self.inputs[kept], self.targets[kept.to(self.targets.device)])",
        new="self",
        breaks=guarantees.NULL_ROWS,
        tests=(
            "tests/privacy/test_null_rows.py"
            "::test_a_null_row_leaves_no_bit_and_a_record_in_its_place_moves_a_sum_by_the_clipping_norm"
            "[whole numbers-sums of some]",
        ),
        gates=("release",),
        task="Imputing",
    ),
    Bug(
        meaning="a row with NaN is trained on by a model that takes it",
        place="fedprivacy.tasks.task:_null_rows",
        old="holding_nan(inputs)",
        new="torch.zeros(len(inputs), dtype=torch.bool)",
        breaks=guarantees.NULL_ROWS,
        tests=(
            "tests/privacy/test_null_rows.py"
            "::test_a_null_row_leaves_no_bit_and_a_record_in_its_place_moves_a_sum_by_the_clipping_norm"
            "[imputes-sums of some]",
        ),
    ),
    Bug(
        meaning="whole numbers need not say which rows are null",
        place="fedprivacy.tasks.task:check_null",
        old="shard.null is None and relation is NeighbouringRelation.ZERO_OUT",
        new="False",
        breaks=guarantees.NULL_ROWS,
        tests=("tests/privacy/test_null_rows.py::test_whole_numbers_with_public_sizes_must_say_which_rows_are_null",),
    ),
    Bug(
        meaning="a null row does not count in the size that is disclosed",
        place="fedprivacy.tasks.task:Shard.__len__",
        old="len(self.inputs) if self.null is None else len(self.null)",
        new="len(self.inputs)",
        breaks=guarantees.NULL_ROWS,
        tests=("tests/privacy/test_null_rows.py::test_null_rows_count_in_the_size_that_is_disclosed",),
    ),
    Bug(
        meaning="a reader that lets one cell change all records passes",
        place="fedprivacy.tasks.one_cell:_Reader._change",
        old="if len(gone) > 1: ...",
        new="if False: ...",
        breaks=guarantees.OTHERS,
        tests=("tests/tasks/test_one_cell.py::test_what_depends_on_all_records_is_found",),
    ),
    Bug(
        meaning="a reader that writes what all records say into the model passes",
        place="fedprivacy.tasks.one_cell:_Reader.unsuited",
        old="parts if parts == again else None",
        new="None",
        breaks=guarantees.OTHERS,
        tests=("tests/tasks/test_one_cell.py::test_what_reading_leaves_for_the_model_or_the_loss_is_found",),
    ),
)
