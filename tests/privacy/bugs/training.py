"""Bugs of sampling, noise, local training and the protection of whole clients."""

from tests.privacy.bugs import guarantees
from tests.privacy.bugs.bug import Bug

BUGS = (
    Bug(
        meaning="records join half as often again as q says",
        place="fedprivacy.mechanisms.gaussian_sum:poisson_sample",
        old="sampling_rate * 2.0**64",
        new="min(1.5 * sampling_rate, 0.99) * 2.0**64",
        breaks=guarantees.SAMPLED,
        tests=(
            "tests/mechanisms/test_keystream.py::test_poisson_sampling_is_binomial_and_independent_between_records",
        ),
        gates=("sampling",),
    ),
    Bug(
        meaning="a batch comes in the order of the shard, so that one record less rounds all blocks of the sum anew",
        place="fedprivacy.mechanisms.gaussian_sum:poisson_sample",
        old='joined[np.argsort(words[joined], kind="stable")]',
        new="joined",
        breaks=guarantees.SAMPLED,
        tests=("tests/training/test_sampling.py::test_every_order_of_a_batch_is_equally_likely[0.6]",),
    ),
    Bug(
        meaning="half of the noise is added",
        place="fedprivacy.mechanisms.gaussian_sum:SampledGaussianSum.noise_scale",
        old="self.event.noise_multiplier * self.clipping_norm",
        new="0.5 * self.event.noise_multiplier * self.clipping_norm",
        breaks=guarantees.SAMPLED,
        tests=("tests/privacy/test_noise_added.py::test_each_step_adds_as_much_noise_as_the_receipt_says",),
        gates=("noise", "ledger"),
    ),
    Bug(
        meaning="every step of a round has the same sample and the same noise",
        place="fedprivacy.training.dpsgd:DPSGD.train.noisy_mean",
        old="Position(round, step)",
        new="Position(round, 1)",
        breaks=guarantees.NO_REPEAT,
        tests=("tests/training/test_dpsgd.py::test_noise_is_added_once_for_each_local_step",),
    ),
    Bug(
        meaning="every round has the same sample and the same noise",
        place="fedprivacy.training.dpsgd:DPSGD.train.noisy_mean",
        old="Position(round, step)",
        new="Position(1, step)",
        breaks=guarantees.NO_REPEAT,
        tests=("tests/training/test_dpsgd.py::test_the_same_randomness_repeats_and_another_round_does_not",),
    ),
    Bug(
        meaning="the update says fewer steps than were taken",
        place="fedprivacy.training.dpsgd:DPSGD.train",
        old="PrivateUpdate(parameters, mechanism.event, steps, norm, update.kept)",
        new="PrivateUpdate(parameters, mechanism.event, steps - 1, norm, update.kept)",
        breaks=guarantees.CHARGED,
        tests=("tests/training/test_dpsgd.py::test_the_update_states_the_event_of_the_mechanism_that_ran",),
    ),
    Bug(
        meaning="a sum is not rounded to the lattice before the noise",
        place="fedprivacy.mechanisms.lattice_noise:_in_whole_steps",
        old="np.add(_limited(sums, LARGEST_SUM * step), _CENTRE * step, dtype=np.float64)",
        new="np.add(_limited(sums, LARGEST_SUM * step), 0.0, dtype=np.float64)",
        breaks=guarantees.SAMPLED,
        tests=("tests/mechanisms/test_lattice_noise.py::test_every_released_value_is_a_whole_number_of_steps",),
    ),
    Bug(
        meaning="a sum is not rounded to the lattice before the noise where both are added in one compiled pass",
        place="fedprivacy.mechanisms.fused:release",
        old="(total + centre) + words[place] * widths[layer]",
        new="(total + words[place] * widths[layer]) + centre",
        breaks=guarantees.SAMPLED,
        tests=("tests/mechanisms/test_fused.py::test_one_pass_has_the_bits_of_numpy_s_passes[1.0-1.0]",),
    ),
    Bug(
        meaning="a rate of .9 or more takes everybody",
        place="fedprivacy.mechanisms.gaussian_sum:poisson_sample",
        old="sampling_rate >= 1.0",
        new="sampling_rate >= 0.9",
        breaks=guarantees.SAMPLED,
        tests=("tests/privacy/test_sampled.py::test_as_many_records_join_as_the_rate_on_the_receipt_says",),
        gates=("sampling",),
        settings={"sampling_rate": 0.95},
    ),
    Bug(
        meaning="the noise of adaptive clipping keeps the norm that it began with",
        place="fedprivacy.training.noisy_mean:NoisyMean._noisy_sum",
        old="adaptive.sensitivity(norm)",
        new="adaptive.sensitivity(self.mechanism.clipping_norm)",
        breaks=guarantees.SAMPLED,
        tests=(
            "tests/privacy/test_noise_added.py::test_the_noise_of_adaptive_clipping_follows_its_norm_from_step_to_step",
        ),
        gates=("noise",),
        settings={"clipping": "adaptive", "noise_multiplier": 2.0},
    ),
    Bug(
        meaning="the sum of adaptive clipping gets noise for the gradients alone",
        place="fedprivacy.training.noisy_mean:NoisyMean._noisy_sum",
        old="adaptive.sensitivity(norm)",
        new="norm",
        breaks=guarantees.SAMPLED,
        tests=(
            "tests/training/test_cohort.py"
            "::test_each_client_ends_where_it_would_end_alone"
            "[adaptive-SGD(learning_rate=0.5, momentum=0.0, weight_decay=0.0)]",
        ),
        gates=("noise",),
        settings={"clipping": "adaptive", "noise_multiplier": 2.0},
    ),
    Bug(
        meaning="the count that steers the clipping norm is not in the sensitivity",
        place="fedprivacy.training.adaptive:QuantileClipping.sensitivity",
        old="clipping_norm / math.sqrt(1.0 - self.share)",
        new="clipping_norm",
        breaks=guarantees.SAMPLED,
        tests=(
            "tests/training/test_adaptive.py::test_one_record_moves_the_joined_vector_by_no_more_than_the_sensitivity",
        ),
    ),
    Bug(
        meaning="the noise on the count is half of what its share says",
        place="fedprivacy.training.adaptive:QuantileClipping.weight",
        old="2.0 * clipping_norm",
        new="4.0 * clipping_norm",
        breaks=guarantees.SAMPLED,
        tests=(
            "tests/training/test_adaptive.py::test_one_record_moves_the_joined_vector_by_no_more_than_the_sensitivity",
        ),
    ),
    Bug(
        meaning="the server forgets the noise on the sum of the clients' updates",
        place="fedprivacy.training.user_level:ClippedClientSum.release",
        old="self.event.noise_multiplier * longest * (1.0 + CLIENT_ALLOWANCE)",
        new="1e-6 * longest",
        breaks=guarantees.USER_LEVEL,
        tests=(
            "tests/flower/test_user_level.py"
            "::test_the_model_moves_by_noise_of_the_promised_deviation_where_no_client_moves_it[silent]",
        ),
    ),
    Bug(
        meaning="a client's update is not clipped",
        place="fedprivacy.training.user_level:clipped_update",
        old="unit * (clipping_norm / length)",
        new="update",
        breaks=guarantees.USER_LEVEL,
        tests=(
            "tests/training/test_user_level.py"
            "::test_no_client_moves_the_sum_by_more_than_its_part_whatever_it_sends[fixed-7-0.3]",
        ),
    ),
    Bug(
        meaning="cohorts have a fixed size, and are accounted as Poisson samples",
        place="fedprivacy.training.user_level:ClippedClientSum.joined",
        old="return {client_id for client_id in client_ids if _word(keystream, position, client_id) < bound}",
        new="""
            drawn = sorted(client_ids, key=lambda client_id: _word(keystream, position, client_id))
            return set(drawn[: round(len(drawn) * bound / 2**64)])
        """,
        breaks=guarantees.USER_LEVEL,
        tests=("tests/training/test_user_level.py::test_clients_join_by_poisson_sampling",),
    ),
    Bug(
        meaning="the noisy sum is divided by how many clients joined",
        place="fedprivacy.flower.server.noisy_average:UserLevelReleases.average",
        old="moved = np.split(flat + released.mean, np.cumsum([values.size for values in start.values()])[:-1])",
        new="""
            joined = max(len(updates), 1)
            mean = released.mean * self._mechanism.expected_clients / joined
            moved = np.split(flat + mean, np.cumsum([values.size for values in start.values()])[:-1])
        """,
        breaks=guarantees.USER_LEVEL,
        tests=("tests/flower/test_user_level.py::test_clients_count_alike_and_are_divided_by_the_expected_cohort",),
    ),
    Bug(
        meaning="the noise of a cohort's rows is forgotten",
        place="fedprivacy.mechanisms.gaussian_sum:release_by_row",
        old="[mechanism.noise_scale for mechanism in mechanisms]",
        new="[1e-9 * mechanism.noise_scale for mechanism in mechanisms]",
        breaks=guarantees.SAMPLED,
        tests=("tests/training/test_cohort.py::test_the_noise_of_many_clients_is_that_of_each",),
    ),
    Bug(
        meaning="all clients of a cohort have the same noise",
        place="fedprivacy.mechanisms.keystream:Readers.__init__",
        old="[keystream.stream for keystream in keystreams]",
        new="[first.stream for _ in keystreams]",
        breaks=guarantees.NO_REPEAT,
        tests=("tests/training/test_cohort.py::test_the_noise_of_many_clients_is_that_of_each",),
    ),
    Bug(
        meaning="all clients of a cohort have one client's sample",
        place="fedprivacy.mechanisms.gaussian_sum:_samples_at_once",
        old="Readers(keystreams, Purpose.SAMPLING, position)",
        new="Readers([keystreams[0]] * len(keystreams), Purpose.SAMPLING, position)",
        breaks=guarantees.NO_REPEAT,
        tests=("tests/training/test_cohort.py::test_samples_of_many_clients_are_those_of_each",),
    ),
    Bug(
        meaning="a cohort's local steps share their noise, which their difference is free of",
        place="fedprivacy.training.cohort:CohortTraining._stacked.noisy_means",
        old="Position(round, step)",
        new="Position(round, 1)",
        breaks=guarantees.NO_REPEAT,
        tests=(
            "tests/training/test_cohort.py"
            "::test_each_client_ends_where_it_would_end_alone"
            "[flat-SGD(learning_rate=0.5, momentum=0.0, weight_decay=0.0)]",
        ),
    ),
    Bug(
        meaning="the count that steers a cohort's clipping norm is not in the sensitivity",
        place="fedprivacy.training.cohort:CohortTraining._released",
        old="[self.adaptive.sensitivity(norm) for norm in norms.tolist()]",
        new="norms.tolist()",
        breaks=guarantees.SAMPLED,
        tests=(
            "tests/training/test_cohort.py"
            "::test_each_client_ends_where_it_would_end_alone"
            "[adaptive-SGD(learning_rate=0.5, momentum=0.0, weight_decay=0.0)]",
        ),
    ),
    Bug(
        meaning="how a cohort's updates are added up depends on private numbers of records",
        place="fedprivacy.training.cohort:_portions",
        old="_public_bytes(trainees[place])",
        new="trainees[place].shard.inputs.nbytes",
        breaks=guarantees.DOOR,
        tests=("tests/training/test_cohort.py::test_portions_go_by_public_sizes_not_by_how_many_records_there_are",),
    ),
    Bug(
        meaning="all clients of a stack add the noise of the first one",
        place="fedprivacy.training.cohort:CohortTraining._released",
        old="[one.mechanism for one in trainees]",
        new="[trainees[0].mechanism for _ in trainees]",
        breaks=guarantees.SAMPLED,
        tests=("tests/flower/test_client_terms.py::test_each_client_of_a_stack_adds_its_own_noise",),
    ),
    Bug(
        meaning="local training sends the model that it keeps at home",
        place="fedprivacy.training.algorithms.local:LocalTraining.train",
        old="LocalUpdate(sent=client.shared, kept=client.descend(client.own, client.steps))",
        new="LocalUpdate(sent=(own := client.descend(client.own, client.steps)), kept=own)",
        breaks=guarantees.HOME,
        tests=("tests/flower/test_algorithms.py::test_what_stays_at_home_is_in_no_byte_that_leaves[local]",),
    ),
    Bug(
        meaning="a personal head leaves with the body",
        place="fedprivacy.training.algorithms.shared_body:FedPer._parted",
        old="client.shared.where(client.personal, trained)",
        new="trained",
        breaks=guarantees.HOME,
        tests=("tests/flower/test_algorithms.py::test_what_stays_at_home_is_in_no_byte_that_leaves[fedper]",),
    ),
    Bug(
        meaning="an algorithm may take more private steps than were granted and charged",
        place="fedprivacy.training.descent:Descent.__call__",
        old="self.taken + steps",
        new="steps",
        breaks=guarantees.CHARGED,
        tests=(
            "tests/training/test_algorithms.py::test_more_steps_than_were_granted_are_refused_before_the_first_of_them",
        ),
    ),
    Bug(
        meaning="two steps of a round that an algorithm divides share their sample and their noise",
        place="fedprivacy.training.descent:Descent.__call__",
        old="self.mean_gradient(self.taken, position)",
        new="self.mean_gradient(1, position)",
        breaks=guarantees.NO_REPEAT,
        tests=("tests/training/test_algorithms.py::test_no_two_steps_of_a_round_share_a_position_in_the_keystream",),
    ),
    Bug(
        meaning="which views a record has tells who joined before it",
        place="fedprivacy.training.augment:Views._chances",
        old="sample[:, np.newaxis]",
        new="np.arange(len(sample))[:, np.newaxis]",
        breaks=guarantees.OTHERS,
        tests=("tests/training/test_augment.py::test_a_record_has_the_same_views_in_any_place_and_company",),
    ),
    Bug(
        meaning="a view may be made of other records",
        place="fedprivacy.training.augment:Views._tried",
        old="""
            if not torch.allclose(together.double(), alone.double(), rtol=1e-4, atol=1e-4, equal_nan=True):
                ...
        """,
        new="if together.shape != alone.shape: ...",
        breaks=guarantees.OTHERS,
        tests=("tests/training/test_augment.py::test_what_is_no_view_of_each_record_is_refused[mean]",),
    ),
    Bug(
        meaning="clients that train together are given no views",
        place="fedprivacy.training.cohort:CohortTraining.train",
        old="self.engine.stack(*kinds) if self.views is None else None",
        new="self.engine.stack(*kinds)",
        breaks=guarantees.FIGURE,
        tests=("tests/training/test_augment.py::test_clients_that_train_together_see_what_each_sees_alone[1]",),
    ),
    Bug(
        meaning="one record of a data set gives all others its type",
        place="fedprivacy.single.data:_copied",
        old="plain and torch.can_cast(value.dtype, rows.dtype)",
        new="plain",
        breaks=guarantees.OTHERS,
        tests=(
            "tests/test_front_door.py"
            "::test_a_record_of_a_data_set_that_is_not_of_the_prototype_s_kind_is_null[half a label]",
        ),
    ),
    Bug(
        meaning="the error of a local evaluation forgets the sampling rate",
        place="fedprivacy.training.evaluation:estimated",
        old="(sums.event.noise_multiplier / rate for sums, rate in zip(released, rates, strict=True))",
        new="(sums.event.noise_multiplier for sums in released)",
        breaks=guarantees.FIGURE,
        tests=("tests/training/test_evaluation.py::test_the_deviation_is_how_far_the_noise_moves_the_estimate[0.25]",),
    ),
    Bug(
        meaning="the pull of Ditto and MR-MTL is that of one step, whatever the number of steps",
        place="fedprivacy.training.algorithms.pull:share_left",
        old="max(0.0, 1.0 - learning_rate * pull) ** steps",
        new="max(0.0, 1.0 - learning_rate * pull)",
        breaks=guarantees.FIGURE,
        tests=("tests/training/test_algorithms.py::test_the_pull_is_that_of_every_step_and_not_of_one",),
    ),
    Bug(
        meaning="any clipping norm is taken, those at which float32 clips nothing, too",
        place="fedprivacy.values.events",
        old="CLIPPING_NORMS = (1e-6, 1e6)",
        new="CLIPPING_NORMS = (1e-300, 1e300)",
        breaks=guarantees.BOUNDS,
        tests=("tests/mechanisms/test_gaussian_sum.py::test_a_clipping_norm_that_no_noise_fits_is_refused",),
    ),
)
