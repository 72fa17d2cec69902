"""Bugs of training that an audit of the update must notice.

Some were found in other libraries; some went unnoticed until somebody tried them. Sizes of layers are those of `Small`.
"""

from textwrap import dedent

from tests.privacy.bugs import guarantees
from tests.privacy.bugs.bug import Bug, Change

ADAPTIVE = {"clipping": "adaptive", "noise_multiplier": 2.0}

MECHANISM = "fedprivacy.mechanisms.gaussian_sum:SampledGaussianSum.release"
MEAN = "fedprivacy.training.noisy_mean:NoisyMean.release"
RELEASE = "fedprivacy.training.noisy_mean:NoisyMean._noisy_sum"
TRAIN = "fedprivacy.training.dpsgd:DPSGD.train"
SEEDED = "fedprivacy.mechanisms.keystream:Keystream.from_seed"

SAMPLE = "poisson_sample(self.event.sampling_rate, records, keystream, position)"
NOISE = "add_lattice_noise(total, self.noise_scale, step, read, torch.float32)"
READER = "keystream.reader(Purpose.NOISE, position)"

CLIPPED_SUM = """
    clipped = Clipped.joined([engine.clip(*part, norm) for part in parts])
    return clipped.total if adaptive is None else adaptive.joined(clipped, norm)
"""

EACH_ALONE = """
    parts = list(parts)
    total = Clipped.joined([engine.clip(*part, norm) for part in parts]).total
    rows = [engine.clip(x[None], y[None], 1e30).total for xs, ys in parts for x, y in zip(xs, ys, strict=True)]
    if not rows:
        return total
"""
"""Begins a wrong sum: `rows` are the gradients of all records, none of them clipped."""

NOISE_ALONE = """
    noise = add_lattice_noise(torch.zeros_like(total), self.noise_scale, step, read, torch.float32)
"""

ODD_ROWS = Change(
    "fedprivacy.gradients.products:product",
    "if not _one_row_at_a_time.get(): ...",
    """
        if len(rows) % 2:
            rows, matrix = rows.flip(-1), matrix.flip(0)
        if not _one_row_at_a_time.get(): ...
    """,
)
"""A library that adds an odd number of rows in another order: no part of a fixed size is odd."""

UNCHECKED = Change(
    "fedprivacy.gradients.methods.admission:_checked",
    "method = checked(kind, model, loss, probe)",
    "method = kind(model, loss)",
)
"""The engine's self-check would refuse a wrong norm."""


def code(*parts: str) -> str:
    """One run of statements."""
    return "\n".join(dedent(part).strip() for part in parts)


