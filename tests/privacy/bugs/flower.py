"""Bugs of the messages between a server and its clients, on both sides."""

from tests.privacy.bugs import guarantees
from tests.privacy.bugs.bug import Bug

BUGS = (
    Bug(
        meaning="the client trains first, and charges afterwards what it can",
        place="fedprivacy.flower.client.client_app:answer",
        old="client.charge(grant)\n...",
        new="...\nclient.charge(grant)",
        breaks=guarantees.CHARGED,
        tests=("tests/flower/test_deployed_client.py::test_the_charge_comes_before_the_training_and_no_text_crosses",),
    ),
    Bug(
        meaning="the client trains one step more than it charged",
        place="fedprivacy.flower.client.client_app:answer",
        old="grant.training_steps, grant.round",
        new="grant.training_steps + 1, grant.round",
        breaks=guarantees.CHARGED,
        tests=("tests/flower/test_rounds.py::test_epsilon_composes_over_rounds_and_never_passes_the_budget",),
    ),
    Bug(
        meaning="a grant that nobody signed counts",
        place="fedprivacy.flower.client.node:NodeSettings._signed",
        old="""
            signing.signed_by_server(
                self.server_key, message.purpose, message.signed_bytes(), message.signature
            )
        """,
        new="True",
        breaks=guarantees.SERVER,
        tests=(
            "tests/flower/test_deployed_client.py"
            "::test_a_grant_that_its_server_did_not_sign_is_refused_before_anything_is_charged",
        ),
    ),
    Bug(
        meaning="a deployed client answers a grant whoever sent it",
        place="fedprivacy.flower.client.local:client_for",
        old="owner.check_grant(grant)",
        new="pass",
        breaks=guarantees.SERVER,
        tests=("tests/flower/test_apps.py::test_the_deployed_client_tells_another_server_nothing",),
    ),
    Bug(
        meaning="the server that the data owner named is not the only one",
        place="fedprivacy.flower.client.node:NodeSettings.check_grant",
        old="grant.server_key != self.server_key or not self._signed(grant)",
        new="not signing.signed_by_server(grant.server_key, signing.GRANT, grant.signed_bytes(), grant.signature)",
        breaks=guarantees.SERVER,
        tests=("tests/flower/test_node.py::test_a_grant_is_held_against_the_configuration_before_anything_is_read",),
    ),
    Bug(
        meaning="a deployed client's noise comes from a seed that can be known",
        place="fedprivacy.flower.client.local:LocalClient.keystream",
        old="Keystream.secret()",
        new="Keystream.from_seed(0, self.task.dataset)",
        breaks=guarantees.NO_REPEAT,
        tests=("tests/flower/test_deployed_client.py::test_two_deployed_clients_never_share_noise",),
        gates=("answers",),
    ),
    Bug(
        meaning="the app that trains without privacy works in a deployment, too",
        place="fedprivacy.flower.client.local:simulated_client",
        old="_owner(context) is not None",
        new="False",
        breaks=guarantees.NO_BASELINE,
        tests=("tests/privacy/test_baseline.py::test_its_app_deployed_all_the_same_refuses_every_message",),
    ),
    Bug(
        meaning="a private run can be given the books that charge nothing",
        place="fedprivacy.flower.baseline.accounts:BaselineAccounts.check",
        old="if config.privacy: ...",
        new="if False: ...",
        breaks=guarantees.NO_BASELINE,
        tests=("tests/privacy/test_baseline.py::test_nobody_trains_privately_without_being_charged",),
    ),
    Bug(
        meaning="the server's books take a run without privacy",
        place="fedprivacy.flower.server.accounts:Accounts.check",
        old="if not config.privacy: ...",
        new="if False: ...",
        breaks=guarantees.NO_BASELINE,
        tests=("tests/privacy/test_baseline.py::test_a_server_refuses_the_setting_before_anything_is_sent",),
    ),
    Bug(
        meaning="the number of records leaves though it is private",
        place="fedprivacy.flower.client.local:LocalClient.public_facts",
        old="len(self.shard) if self.task.shard_sizes_public else 0",
        new="len(self.shard)",
        breaks=guarantees.DOOR,
        tests=("tests/flower/test_rounds.py::test_private_shard_sizes_never_leave",),
    ),
    Bug(
        meaning="a receipt signs nothing about the update",
        place="fedprivacy.flower.client.release:digest",
        old="found.update(array.tobytes())",
        new="pass",
        breaks=guarantees.RECEIPTS,
        tests=("tests/flower/test_release.py::test_a_receipt_is_for_one_update_s_values_names_types_and_shapes",),
    ),
    Bug(
        meaning="a receipt is for an update's bytes, whatever they are the bytes of",
        place="fedprivacy.flower.client.release:digest",
        old='found.update(f"{name} {array.dtype.str} {array.shape}\\n".encode())',
        new="pass",
        breaks=guarantees.RECEIPTS,
        tests=("tests/flower/test_release.py::test_a_receipt_is_for_one_update_s_values_names_types_and_shapes",),
    ),
    Bug(
        meaning="a receipt says more noise than was added",
        place="fedprivacy.flower.client.release:Released.of",
        old="steps = update.steps + (evaluated is not None)",
        new="""
            from dataclasses import replace

            steps = update.steps + (evaluated is not None)
            update = replace(
                update, event=replace(update.event, noise_multiplier=2.0 * update.event.noise_multiplier)
            )
        """,
        breaks=guarantees.CHARGED,
        tests=("tests/flower/test_rounds.py::test_epsilon_composes_over_rounds_and_never_passes_the_budget",),
    ),
    Bug(
        meaning="the client answers first, and charges afterwards what it can",
        place="fedprivacy.flower.client.client_app:answered",
        old="client.charge(grant)\n...",
        new="...\nclient.charge(grant)",
        breaks=guarantees.CHARGED,
        tests=("tests/privacy/test_questions_replayed.py::test_the_charge_is_on_the_disk_before_a_record_is_counted",),
    ),
    Bug(
        meaning="an answer is charged to nobody",
        place="fedprivacy.flower.client.local:LocalClient.charge",
        old="self.guard is not None",
        new="self.guard is not None and not grant.charged_as.asks",
        breaks=guarantees.CHARGED,
        tests=("tests/flower/test_questions.py::test_both_books_hold_the_charge_that_the_answer_cost",),
        gates=("answers",),
    ),
    Bug(
        meaning="questions have the client's whole budget, whatever its owner says",
        place="fedprivacy.flower.client.local:LocalClient.charge",
        old="self.answerable.budget",
        new="None",
        breaks=guarantees.QUESTION_BUDGET,
        tests=("tests/flower/test_questions.py::test_questions_have_a_budget_of_their_own",),
    ),
    Bug(
        meaning="an attempt that was paid for one question is answered with it for another",
        place="fedprivacy.flower.client.client_app:answered",
        old="if not sealed.answers(grant): ...",
        new="if False: ...",
        breaks=guarantees.RECEIPTS,
        tests=(
            "tests/privacy/test_questions_replayed.py::test_another_grant_for_an_attempt_that_was_answered_is_refused",
        ),
    ),
    Bug(
        meaning="a receipt for answers does not say to which questions",
        place="fedprivacy.flower.client.release:Released.of_answers",
        old="digest(arrays, grant.questions)",
        new="digest(arrays)",
        breaks=guarantees.RECEIPTS,
        tests=("tests/privacy/test_questions_replayed.py::test_a_receipt_is_for_these_answers_to_these_questions",),
    ),
    Bug(
        meaning="the data owner's list is not read",
        place="fedprivacy.flower.client.client_app:answered",
        old="client.answerable.check(asked)",
        new="pass",
        breaks=guarantees.ALLOWED,
        tests=(
            "tests/privacy/test_questions_attacked.py::test_what_the_list_does_not_name_is_refused_wherever_it_stands",
        ),
    ),
    Bug(
        meaning="the least noise holds for training alone",
        place="fedprivacy.flower.client.node:NodeSettings.check_grant",
        old="grant.noise_multiplier < self.least_noise_multiplier",
        new="isinstance(grant, Grant) and grant.noise_multiplier < self.least_noise_multiplier",
        breaks=guarantees.ALLOWED,
        tests=(
            "tests/privacy/test_questions_attacked.py"
            "::test_less_noise_than_the_data_owner_wants_is_refused_whatever_the_shares",
        ),
    ),
    Bug(
        meaning="a signature of a grant for training is one for questions, too",
        place="fedprivacy.flower.wire.messages:QuestionGrant",
        old="QUESTION_GRANT, signing.QUESTIONS",
        new="QUESTION_GRANT, signing.GRANT",
        breaks=guarantees.SERVER,
        tests=("tests/privacy/test_questions_attacked.py::test_a_signature_that_was_made_for_something_else_is_none",),
    ),
    Bug(
        meaning="a grant for training may call itself a question",
        place="fedprivacy.flower.wire.messages:Grant.__post_init__",
        old="self.earlier_runs < 0 or self.charged_as.asks",
        new="self.earlier_runs < 0",
        breaks=guarantees.BOUNDS,
        tests=(
            "tests/privacy/test_questions_attacked.py"
            "::test_a_grant_for_training_asks_nothing_and_one_for_questions_trains_nothing",
        ),
    ),
    Bug(
        meaning="records are standardised before their charge",
        place="fedprivacy.flower.client.client_app:answer",
        old="""
            client.charge(grant)
            client = client.standardised(standardise)
        """,
        new="""
            client = client.standardised(standardise)
            client.charge(grant)
        """,
        breaks=guarantees.CHARGED,
        tests=("tests/privacy/test_standardised_attacked.py::test_no_record_is_read_before_its_charge_is_on_the_disk",),
    ),
    Bug(
        meaning="numbers to standardise by may be anything",
        place="fedprivacy.flower.client.local:_standardise",
        old='if not (received["scale"] > 0.0).all(): ...',
        new="if False: ...",
        breaks=guarantees.BOUNDS,
        tests=(
            "tests/privacy/test_standardised_attacked.py"
            "::test_numbers_that_are_none_are_refused_before_anything_is_charged",
        ),
    ),
    Bug(
        meaning="a client that drops out gets its charge back, as if the server knew that it did nothing",
        place="fedprivacy.flower.server.replies:in_time",
        old="replace(verdicts[client_id], update=None, failure=reason)",
        new="replace(self.verdicts[client_id], update=None, failure=reason, untouched=True)",
        breaks=guarantees.LEDGER_FIRST,
        tests=("tests/flower/test_participation.py::test_a_drop_out_trains_nothing_and_stays_charged",),
    ),
    Bug(
        meaning="what comes too late is averaged all the same",
        place="fedprivacy.flower.server.replies:in_time",
        old="replace(verdicts[client_id], update=None, failure=reason)",
        new="replace(verdicts[client_id], failure=reason)",
        breaks=guarantees.FIGURE,
        tests=("tests/flower/test_participation.py::test_what_comes_too_late_is_not_in_the_average",),
    ),
    Bug(
        meaning=(
            "of those that an asynchronous round lets train, only whose updates come in time for its step are charged"
        ),
        place="fedprivacy.flower.server.together:Together.open",
        old="granted = self.accounts.reserve(opened.attempt, opened.clients.values(), again=again)",
        new="""
            fresh = [c for c in opened.clients.values() if opened.dispatched[c.client_id] in opened.course.answered]
            granted = self.accounts.steps_ahead(opened.attempt, opened.dispatched, again=again)
            granted |= self.accounts.reserve(opened.attempt, fresh, again=again)
        """,
        breaks=guarantees.ASYNC,
        tests=(
            "tests/flower/test_asynchronous.py"
            "::test_every_training_is_charged_once_when_it_begins_and_epsilon_is_what_its_client_s_cost",
        ),
    ),
    Bug(
        meaning=(
            "a client that goes away in an asynchronous round is not charged, as if the server knew that it did nothing"
        ),
        place="fedprivacy.flower.server.buffered:BufferedSchedule.choose",
        old="(client := registry[n]).client_id in dispatched",
        new="(client := registry[n]).client_id in {each.client_id for each in course.dispatched if each.answers}",
        breaks=guarantees.ASYNC,
        tests=(
            "tests/flower/test_asynchronous.py"
            "::test_every_training_is_charged_once_when_it_begins_and_epsilon_is_what_its_client_s_cost",
        ),
    ),
    Bug(
        meaning="all trainings of a simulated client have the same noise",
        place="fedprivacy.flower.simulated.populations:Population.train",
        old="Start(arrays, attempt.round, base, proximal_mu, apart, control)",
        new="Start(arrays, 1, base, proximal_mu, apart, control)",
        breaks=guarantees.NO_REPEAT,
        tests=("tests/flower/test_asynchronous.py::test_no_two_trainings_share_a_draw_of_noise",),
    ),
    Bug(
        meaning="what a finished run has left is deleted for another run that a server makes up",
        place="fedprivacy.flower.kept:KeptInFolder.keep",
        old="kept.run_id == kept_for.run_id and kept.path != file",
        new="kept.path != file",
        breaks=guarantees.HOME,
        tests=("tests/flower/test_kept.py::test_a_finished_run_s_model_gives_way_to_no_other_run",),
    ),
    Bug(
        meaning="a round that nobody joined tells so by ending the run",
        place="fedprivacy.flower.server.one_round:OpenRound.ends_the_run",
        old="self.asked or self.sampled",
        new="self.messages",
        breaks=guarantees.DOOR,
        tests=(
            "tests/flower/test_user_level.py"
            "::test_the_model_moves_by_noise_of_the_promised_deviation_where_no_client_moves_it[nobody]",
        ),
    ),
    Bug(
        meaning="all clients of a population draw from one stream",
        place="fedprivacy.flower.simulated.populations:_trainee",
        old="base.of(client.dataset_id)",
        new="base",
        breaks=guarantees.NO_REPEAT,
        tests=("tests/flower/test_every_way.py::test_a_run_has_the_outcome_of_its_messages[0 together]",),
    ),
    Bug(
        meaning="two runs of a population on one ledger share their noise",
        place="fedprivacy.flower.simulated.populations:Population.train",
        old='Keystream.from_seed(seed, "", earlier_runs, attempt.attempt)',
        new='Keystream.from_seed(seed, "", 0, attempt.attempt)',
        breaks=guarantees.NO_REPEAT,
        tests=("tests/flower/test_cohorts.py::test_two_runs_on_one_ledger_share_no_noise",),
    ),
    Bug(
        meaning="another attempt at a population's round has the noise of the first",
        place="fedprivacy.flower.simulated.populations:Population.train",
        old='Keystream.from_seed(seed, "", earlier_runs, attempt.attempt)',
        new='Keystream.from_seed(seed, "", earlier_runs)',
        breaks=guarantees.NO_REPEAT,
        tests=("tests/flower/test_cohorts.py::test_another_attempt_draws_other_noise",),
    ),
    Bug(
        meaning="a cohort trains before anybody is charged",
        place="fedprivacy.flower.server.together:Together.open",
        old="self.accounts.reserve(opened.attempt, opened.clients.values(), again=again)",
        new="dict.fromkeys((c.client_id for c in opened.clients.values()), self.population._config.local_steps)",
        breaks=guarantees.LEDGER_FIRST,
        tests=("tests/flower/test_cohorts.py::test_charges_come_first_and_stand_in_a_ledger_that_proves_itself",),
    ),
    Bug(
        meaning="a private run's cohort may be given training without privacy",
        place="fedprivacy.flower.baseline.cohort:train_without_privacy",
        old="if config.privacy: ...",
        new="if False: ...",
        breaks=guarantees.NO_BASELINE,
        tests=("tests/flower/test_baseline_cohorts.py::test_a_private_run_cannot_be_given_its_training",),
    ),
    Bug(
        meaning="a cohort's clients are charged for noise of their own, and add the run's",
        place="fedprivacy.flower.server.accounts:RunAccounts.order",
        old="self.event(client.client_id)",
        new="self._plan.event(client.shard_size)",
        breaks=guarantees.SAMPLED,
        tests=("tests/flower/test_client_terms.py::test_each_client_of_a_stack_adds_its_own_noise",),
    ),
    Bug(
        meaning="a client that is asked by message is charged for noise of its own, and adds the run's",
        place="fedprivacy.flower.server.accounts:RunAccounts._grant",
        old="self.event(client.client_id)",
        new="self._plan.event(client.shard_size)",
        breaks=guarantees.SAMPLED,
        tests=("tests/flower/test_client_terms.py::test_deployed_clients_have_theirs_in_both_books",),
    ),
    Bug(
        meaning="the ledger keeps the run's budget where a client has a smaller one",
        place="fedprivacy.flower.server.accounts:Accounts._open_accounts",
        old="{client.client_id: plan.budget(client.client_id) for client in own}",
        new="{}",
        breaks=guarantees.BUDGET,
        tests=("tests/flower/test_client_terms.py::test_the_budget_of_each_is_what_the_ledger_enforces",),
    ),
    Bug(
        meaning="what one algorithm keeps at home is given to another, which sends it",
        place="fedprivacy.flower.kept:KeptInFolder._file",
        old="[kept_for.run_id, kept_for.algorithm, kept_for.task]",
        new="[kept_for.run_id, kept_for.task]",
        breaks=guarantees.HOME,
        tests=("tests/flower/test_algorithms.py::test_no_other_algorithm_is_given_what_a_client_kept",),
    ),
    Bug(
        meaning="one run's personal models are another's to begin with",
        place="fedprivacy.flower.kept:KeptInFolder._file",
        old="[kept_for.run_id, kept_for.algorithm, kept_for.task]",
        new="[kept_for.algorithm]",
        breaks=guarantees.HOME,
        tests=("tests/flower/test_algorithms.py::test_no_other_run_is_given_what_a_client_kept",),
    ),
    Bug(
        meaning="what a client kept is readable by everybody on its host",
        place="fedprivacy.flower.kept:KeptInFolder.keep",
        old="write_unnamed(file, save(newest, {_FACTS: json.dumps(facts)}), PRIVATE)",
        new="write_unnamed(file, save(newest, {_FACTS: json.dumps(facts)}))",
        breaks=guarantees.HOME,
        tests=("tests/flower/test_algorithms.py::test_no_other_algorithm_is_given_what_a_client_kept",),
    ),
    Bug(
        meaning="a cohort's sum is divided by its clients, not by their weights",
        place="fedprivacy.flower.simulated.populations:CohortUpdate.mean",
        old="total / self.weight",
        new="total / len(self.weights)",
        breaks=guarantees.FIGURE,
        tests=("tests/flower/test_every_way.py::test_a_run_has_the_outcome_of_its_messages[0 together]",),
    ),
    Bug(
        meaning="a deployed client beside a part of a split takes itself for a simulated one",
        place="fedprivacy.flower.client.local:_owner",
        old="simulated and not is_deployed(node)",
        new="simulated",
        breaks=guarantees.DEPLOYED,
        tests=("tests/flower/test_node.py::test_a_deployed_client_beside_a_part_of_a_split_heeds_signed_grants_alone",),
    ),
    Bug(
        meaning="whoever starts Ray in a client's process makes it a simulated one",
        place="fedprivacy.flower.client.local:_in_ray_actor",
        old="ray is not None and ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None",
        new="ray is not None and ray.is_initialized()",
        breaks=guarantees.DEPLOYED,
        tests=(
            "tests/flower/test_node.py"
            "::test_without_any_key_a_client_is_simulated_where_an_engine_runs_it_and_nowhere_else",
        ),
    ),
    Bug(
        meaning="two tasks of one guard disagree on what is public",
        place="fedprivacy.flower.client.node:NodeSettings._check_agreement",
        old="if one != other: ...",
        new="if False: ...",
        breaks=guarantees.ACCOUNT,
        tests=(
            "tests/flower/test_node.py::test_tasks_that_do_not_agree_on_what_is_public_are_refused_with_both_names",
        ),
    ),
    Bug(
        meaning="a size is disclosed, and protected afterwards",
        place="fedprivacy.flower.client.local:LocalClient.public_facts",
        old="hold(relation_of(self.task))",
        new="pass",
        breaks=guarantees.ACCOUNT,
        tests=(
            "tests/flower/test_node.py::test_a_size_that_was_disclosed_is_protected_by_no_later_task_of_the_same_guard",
        ),
    ),
    Bug(
        meaning="charges by row are told to a server whose ledger counts persons",
        place="fedprivacy.flower.client.local:LocalClient.public_facts",
        old="self.guard.promise if self.task.shard_sizes_public else self.guard.check",
        new="self.guard.promise if self.task.shard_sizes_public else str",
        breaks=guarantees.ACCOUNT,
        tests=("tests/flower/test_node.py::test_an_account_of_one_unit_answers_no_task_of_another[by row first]",),
    ),
    Bug(
        meaning="a server says what the unit of privacy is",
        place="fedprivacy.flower.client.local:LocalClient.check_promise",
        old="grant.unit != unit",
        new="False",
        breaks=guarantees.BOUNDS,
        tests=("tests/flower/test_node.py::test_only_the_unit_of_the_client_s_own_task_is_granted[by person]",),
    ),
    Bug(
        meaning="a guard is another file in each working directory",
        place="fedprivacy.flower.client.node:_absolute",
        old="if not path.is_absolute(): ...",
        new="if False: ...",
        breaks=guarantees.BOUNDS,
        tests=(
            "tests/flower/test_node.py::test_a_path_that_means_another_place_in_another_working_directory_is_refused",
        ),
    ),
    Bug(
        meaning="a group of three people is told unless a data owner forbids it",
        place="fedprivacy.flower.client.node",
        old="SMALLEST_COHORT = 10.0",
        new="SMALLEST_COHORT = 0.0",
        breaks=guarantees.ALLOWED,
        tests=(
            "tests/privacy/test_questions_neighbours.py"
            "::test_a_data_owner_who_sets_no_smallest_cohort_tells_nothing_of_three_people",
        ),
    ),
    Bug(
        meaning="a local evaluation has the sample and the noise of its round's first step",
        place="fedprivacy.flower.client.local:LocalClient.evaluated",
        old="Position(grant.round, grant.steps)",
        new="Position(grant.round, 1)",
        breaks=guarantees.NO_REPEAT,
        tests=(
            "tests/flower/test_local_evaluation.py"
            "::test_an_evaluation_shares_neither_sample_nor_noise_with_a_step_of_its_round",
        ),
        gates=("evaluation",),
    ),
    Bug(
        meaning="workers lose what personal algorithms keep",
        place="fedprivacy.flower.simulated.populations:CohortUpdate.join",
        old="self.kept |= other.kept",
        new="pass",
        breaks=guarantees.FIGURE,
        tests=("tests/flower/test_workers.py::test_what_each_part_of_a_cohort_keeps_is_kept",),
    ),
    Bug(
        meaning="fine-tuning of clients that train together begins at what another algorithm kept",
        place="fedprivacy.flower.kept:KeptModels.of",
        old="algorithm != self.algorithm",
        new="not self.algorithm",
        breaks=guarantees.FIGURE,
        tests=(
            "tests/flower/test_algorithms.py"
            "::test_fine_tuning_begins_at_the_global_model_whatever_an_algorithm_kept_before[together]",
        ),
    ),
    Bug(
        meaning="fine-tuning of clients that get messages begins at what another algorithm kept",
        place="fedprivacy.flower.kept:KeptInState.load",
        old='torch.from_numpy(arrays["own"].numpy()) if facts["algorithm"] == kept_for.algorithm else None',
        new='torch.from_numpy(arrays["own"].numpy())',
        breaks=guarantees.FIGURE,
        tests=(
            "tests/flower/test_algorithms.py"
            "::test_fine_tuning_begins_at_the_global_model_whatever_an_algorithm_kept_before[messages]",
        ),
    ),
)
