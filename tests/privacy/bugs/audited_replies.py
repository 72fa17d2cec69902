"""Bugs of local evaluations, answers, replies and books that an audit must notice."""

from tests.privacy.bugs import guarantees
from tests.privacy.bugs.audited_training import ADAPTIVE, ODD_ROWS
from tests.privacy.bugs.bug import Bug, Change

EVALUATION = "fedprivacy.training.evaluation:LocalEvaluation"
ANSWER = "fedprivacy.questions.release:GaussianAnswers"
RELEASED = "released = mechanism.release(clipped_sum, len(shard.inputs), keystream, position)"
TOTALS = "add_lattice_noise(exact, scale, 1.0, read)"


BUGS = (
    Bug(
        meaning="the noise of evaluations begins anew each round",
        place="fedprivacy.flower.client.local:LocalClient.evaluated",
        old="Position(grant.round, grant.steps)",
        new="Position(1, 99)",
        breaks=guarantees.NO_REPEAT,
        gates=("evaluation",),
    ),
    Bug(
        meaning="an evaluation's count has no noise",
        place=f"{EVALUATION}.release",
        old=RELEASED,
        new="""
            from dataclasses import replace

            released = mechanism.release(clipped_sum, len(shard.inputs), keystream, position)
            silent = replace(mechanism, event=replace(self.event, noise_multiplier=1e-6))
            released[0] = silent.release(clipped_sum, len(shard.inputs), keystream, position)[0]
        """,
        breaks=guarantees.EVALUATED,
        gates=("evaluation",),
    ),
    Bug(
        meaning="an evaluation has half of the noise",
        place=f"{EVALUATION}.release",
        old="SampledGaussianSum(self.event, clipping_norm=1.0)",
        new="SampledGaussianSum(self.event, clipping_norm=0.5)",
        breaks=guarantees.EVALUATED,
        gates=("evaluation",),
    ),
    Bug(
        meaning="everybody is evaluated, and a sample is charged",
        place=f"{EVALUATION}.release",
        old="mechanism = SampledGaussianSum(self.event, clipping_norm=1.0)",
        new="""
            from dataclasses import replace

            mechanism = SampledGaussianSum(replace(self.event, sampling_rate=1.0), clipping_norm=1.0)
        """,
        breaks=guarantees.EVALUATED,
        gates=("evaluation",),
    ),
    Bug(
        meaning="an evaluation of nobody has no noise",
        place=f"{EVALUATION}.release",
        old=RELEASED,
        new="""
            from fedprivacy.mechanisms.gaussian_sum import poisson_sample

            released = mechanism.release(clipped_sum, len(shard.inputs), keystream, position)
            if not len(poisson_sample(self.event.sampling_rate, len(shard.inputs), keystream, position)):
                released.zero_()
        """,
        breaks=guarantees.EVALUATED,
        gates=("evaluation",),
    ),
    Bug(
        meaning="scores are not clipped",
        place=f"{EVALUATION}._vectors",
        old="known.clamp(least, most)",
        new="known",
        breaks=guarantees.EVALUATED,
        gates=("evaluation",),
    ),
    Bug(
        meaning="each score has the whole of the sensitivity",
        place=f"{EVALUATION}._vectors",
        old="unit(len(self.scores))",
        new="1.0",
        breaks=guarantees.EVALUATED,
        gates=("evaluation",),
    ),
    Bug(
        meaning="scores are taken against the batch's mean",
        place=f"{EVALUATION}._vectors",
        old="return unit(len(self.scores)) * torch.cat([torch.ones_like(known[:, :1]), centred], 1)",
        new="""
            vectors = unit(len(self.scores)) * torch.cat([torch.ones_like(known[:, :1]), centred], 1)
            return vectors - vectors.mean(0)
        """,
        breaks=guarantees.EVALUATED,
        gates=("evaluation",),
    ),
    Bug(
        meaning="outputs are computed in batches of any size, and a server amplifies their rounding",
        place="fedprivacy.gradients.apart:RowByRow.__call__",
        old="cut(len(first), self.sizes)",
        new="[(0, len(ones), len(ones))] if len(ones) else []",
        breaks=guarantees.EVALUATED,
        gates=("evaluation",),
        also=(ODD_ROWS,),
    ),
    Bug(
        meaning="an evaluation is not on the receipt",
        place="fedprivacy.flower.client.release:Released.of",
        old="if evaluated is not None and evaluated.event != update.event: ...",
        new="evaluated = None",
        breaks=guarantees.RECEIPTS,
        gates=("ledger",),
        settings={"local_evaluation": 1},
    ),
    Bug(
        meaning="an answer has half of the noise",
        place=f"{ANSWER}._noisy",
        old=TOTALS,
        new="add_lattice_noise(exact, 0.5 * scale, 1.0, read)",
        breaks=guarantees.ONE_RELEASE,
        gates=("answers",),
    ),
    Bug(
        meaning="one total has no noise",
        place=f"{ANSWER}._noisy",
        old=f"totals = {TOTALS}.numpy()",
        new="""
            totals = add_lattice_noise(exact, scale, 1.0, read).numpy()
            totals[..., 0] = exact.numpy()[..., 0]
        """,
        breaks=guarantees.ONE_RELEASE,
        gates=("answers",),
    ),
    Bug(
        meaning="an answer about nobody has no noise",
        place=f"{ANSWER}._noisy",
        old=TOTALS,
        new="(add_lattice_noise(exact, scale, 1.0, read) if exact.any() else exact.clone())",
        breaks=guarantees.ONE_RELEASE,
        gates=("answers",),
    ),
    Bug(
        meaning="the ledger is charged for more noise than an answer has",
        place=f"{ANSWER}._noisy",
        old=TOTALS,
        new="add_lattice_noise(exact, scale / 1.1, 1.0, read)",
        breaks=guarantees.ONE_RELEASE,
        gates=("answers",),
    ),
    Bug(
        meaning="answers have the same noise in every round",
        place=f"{ANSWER}.release",
        old="Position(position.round, position.step + number)",
        new="Position(1, position.step + number)",
        breaks=guarantees.NO_REPEAT,
        gates=("answers",),
    ),
    Bug(
        meaning="the sensitivity of quantiles is that of a count",
        place="fedprivacy.questions.quantiles:Quantiles.squared_sensitivity",
        old="int((coefficients(self.points) ** 2).sum())",
        new="1",
        breaks=guarantees.TOTALS,
        gates=("answers",),
    ),
    Bug(
        meaning="the number of records is in the receipt for answers",
        place="fedprivacy.flower.client.client_app:answered",
        old="client.seal(grant, released)",
        new="""
            from dataclasses import replace

            receipt = replace(released.receipt, clipping_norm=1.0 + 1e-6 * len(table), signature="")
            released = replace(released, receipt=receipt.signed(client.key) if client.key else receipt)
            client.seal(grant, released)
        """,
        breaks=guarantees.DOOR,
        gates=("answers",),
    ),
    Bug(
        meaning="numbers that are summed are not moved to their bounds",
        place="fedprivacy.questions.lattice:centred",
        old="np.clip((values - (low / 2.0 + high / 2.0)) / half, -1.0, 1.0)",
        new="(values - (low / 2.0 + high / 2.0)) / half",
        breaks=guarantees.TOTALS,
        gates=("answers",),
    ),
    Bug(
        meaning="numbers that are summed are scaled by the largest",
        place="fedprivacy.questions.moments:_Moments.summed",
        old="centred(rows.numbers(each.column), each.low, each.high)",
        new="""
            np.clip(
                (numbers := rows.numbers(each.column)) / np.nanmax(np.abs(numbers), initial=1e-9), -1.0, 1.0
            )
        """,
        breaks=guarantees.TOTALS,
        gates=("answers",),
    ),
    Bug(
        meaning="a record is in every group",
        place="fedprivacy.questions.conditions:groups_of",
        old="yield ChosenRecords(table, order[first:after])",
        new="yield ChosenRecords(table, np.arange(len(table)))",
        breaks=guarantees.TOTALS,
        gates=("answers",),
    ),
    Bug(
        meaning="a cell that is no number fails the client",
        place="fedprivacy.tasks.columns:_as_numbers",
        old="map(number, cells)",
        new="map(float, cells)",
        breaks=guarantees.DOOR,
        gates=("answers",),
    ),
    Bug(
        meaning="answers are never kept",
        place="fedprivacy.flower.server.ask_clients:QuestionAccounts.keep",
        old="""
            texts = [codec.as_text(question) for question in self._asked.questions]
            ...
        """,
        new="pass",
        breaks=guarantees.KEPT_ANSWERS,
        gates=("answers",),
    ),
    Bug(
        meaning="a client answers whoever asks, without a grant",
        place="fedprivacy.flower.client.client_app:private_client.ask",
        old="""
            grant = questions_in(message)
            ...
        """,
        new="""
            from flwr.app import MetricRecord, RecordDict
            from fedprivacy.tasks import ShardSource

            part, parts = (int(context.node_config[name]) for name in ("partition-id", "num-partitions"))
            shard = task.shard(ShardSource(partition_id=part, num_partitions=parts))
            sums = MetricRecord({"sum": float(shard.inputs.nan_to_num().sum()), "records": len(shard)})
            return Message(RecordDict({"metrics": sums}), reply_to=message)
        """,
        breaks=guarantees.CHARGED,
        gates=("release",),
    ),
    Bug(
        meaning="clients evaluate on their own records",
        place="fedprivacy.flower.client.client_app:private_client",
        old="return app",
        new="""
            from flwr.app import MetricRecord, RecordDict
            from fedprivacy.tasks import ShardSource

            @app.evaluate()
            def evaluate(message, context):
                part, parts = (int(context.node_config[name]) for name in ("partition-id", "num-partitions"))
                shard = task.shard(ShardSource(partition_id=part, num_partitions=parts))
                metrics = MetricRecord({"mean": float(shard.inputs.nan_to_num().sum()), "records": len(shard)})
                return Message(RecordDict({"metrics": metrics}), reply_to=message)

            return app
        """,
        breaks=guarantees.DOOR,
        gates=("release",),
    ),
    Bug(
        meaning="the text of an error leaves",
        place="fedprivacy.flower.client.client_app:refusing.guarded",
        old="return release.refusal(message, code)",
        new="""
            from flwr.app import ConfigRecord

            reply = release.refusal(message, code)
            reply.content["error"] = ConfigRecord({"why": repr(error.__cause__)})
            return reply
        """,
        breaks=guarantees.DOOR,
        gates=("answers",),
    ),
    Bug(
        meaning="the server names the task, and so what is public",
        place="fedprivacy.flower.client.node:NodeSettings.task",
        old="""
            task = own if own is not None and not self.tasks else self._named(word, own)
            ...
        """,
        new="""
            from fedprivacy.tasks import load_task

            return load_task(word)
        """,
        breaks=guarantees.BOUNDS,
        gates=("stranger",),
        also=(
            Change(
                "fedprivacy.flower.client.node:NodeSettings.check_enrolment",
                "if not self._signed(request): ...\n...",
                "pass",
            ),
        ),
    ),
    Bug(
        meaning="null rows of whole numbers are trained on",
        place="fedprivacy.tasks.task:Shard.present",
        old="self.holding(self.inputs[kept], self.targets[kept.to(self.targets.device)])",
        new="self",
        breaks=guarantees.NULL_ROWS,
        gates=("release",),
        task="Words",
    ),
    Bug(
        meaning="rounds are counted where steps are executed: five times too few",
        place="fedprivacy.runs.plans.plan:RunPlan.steps_by_round",
        old="self.config.schedule.steps_until(rounds)",
        new="rounds",
        breaks=guarantees.EPSILON,
        gates=("ledger",),
        settings={"local_steps": 5},
    ),
    Bug(
        meaning="the sampling rate of a claim is that of all clients' records",
        place="fedprivacy.runs.plans.plan:RunPlan.epsilon_by_round",
        old="delta = (allowance or self.allowance()).budget.delta",
        new="""
            delta = (allowance or self.allowance()).budget.delta
            event = replace(event, sampling_rate=event.sampling_rate / self.config.clients)
        """,
        breaks=guarantees.EPSILON,
        gates=("ledger",),
    ),
    Bug(
        meaning="the configuration's budget overrules the ledger's",
        place="fedprivacy.runs.accountant:CentralAccountant._left",
        old="_steps_left(allowance, self._before[dataset], self._spend, executed, self._events[dataset])",
        new="_steps_left(self._asked, self._before[dataset], self._spend, executed, self._events[dataset])",
        breaks=guarantees.BUDGET,
        gates=("rehearsal",),
    ),
    Bug(
        meaning="epsilon is shown at the configuration's delta",
        place="fedprivacy.runs.accountant:CentralAccountant.enrol",
        old="Enrolled(client_id, dataset, in_force[dataset].budget.delta, events[client_id])",
        new="Enrolled(client_id, dataset, self._asked.budget.delta, events[client_id])",
        breaks=guarantees.EPSILON,
        gates=("rehearsal",),
    ),
    Bug(
        meaning="the population's sampling rates are rounded down",
        place="fedprivacy.accounting.population:PopulationAccountant.mechanisms",
        old="self._rounded_up(event)",
        new="replace(event, sampling_rate=0.97 * event.sampling_rate)",
        breaks=guarantees.EPSILON,
        gates=("rehearsal",),
    ),
    Bug(
        meaning="two servers read one balance",
        place="fedprivacy.ledger.database:_begin_sqlite",
        old='"BEGIN IMMEDIATE" if alone else "BEGIN"',
        new='"BEGIN"',
        breaks=guarantees.LEDGER_FIRST,
        gates=("rehearsal",),
    ),
    Bug(
        meaning="a client is granted another one's clipping norm",
        place="fedprivacy.flower.server.accounts:RunAccounts.clipping_norm",
        old="self.clipping_norms.get(client_id, self._plan.config.clipping_norm)",
        new="next(reversed(self.clipping_norms.values()), self._plan.config.clipping_norm)",
        breaks=guarantees.SAMPLED,
        gates=("rehearsal",),
        settings=ADAPTIVE,
    ),
    Bug(
        meaning="an older copy of a client's book is believed",
        place="fedprivacy.guard.tally:TallyFile.transaction",
        old="self._check_updates()",
        new="pass",
        breaks=guarantees.REMEMBERED,
        tests=("tests/guard/test_put_back.py::test_whatever_is_done_with_an_older_copy_finds_it",),
    ),
)
