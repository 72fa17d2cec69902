"""Bugs of gradients, clipped sums and stacks."""

from tests.privacy.bugs import guarantees
from tests.privacy.bugs.bug import Bug

BUGS = (
    Bug(
        meaning="a model whose records see one another is accepted",
        place="fedprivacy.gradients.checks.behaviour:behavioural_problems",
        old="_mixing(model, records)",
        new="[]",
        breaks=guarantees.MIXED,
        tests=("tests/gradients/test_supported.py::test_mixing_shows_through_a_head_that_starts_at_zero",),
    ),
    Bug(
        meaning="a frozen layer draws and mixes records where a loop calls train()",
        place="fedprivacy.gradients.engine:GradientEngine.clip",
        old="with computing_with(self._admitted.threads), self._modes.kept(): ...",
        new="with computing_with(self._admitted.threads): ...",
        breaks=guarantees.MIXED,
        tests=(
            "tests/gradients/test_modes.py::test_a_later_call_of_train_changes_neither_gradients_nor_buffers[Dropout]",
            "tests/gradients/test_modes.py::test_a_later_call_of_train_changes_neither_gradients_nor_buffers[BatchNorm]",
        ),
    ),
    Bug(
        meaning="a sum is taken while another thread has given its layers other parameters and modes",
        place="fedprivacy.gradients.threads:one_at_a_time",
        old="with _ALONE: ...",
        new="if True: ...",
        breaks=guarantees.CLIPPED,
        tests=(
            "tests/gradients/test_attacks.py"
            "::test_a_sum_is_not_taken_of_parameters_with_which_another_engine_tries_the_layer",
        ),
    ),
    Bug(
        meaning="how many rows others have decides what a person's rows weigh",
        place="fedprivacy.gradients.methods.averaged:rows_that_count",
        old="weights.sum(1, keepdim=True)",
        new="weights.sum(1).mean()",
        breaks=guarantees.MIXED,
        tests=("tests/gradients/test_persons.py::test_a_person_s_bits_do_not_show_how_many_rows_others_have[program]",),
    ),
    Bug(
        meaning="a person is clipped by the norm of the first row",
        place="fedprivacy.gradients.methods.averaged:AveragedOverRows.pieces",
        old="[Sized(part, piece, piece.norms()) for part, piece in averaged]",
        new="""
            [
                Sized(part, piece, sized.norms.view(-1, self._layout.each)[:, 0])
                for (part, piece), sized in zip(averaged, rows, strict=True)
            ]
        """,
        breaks=guarantees.CLIPPED,
        tests=(
            "tests/gradients/test_persons.py::test_a_whole_person_moves_the_sum_by_at_most_the_clipping_norm[40-0]",
        ),
    ),
    Bug(
        meaning="a shard of rows passes for one of persons",
        place="fedprivacy.tasks.loader:shard_of",
        old="if wrong := _not_of(unit_of(task), shard.rows, shard.by_person): ...",
        new="pass",
        breaks=guarantees.CLIPPED,
        tests=(
            "tests/flower/test_persons.py"
            "::test_a_shard_that_is_not_of_the_task_s_unit_is_refused_before_anything_is_charged",
        ),
    ),
    Bug(
        meaning="a layer that calls train() on itself passes for one in eval()",
        place="fedprivacy.gradients.checks.behaviour:_side_effects",
        old="_first(model, records, lambda batch: _random_state(batch.device))",
        new="None",
        breaks=guarantees.MIXED,
        tests=(
            "tests/gradients/test_modes.py::test_a_layer_that_does_not_stay_in_eval_is_refused[Dropout that wakes up]",
        ),
    ),
    Bug(
        meaning="a wrong rule passes for a unit at a kink",
        place="fedprivacy.gradients.selfcheck:checked",
        old="if not _right_in_double(make, model, loss, probe): ...",
        new="pass",
        breaks=guarantees.CLIPPED,
        tests=("tests/gradients/test_kinks.py::test_a_unit_at_a_kink_is_told_from_a_wrong_rule[0.03-False]",),
    ),
    Bug(
        meaning="the rows that fill a part up count like records",
        place="fedprivacy.gradients.engine:GradientEngine._measured",
        old="None if records == len(inputs) else _first(records, inputs)",
        new="None",
        breaks=guarantees.CLIPPED,
        tests=("tests/gradients/test_clipped_sum.py::test_equals_the_per_record_loop",),
    ),
    Bug(
        meaning="a record that has no finite gradient counts like the one in its place",
        place="fedprivacy.gradients.engine:GradientEngine._finite",
        old="finite if usable is None else finite & usable",
        new="usable",
        breaks=guarantees.CLIPPED,
        tests=("tests/gradients/test_clipped_sum.py::test_a_record_without_a_finite_gradient_contributes_zero",),
    ),
    Bug(
        meaning="the copies that fill the last part up are taken for records",
        place="fedprivacy.gradients.engine:GradientEngine._add_part",
        old="self._measured(*rows, len(inputs))",
        new="self._measured(*rows, size)",
        breaks=guarantees.CLIPPED,
        tests=("tests/gradients/test_clipped_sum.py::test_equals_the_per_record_loop",),
    ),
    Bug(
        meaning="small parts are used whether or not a record has the same bits in them",
        place="fedprivacy.gradients.invariance:_agrees",
        old="min(count, WHOLE)",
        new="0",
        breaks=guarantees.CLIPPED,
        tests=("tests/gradients/test_invariance.py::test_one_last_bit_of_one_record_in_a_small_part_is_enough[12]",),
    ),
    Bug(
        meaning="records that memory does not hold together all count for nothing, which one of them more decides",
        place="fedprivacy.gradients.engine:GradientEngine._concerns_all",
        old="out_of_memory(error) and not self._admitted.alone",
        new="False",
        breaks=guarantees.DOOR,
        tests=("tests/gradients/test_memory.py::test_one_record_more_takes_no_other_out_of_the_sum",),
    ),
    Bug(
        meaning="how many records memory holds together is found out with true ones",
        place="fedprivacy.gradients.engine:GradientEngine.prepare",
        old="self._sizes_that_fit(probe)",
        new="self._admitted.sizes",
        breaks=guarantees.DOOR,
        tests=(
            "tests/gradients/test_memory.py::test_sizes_that_memory_does_not_hold_drop_out_before_there_are_records",
        ),
    ),
    Bug(
        meaning="that records are kept apart is judged before their views are averaged",
        place="fedprivacy.gradients.methods.admission:_in_portions",
        old="_apart(chosen, model, layout.of_made_up(probe), wanted, by_single_rows=not half)",
        new="""
            replace(
                _apart(replace(chosen, method=method), model, probe, wanted, by_single_rows=False),
                method=of_records,
            )
        """,
        breaks=guarantees.CLIPPED,
        tests=("tests/gradients/test_memory.py::test_an_average_over_views_that_shows_who_else_is_there_is_not_used",),
    ),
    Bug(
        meaning="a product that adds up some rows in another order is not seen where a loss hides it",
        place="fedprivacy.gradients.invariance:_products_tried",
        old="EqualRowsStayEqual(size) if tried else nullcontext()",
        new="nullcontext()",
        breaks=guarantees.CLIPPED,
        tests=(
            "tests/gradients/test_equal_rows.py"
            "::test_a_product_that_a_flat_loss_hides_rules_out_the_size_in_which_it_is",
        ),
    ),
    Bug(
        meaning="products are tried in the largest parts alone",
        place="fedprivacy.gradients.invariance:_agrees",
        old="with _products_tried(size, first and start == 0), NothingLeftOver(size): ...",
        new="with NothingLeftOver(size): ...",
        breaks=guarantees.CLIPPED,
        tests=(
            "tests/gradients/test_equal_rows.py"
            "::test_a_product_that_a_flat_loss_hides_rules_out_the_size_in_which_it_is",
        ),
    ),
    Bug(
        meaning="a product is tried on too few numbers",
        place="fedprivacy.gradients.equal_rows:EqualRowsStayEqual._try",
        old="max(2, -(-ENOUGH * rows // numbers))",
        new="2",
        breaks=guarantees.CLIPPED,
        tests=("tests/gradients/test_equal_rows.py::test_an_order_that_seldom_shows_is_noticed",),
    ),
    Bug(
        meaning="in half precision rounding hides the order of a sum",
        place="fedprivacy.gradients.equal_rows:EqualRowsStayEqual._try",
        old="self._take_back(made, *factors)",
        new="pass",
        breaks=guarantees.CLIPPED,
        tests=(
            "tests/gradients/test_equal_rows.py"
            "::test_it_is_noticed_in_half_precision_where_a_last_bit_is_mostly_rounded_away",
        ),
    ),
    Bug(
        meaning="scores that were judged with products of single rows are computed with others",
        place="fedprivacy.gradients.apart:RowByRow.__call__",
        old="one_row_at_a_time() if self.single_rows else nullcontext()",
        new="nullcontext()",
        breaks=guarantees.CLIPPED,
        tests=("tests/gradients/test_single_rows.py::test_scores_are_computed_in_company_too",),
    ),
    Bug(
        meaning="a part in which nobody counts takes no room, so that one record rounds all later blocks anew",
        place="fedprivacy.gradients.summation:Sums.skip",
        old="""
            self._begin()
            self._advance(rows)
        """,
        new="pass",
        breaks=guarantees.CLIPPED,
        tests=(
            "tests/privacy/test_survivors.py::test_a_part_that_is_left_out_takes_the_room_of_one_that_counts_nothing",
        ),
    ),
    Bug(
        meaning="a block of the sum never ends, and float32 holds it all",
        place="fedprivacy.gradients.summation:Sums._advance",
        old="self._held >= self._block_rows",
        new="False",
        breaks=guarantees.CLIPPED,
        tests=(
            "tests/privacy/test_survivors.py::test_the_allowance_covers_the_rounding_of_every_block_that_is_made[256]",
        ),
    ),
    Bug(
        meaning="the blocks are added up in float32",
        place="fedprivacy.gradients.summation:Sums.__init__",
        old="torch.empty(sum(shape.numel() for shape in shapes), dtype=torch.float64, device=device)",
        new="torch.empty(sum(shape.numel() for shape in shapes), dtype=torch.float32, device=device)",
        breaks=guarantees.CLIPPED,
        tests=("tests/privacy/test_survivors.py::test_the_sum_of_many_blocks_loses_nothing",),
    ),
    Bug(
        meaning="a product adds four times as many records as the allowance has room for",
        place="fedprivacy.gradients.pieces",
        old="STRETCH = 32",
        new="STRETCH = 128",
        breaks=guarantees.CLIPPED,
        tests=(
            "tests/privacy/test_survivors.py::test_the_allowance_covers_the_rounding_of_every_block_that_is_made[256]",
        ),
    ),
    Bug(
        meaning="a gradient longer than C is left as it is",
        place="fedprivacy.gradients.clipping:FlatClipping.scales",
        old="squared_norms.rsqrt().mul_(clipping_norm * _ROUNDING_MARGIN).clamp_(max=1.0)",
        new="squared_norms.rsqrt().mul_(clipping_norm * _ROUNDING_MARGIN).clamp_(min=1.0)",
        breaks=guarantees.CLIPPED,
        tests=(
            "tests/gradients/test_clipping.py"
            "::test_a_scaled_gradient_is_no_longer_than_c_though_every_step_rounds_to_float32",
        ),
    ),
    Bug(
        meaning="each layer is clipped to C, all of them together to more",
        place="fedprivacy.gradients.clipping:PerLayerClipping.scales",
        old="clipping_norm * _ROUNDING_MARGIN / len(squared_norms) ** 0.5",
        new="clipping_norm * _ROUNDING_MARGIN",
        breaks=guarantees.CLIPPED,
        tests=(
            "tests/gradients/test_clipping.py"
            "::test_a_scaled_gradient_is_no_longer_than_c_though_every_step_rounds_to_float32",
        ),
        gates=("replay",),
        settings={"clipping": "per-layer"},
    ),
    Bug(
        meaning="a stack sums gradients that it has not clipped",
        place="fedprivacy.gradients.stacked:Stack.scales",
        old="scales.where(usable, 0.0)",
        new="torch.ones_like(scales).where(usable, 0.0)",
        breaks=guarantees.STACK,
        tests=(
            "tests/gradients/test_stacked.py::test_each_client_s_sum_is_what_the_engine_makes_of_it_alone[mlp-flat]",
        ),
    ),
    Bug(
        meaning="all clients of a stack are clipped to the first one's C",
        place="fedprivacy.gradients.stacked:Stack.clip",
        old="norms.index_select(0, owners)",
        new="norms.index_select(0, 0 * owners)",
        breaks=guarantees.STACK,
        tests=(
            "tests/gradients/test_stacked.py::test_each_client_s_sum_is_what_the_engine_makes_of_it_alone[mlp-flat]",
        ),
    ),
    Bug(
        meaning="all clients of a stack have their gradients at the first one's parameters",
        place="fedprivacy.gradients.stacked:Stack.clip",
        old="matrix.index_select(0, owners)",
        new="matrix.index_select(0, 0 * owners)",
        breaks=guarantees.STACK,
        tests=(
            "tests/gradients/test_stacked.py::test_each_client_s_sum_is_what_the_engine_makes_of_it_alone[mlp-flat]",
        ),
    ),
    Bug(
        meaning="rows that no record fills count in a client's sum",
        place="fedprivacy.gradients.stacked:Stack.clip",
        old="rows < len(pool.inputs) - 1",
        new="torch.ones_like(rows, dtype=torch.bool)",
        breaks=guarantees.STACK,
        tests=(
            "tests/gradients/test_stacked.py::test_each_client_s_sum_is_what_the_engine_makes_of_it_alone[mlp-flat]",
        ),
    ),
    Bug(
        meaning="a slot's sum goes to the client after its own",
        place="fedprivacy.gradients.stacked:Stack.clip",
        old="total.index_add_(0, owners, at.sums(scales, usable.view(-1, ROWS)).double())",
        new="total.index_add_(0, (owners + 1) % len(total), at.sums(scales, usable.view(-1, ROWS)).double())",
        breaks=guarantees.STACK,
        tests=(
            "tests/gradients/test_stacked.py::test_each_client_s_sum_is_what_the_engine_makes_of_it_alone[mlp-flat]",
        ),
    ),
    Bug(
        meaning="one record's gradient without end spoils its client's sum",
        place="fedprivacy.gradients.stacked:Stack.clip",
        old="counted & (whole.sum(0) <= _LONGEST_SQUARED)",
        new="counted",
        breaks=guarantees.STACK,
        tests=("tests/gradients/test_stacked.py::test_records_without_a_gradient_count_for_nothing[flat]",),
    ),
    Bug(
        meaning="a huge input times a scaled gradient that is subnormal is more than C",
        place="fedprivacy.gradients.stacked:_Rows.squared_norms",
        old="torch.maximum(inputs, gradients) <= _LONGEST_SQUARED",
        new="torch.maximum(inputs, gradients) <= math.inf",
        breaks=guarantees.STACK,
        tests=(
            "tests/gradients/test_stacked.py"
            "::test_no_record_adds_more_than_c_though_its_gradient_has_factors_from_both_ends_of_float32",
        ),
    ),
    Bug(
        meaning="the products of a stack are not tried on equal rows of one slot",
        place="fedprivacy.gradients.stack_check:_Trial._computed",
        old="EqualRowsStayEqual(len(slots), (0, 1))",
        new="EqualRowsStayEqual(len(slots))",
        breaks=guarantees.STACK,
        tests=(
            "tests/gradients/test_equal_rows.py::test_a_stack_whose_products_treat_a_slot_or_a_row_apart_is_not_used",
        ),
    ),
    Bug(
        meaning="the check of a stack believes the stack's own clip",
        place="fedprivacy.gradients.stack_check:_Trial._check_sum",
        old="self._clipping.scales(squared, float(self._norms[number]))",
        new="self._stack.scales(squared, torch.ones(ROWS, dtype=torch.bool), self._norms[[number]])[:, 0]",
        breaks=guarantees.STACK,
        tests=("tests/gradients/test_stacked.py::test_a_stack_that_computes_something_else_is_not_trusted[no clip]",),
    ),
    Bug(
        meaning="records that show one another where few are made up are computed together",
        place="fedprivacy.gradients.apart:_sizes_apart",
        old="sizes_that_agree(_Judged(visible), model, probe, sizes, 0)",
        new="tuple(sizes)",
        breaks=guarantees.OTHERS,
        tests=(
            "tests/training/test_augment.py"
            "::test_records_that_are_mixed_where_nobody_looks_are_seen_one_by_one[with_those_after_the_third]",
        ),
    ),
    Bug(
        meaning="a record whose view cannot be made stops the client",
        place="fedprivacy.gradients.apart:RowByRow._of_part",
        old="full = out_of_memory(error) and self.sizes != (1,)",
        new="raise",
        breaks=guarantees.DOOR,
        tests=(
            "tests/training/test_augment.py"
            "::test_a_record_whose_view_cannot_be_made_is_in_its_place_as_it_is_and_stops_nobody",
        ),
        gates=("evaluation",),
    ),
    Bug(
        meaning="one record whose score asks for huge memory ends the release",
        place="fedprivacy.gradients.apart:RowByRow._in_smaller_parts",
        old="return self._in_company(first, second, size)",
        new='raise MemoryError(f"memory does not hold {size} records at a time")',
        breaks=guarantees.DOOR,
        tests=(
            "tests/gradients/test_memory.py"
            "::test_a_score_or_view_that_asks_for_huge_memory_is_its_record_s_fault_alone",
        ),
    ),
    Bug(
        meaning="one record whose loss asks for huge memory ends the release",
        place="fedprivacy.gradients.engine:GradientEngine._add_part",
        old="part = self._measured_beside_made_up(*rows, len(inputs))",
        new="raise MemoryError",
        breaks=guarantees.DOOR,
        tests=("tests/gradients/test_memory.py::test_a_loss_that_asks_for_huge_memory_is_its_record_s_fault_alone",),
    ),
    Bug(
        meaning="nobody looks whether a stack shows a record or a client its company",
        place="fedprivacy.gradients.stack_check:_Trial.run",
        old="self._check_company(whole)",
        new="pass",
        breaks=guarantees.STACK,
        tests=(
            "tests/gradients/test_stacked.py"
            "::test_a_stack_that_computes_something_else_is_not_trusted[a record beside it]",
        ),
    ),
    Bug(
        meaning="nobody looks whether a stack shows a record beside which other it stands",
        place="fedprivacy.gradients.stack_check:_Trial._check_company",
        old='_check(whole.of(slots, kept), beside.of(slots, kept), "by its company")',
        new="pass",
        breaks=guarantees.STACK,
        tests=(
            "tests/gradients/test_stacked.py"
            "::test_a_stack_that_computes_something_else_is_not_trusted[a record beside it]",
        ),
    ),
    Bug(
        meaning="nobody looks whether a stack shows a client's sum who else is in it",
        place="fedprivacy.gradients.stack_check:_Trial._check_company",
        old='_check(whole.of(slots[complete]), beside.of(slots[complete]), "by the slots beside its own")',
        new="pass",
        breaks=guarantees.STACK,
        tests=(
            "tests/gradients/test_stacked.py"
            "::test_a_stack_that_computes_something_else_is_not_trusted[a client beside it]",
        ),
    ),
)