BUGS = (
    Bug(
        meaning="a tenth too little noise is added",
        place=MECHANISM,
        old="self.noise_scale",
        new="0.9 * self.noise_scale",
        breaks=guarantees.SAMPLED,
        gates=("noise",),
    ),
    Bug(
        meaning="half of the noise is added from round 500 on",
        place=MECHANISM,
        old="self.noise_scale",
        new="(0.5 if position.round >= 500 else 1.0) * self.noise_scale",
        breaks=guarantees.SAMPLED,
        gates=("noise",),
    ),
    Bug(
        meaning="noise is added in the first step of a round alone",
        place=MECHANISM,
        old="self.noise_scale",
        new="(1.0 if position.step == 1 else 1e-6) * self.noise_scale",
        breaks=guarantees.SAMPLED,
        gates=("noise",),
    ),
    Bug(
        meaning="the last bias gets no noise",
        place=MECHANISM,
        old="return add_lattice_noise(total, self.noise_scale, step, read, torch.float32)",
        new="""
            released = add_lattice_noise(total, self.noise_scale, step, read, torch.float32)
            released[-3:] = total[-3:]
            return released
        """,
        breaks=guarantees.SAMPLED,
        gates=("noise",),
    ),
    Bug(
        meaning="the first weight gets no noise",
        place=MECHANISM,
        old="return add_lattice_noise(total, self.noise_scale, step, read, torch.float32)",
        new="""
            released = add_lattice_noise(total, self.noise_scale, step, read, torch.float32)
            released[:96] = total[:96]
            return released
        """,
        breaks=guarantees.SAMPLED,
        gates=("noise",),
    ),
    Bug(
        meaning="the noise of each layer begins with the same draws",
        place=MECHANISM,
        old="return add_lattice_noise(total, self.noise_scale, step, read, torch.float32)",
        new=code(
            NOISE_ALONE,
            """
                if len(total) == 163:
                    noise = torch.cat([noise[:size] for size in (96, 16, 48, 3)])
                return (total + noise).float()
            """,
        ),
        breaks=guarantees.SAMPLED,
        gates=("noise",),
    ),
    Bug(
        meaning="noise is cut off at 4 deviations",
        place=MECHANISM,
        old="return add_lattice_noise(total, self.noise_scale, step, read, torch.float32)",
        new=code(
            NOISE_ALONE,
            """
                most = 4.0 * self.noise_scale
                return (total + noise.clamp(-most, most)).float()
            """,
        ),
        breaks=guarantees.SAMPLED,
        gates=("noise",),
    ),
    Bug(
        meaning="an empty batch is released without noise",
        place=MECHANISM,
        old="return add_lattice_noise(total, self.noise_scale, step, read, torch.float32)",
        new="""
            released = add_lattice_noise(total, self.noise_scale, step, read, torch.float32)
            return released if len(sample) else torch.zeros_like(released)
        """,
        breaks=guarantees.SAMPLED,
        gates=("noise",),
    ),
    Bug(
        meaning="the noise begins anew in each step",
        place=MECHANISM,
        old=READER,
        new="keystream.reader(Purpose.NOISE, Position(position.round, 1))",
        breaks=guarantees.NO_REPEAT,
        gates=("noise",),
    ),
    Bug(
        meaning="all clients have the same noise",
        place=MECHANISM,
        old=READER,
        new="Keystream(bytes(32)).reader(Purpose.NOISE, position)",
        breaks=guarantees.NO_REPEAT,
        gates=("noise",),
    ),
    Bug(
        meaning="a training that a server pulls towards its model has no noise",
        place=TRAIN,
        old="released, norm = self.gradient.release(engine, shard, norm, keystream, Position(round, step))",
        new="""
            from dataclasses import replace

            silent = replace(mechanism, event=replace(mechanism.event, noise_multiplier=1e-6))
            gradient = replace(self.gradient, mechanism=silent) if self.proximal_mu > 0.0 else self.gradient
            released, norm = gradient.release(engine, shard, norm, keystream, Position(round, step))
        """,
        breaks=guarantees.SAMPLED,
        gates=("release",),
    ),
    Bug(
        meaning="the true count moves the clipping norm",
        place=RELEASE,
        old="return released[:-1], adaptive.next_norm(float(released[-1]), norm, self.expected_batch_size)",
        new="""
            silent = replace(mechanism, event=replace(mechanism.event, noise_multiplier=1e-6))
            true = silent.release(clipped_sum, len(shard.inputs), keystream, position)
            return released[:-1], adaptive.next_norm(float(true[-1]), norm, self.expected_batch_size)
        """,
        breaks=guarantees.SAMPLED,
        gates=("noise",),
        settings=ADAPTIVE,
    ),
    Bug(
        meaning="the type of a sum tells how many records there are",
        place=MECHANISM,
        old="torch.float32",
        new="torch.float64 if records > 1024 else torch.float32",
        breaks=guarantees.DOOR,
        gates=("release",),
    ),
    Bug(
        meaning="two attempts at a round have the same randomness",
        place=SEEDED,
        old='f"{seed}/{earlier_runs}/{attempt}"',
        new='f"{seed}/{earlier_runs}/1"',
        breaks=guarantees.NO_REPEAT,
        gates=("sampling", "noise"),
    ),
    Bug(
        meaning="two runs have the same randomness",
        place=SEEDED,
        old='f"{seed}/{earlier_runs}/{attempt}"',
        new='f"{seed}/0/{attempt}"',
        breaks=guarantees.NO_REPEAT,
        gates=("sampling", "noise"),
    ),
    Bug(
        meaning="every second attempt at a round has the same randomness",
        place=SEEDED,
        old='f"{seed}/{earlier_runs}/{attempt}"',
        new='f"{seed}/{earlier_runs}/{attempt % 2}"',
        breaks=guarantees.NO_REPEAT,
        gates=("noise",),
    ),
    Bug(
        meaning="every second run has the same randomness",
        place=SEEDED,
        old='f"{seed}/{earlier_runs}/{attempt}"',
        new='f"{seed}/{earlier_runs % 2}/{attempt}"',
        breaks=guarantees.NO_REPEAT,
        gates=("noise",),
    ),
    Bug(
        meaning="an answer that is asked anew is the old one",
        place=SEEDED,
        old='f"{seed}/{earlier_runs}/{attempt}"',
        new='f"{seed}/once/{attempt}"',
        breaks=guarantees.NO_REPEAT,
        gates=("answers",),
    ),
    Bug(
        meaning="a secret key is kept",
        place="fedprivacy.mechanisms.keystream:Keystream.secret",
        old="secrets.token_bytes(32)",
        new="bytes(32)",
        breaks=guarantees.NO_REPEAT,
        gates=("sampling", "noise"),
    ),
    Bug(
        meaning="batches are shuffled, and no Poisson samples",
        place=MECHANISM,
        old=f"sample = {SAMPLE}",
        new="""
            size = max(round(self.event.sampling_rate * records), 1)
            epoch, turn = divmod(position.step - 1, max(records // size, 1))
            seed = [*keystream.key, keystream.stream, position.round, epoch]
            order = np.random.default_rng(seed).permutation(records)
            sample = order[turn * size : (turn + 1) * size]
        """,
        breaks=guarantees.SAMPLED,
        gates=("sampling",),
    ),
    Bug(
        meaning="batches have a fixed size",
        place=MECHANISM,
        old=f"sample = {SAMPLE}",
        new="""
            seed = [*keystream.key, keystream.stream, position.round, position.step]
            order = np.random.default_rng(seed).permutation(records)
            sample = order[: round(self.event.sampling_rate * records)]
        """,
        breaks=guarantees.SAMPLED,
        gates=("sampling",),
    ),
    Bug(
        meaning="the sampler begins anew in each round",
        place=MECHANISM,
        old=SAMPLE,
        new="poisson_sample(self.event.sampling_rate, records, keystream, Position(1, position.step))",
        breaks=guarantees.NO_REPEAT,
        gates=("sampling",),
    ),
    Bug(
        meaning="all steps of a round have one sample",
        place=MECHANISM,
        old=SAMPLE,
        new="poisson_sample(self.event.sampling_rate, records, keystream, Position(position.round, 1))",
        breaks=guarantees.NO_REPEAT,
        gates=("sampling",),
    ),
    Bug(
        meaning="records join late steps more often",
        place=MECHANISM,
        old=SAMPLE,
        new="""
            poisson_sample(
                min(1.5 * self.event.sampling_rate, 0.99) if position.step > 10 else self.event.sampling_rate,
                records, keystream, position
            )
        """,
        breaks=guarantees.SAMPLED,
        gates=("sampling",),
        settings={"local_steps": 20},
    ),
    Bug(
        meaning="a record is counted twice",
        place=MECHANISM,
        old=f"sample = {SAMPLE}",
        new="""
            sample = poisson_sample(self.event.sampling_rate, records, keystream, position)
            if records and records - 1 in sample:
                sample = np.append(sample, records - 1)
        """,
        breaks=guarantees.CLIPPED,
        gates=("replay", "sampling"),
    ),
    Bug(
        meaning="the mean of a batch is clipped, with noise for a record's share",
        place=RELEASE,
        old=CLIPPED_SUM,
        new=code(
            EACH_ALONE,
            """
                mean = sum(rows) / len(rows)
                return self.expected_batch_size * mean * min(1.0, norm / max(float(mean.norm()), 1e-30))
            """,
        ),
        breaks=guarantees.CLIPPED,
        gates=("replay",),
    ),
    Bug(
        meaning="the mean of a batch is clipped, with noise for the mean",
        place=RELEASE,
        old=CLIPPED_SUM,
        new=code(
            EACH_ALONE,
            """
                mean = sum(rows) / len(rows)
                return self.expected_batch_size * mean * min(1.0, norm / max(float(mean.norm()), 1e-30))
            """,
        ),
        breaks=guarantees.CLIPPED,
        gates=("replay", "noise"),
        also=(Change(MECHANISM, "self.noise_scale", "25.0 * self.noise_scale"),),
    ),
    Bug(
        meaning="micro-batches of four are clipped, not records",
        place=RELEASE,
        old=CLIPPED_SUM,
        new=code(
            EACH_ALONE,
            """
                some = [sum(rows[first : first + 4]) for first in range(0, len(rows), 4)]
                return sum(four * min(1.0, norm / max(float(four.norm()) / 4.0, 1e-30)) for four in some)
            """,
        ),
        breaks=guarantees.CLIPPED,
        gates=("replay",),
    ),
    Bug(
        meaning="the largest entry is clipped to C, not the norm",
        place=RELEASE,
        old=CLIPPED_SUM,
        new=code(
            EACH_ALONE,
            """
                return sum(row * min(1.0, norm / max(float(row.abs().max()), 1e-30)) for row in rows)
            """,
        ),
        breaks=guarantees.CLIPPED,
        gates=("replay",),
    ),
    Bug(
        meaning="gradients of enormous norm are not clipped",
        place="fedprivacy.gradients.clipping:FlatClipping.scales",
        old="squared_norms.rsqrt().mul_(clipping_norm * _ROUNDING_MARGIN).clamp_(max=1.0)",
        new="""
            squared_norms.rsqrt().mul_(clipping_norm * _ROUNDING_MARGIN).clamp_(max=1.0).masked_fill_(
                squared_norms > (1e15 * clipping_norm) ** 2, 1.0
            )
        """,
        breaks=guarantees.CLIPPED,
        gates=("replay",),
    ),
    Bug(
        meaning="a record that is not a number passes",
        place=RELEASE,
        old=CLIPPED_SUM,
        new="""
            parts = list(parts)
            total = Clipped.joined([engine.clip(*part, norm) for part in parts]).total
            return total if all(bool(inputs.isfinite().all()) for inputs, _ in parts) else float("nan") * total
        """,
        breaks=guarantees.CLIPPED,
        gates=("replay",),
    ),
    Bug(
        meaning="records are centred by the mean of their batch",
        place=RELEASE,
        old="engine.clip(*part, norm)",
        new="engine.clip(part[0] - part[0].mean(0), part[1], norm)",
        breaks=guarantees.CLIPPED,
        gates=("replay", "invariance"),
    ),
    Bug(
        meaning="four augmentations of a record are each clipped, and all summed",
        place=RELEASE,
        old="clipped.total",
        new="4.0 * clipped.total",
        breaks=guarantees.CLIPPED,
        gates=("replay",),
    ),
    Bug(
        meaning="momentum is of sums that carry no noise",
        place=RELEASE,
        old=CLIPPED_SUM,
        new="""
            engine.unnoised = 0.9 * engine.unnoised + Clipped.joined([engine.clip(*part, norm) for part in parts]).total
            return engine.unnoised.clone()
        """,
        breaks=guarantees.CLIPPED,
        gates=("replay",),
        also=(Change(TRAIN, "shard.present()", "(setattr(engine, 'unnoised', 0.0), shard.present())[1]"),),
    ),
    Bug(
        meaning="the sum is divided by how many records joined, before the noise",
        place=RELEASE,
        old="clipped.total",
        new="clipped.total * (self.expected_batch_size / max(len(sample), 1))",
        breaks=guarantees.CLIPPED,
        gates=("replay",),
    ),
    Bug(
        meaning="the noisy sum is divided by how many records joined",
        place=MEAN,
        old="return released.div_(self.expected_batch_size), following",
        new="""
            from fedprivacy.mechanisms.gaussian_sum import poisson_sample

            rate, records = self.mechanism.event.sampling_rate, len(shard.inputs)
            joined = poisson_sample(rate, records, keystream, position)
            return released.div_(max(len(joined), 1)), following
        """,
        breaks=guarantees.CLIPPED,
        gates=("replay", "sampling"),
    ),
    Bug(
        meaning="the learning rate follows from the true number of records",
        place=MEAN,
        old="released.div_(self.expected_batch_size)",
        new="released.div_(max(self.mechanism.event.sampling_rate * len(shard), 1.0))",
        breaks=guarantees.DOOR,
        gates=("replay",),
    ),
    Bug(
        meaning="batches have any size: rounding depends on who else is there, and a server amplifies it",
        place="fedprivacy.gradients.engine:GradientEngine._clipped",
        old="cut(len(inputs), self._admitted.sizes)",
        new="[(0, len(inputs), len(inputs))] if len(inputs) else []",
        breaks=guarantees.CLIPPED,
        gates=("invariance",),
        also=(ODD_ROWS,),
    ),
    Bug(
        meaning="ghost norms cancel in float32",
        place="fedprivacy.gradients.pieces:Gram.norms",
        old="""
            inputs, grads = self.sources
            ...
        """,
        new="""
            inputs, grads = (factor.float() for factor in self.sources)
            gram = torch.bmm(inputs, inputs.transpose(1, 2)) * torch.bmm(grads, grads.transpose(1, 2))
            return gram.sum((1, 2)).clamp(min=0.0).sqrt()
        """,
        breaks=guarantees.CLIPPED,
        gates=("replay",),
        task="Compared",
    ),
    Bug(
        meaning="norms are measured without the biases",
        place="fedprivacy.gradients.engine:GradientEngine._by_group",
        old="squared = torch.stack([sized.norms.double() for sized in pieces]).square_()",
        new="""
            pieces = [sized for sized in pieces if len(self._shapes[sized.part.place]) > 1] or pieces
            squared = torch.stack([sized.norms.double() for sized in pieces]).square_()
        """,
        breaks=guarantees.CLIPPED,
        gates=("replay",),
    ),
    Bug(
        meaning="ghost norms are measured without what crosses between positions",
        place="fedprivacy.gradients.pieces:Gram.norms",
        old="""
            inputs, grads = self.sources
            ...
        """,
        new="""
            inputs, grads = self.sources
            return (inputs.norm(dim=2) * grads.norm(dim=2)).norm(dim=1)
        """,
        breaks=guarantees.CLIPPED,
        gates=("replay",),
        task="Spoken",
        also=(UNCHECKED,),
    ),
    Bug(
        meaning="a layer that is used several times is measured use by use",
        place="fedprivacy.gradients.tape:Gathered._complete",
        old="""
            piece = added(self._uses.pop(part), self._kept_bytes)
            ...
        """,
        new="""
            uses = self._uses.pop(part)
            norms = torch.stack([piece.norms().double() for piece in uses]).norm(dim=0)
            self._sized.append(Sized(part, added(uses, self._kept_bytes), norms))
        """,
        breaks=guarantees.CLIPPED,
        gates=("replay",),
        task="Paired",
        also=(UNCHECKED,),
    ),
)
