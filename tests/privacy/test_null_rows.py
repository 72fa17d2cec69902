"""A null row contributes nothing, whatever the model makes of missing values; so a record moves a sum by C, not by 2 C.

Nullness was inferred from gradients that are no numbers: a model that swallows NaN, or features that are whole numbers,
trained on null rows, and zero-out cost twice what was charged.
"""

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedprivacy as fp
from fedprivacy.audit.real_client import AskedClient, parameters_of
from fedprivacy.flower.wire.messages import RefusalCode
from fedprivacy.mechanisms.gaussian_sum import ROUNDING_ALLOWANCE
from tests.flower.asked import code, enrol, spent, train

MISSING = 0  # the word for a cell that says nothing


class Imputing(nn.Module):
    """Puts zero in the place of NaN."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 2)

    def forward(self, records):
        return self.out(records.nan_to_num(0.0))


class Words(nn.Module):
    """Embeds whole numbers, of which one stands for nothing."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(5, 3), nn.Linear(3, 2)

    def forward(self, records):
        return self.out(self.table(records).mean(1))


MODELS = {"imputes": Imputing, "whole numbers": Words}


class Own(fp.Task):
    """A task with any of the models; its records are the test's."""

    dataset = "own"
    recipe = fp.Recipe(clients=3, rounds=3, local_steps=2, sampling_rate=0.5, learning_rate=0.5, delta=1e-3)

    def __init__(self, model, shards=(), **public):
        self._model, self.held = model, list(shards)
        for name, value in public.items():
            setattr(self, name, value)

    def model(self):
        torch.manual_seed(3)
        return MODELS[self._model]()

    def shard(self, source):
        return self.held[source.partition_id or 0]

    def partition(self, num_partitions):
        return "own"


def rows(model, count, seed=0):
    """Inputs and targets of as many records."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(2, (count,), generator=generator)
    if model == "whole numbers":
        return torch.randint(1, 5, (count, 3), generator=generator), targets
    return torch.randn(count, 3, generator=generator), targets


def neighbours(model, count=20):
    """A shard whose last record is the costliest, the one with a null row in its place, and the one without the row."""
    inputs, targets = rows(model, count)
    inputs[-1] = 4
    targets[-1] = Own(model).model()(inputs[-1:])[0].argmin()  # what the model thinks the least
    null = inputs.clone()
    null[-1] = MISSING if model == "whole numbers" else torch.nan
    stated = torch.arange(count) == count - 1 if model == "whole numbers" else None
    labels = targets.clone()
    labels[-1] = 0  # which pulls the other way
    none = None if stated is None else False
    return (
        fp.Shard(inputs, targets, null=none),
        fp.Shard(null, labels, null=stated),
        fp.Shard(inputs[:-1], targets[:-1], null=none),
    )


PATHS = {
    "sums of some": {"sampling_rate": 0.5},
    "several steps of some": {"sampling_rate": 0.5, "steps": 3},
    "adaptive clipping": {"clipping": "adaptive", "sampling_rate": 0.7},
    "clipping by layer": {"clipping": "per-layer"},
    "scores of some": {"local_evaluation": True, "steps": 2, "sampling_rate": 0.5},
    "views": {"augmentation_multiplicity": 2, "sampling_rate": 0.5},
}


QUICK = {("imputes", "sums of some"), ("whole numbers", "sums of some"), ("imputes", "scores of some")}
CASES = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.exhaustive)
    for case in itertools.product(MODELS, PATHS)
]


@pytest.mark.parametrize(("model", "path"), CASES)
def test_a_null_row_leaves_no_bit_and_a_record_in_its_place_moves_a_sum_by_the_clipping_norm(model, path):
    task = Own(model, augmentation=fp.Augmentation(lambda inputs, chances: inputs + (chances > 2.0).to(inputs), 1))
    shards = neighbours(model)
    parameters = parameters_of(task.model())
    asked = AskedClient(task, shards[0], seed=1)
    clients = [asked.holding(shard) for shard in shards]
    grant = replace(asked.usual_grant(), noise_multiplier=1e-6, **PATHS[path])
    moves = []
    for round in range(1, 5):
        own, of_null, of_nobody = (client.answer(replace(grant, round=round), parameters) for client in clients)
        assert np.array_equal(of_null.flat, of_nobody.flat)
        assert of_null.receipt.noisy_sums == of_nobody.receipt.noisy_sums
        moves.append(np.linalg.norm(own.flat - of_null.flat) / grant.training_steps)
        if grant.local_evaluation:
            moves.append(np.linalg.norm(np.subtract(own.receipt.noisy_sums, of_null.receipt.noisy_sums)))
    assert 0.1 < max(moves) <= 1.0 + ROUNDING_ALLOWANCE + 1e-4


def test_null_rows_count_in_the_size_that_is_disclosed(node):
    task = Own("whole numbers", [neighbours("whole numbers")[1]])
    assert enrol(node, task=task).content["fedprivacy.enrolment"]["shard_size"] == 20


@pytest.mark.usefixtures("undrawn")
def test_whole_numbers_with_public_sizes_must_say_which_rows_are_null(node, tmp_path):
    silent = Own("whole numbers", [fp.Shard(*rows("whole numbers", 12, seed)) for seed in range(3)])
    with pytest.raises(fp.ConfigError, match=r"torch.int64, which has no NaN.*null=unreadable.*null=False if none"):
        fp.simulate(silent, clients=3, progress=False, out=tmp_path / "run")
    assert code(train(node, task=silent)) is RefusalCode.CLIENT_FAILED and spent(node) == 0
    with pytest.raises(ValueError, match="null=False if none does"):
        fp.train(
            silent.model(), silent.loss, rows("whole numbers", 12), epsilon=1.0, delta=1e-3, steps=2, sampling_rate=0.5,
            size_public=True,
        )  # fmt: skip
    private = Own("whole numbers", silent.held, shard_sizes_public=False, nominal_shard_size=12)
    fp.simulate(private, clients=3, rounds=1, progress=False, out=tmp_path / "private")  # who leaves them out may


def test_a_shard_keeps_its_rows_and_gives_a_model_those_that_are_present():
    inputs, targets = torch.tensor([[1.0, 2.0], [torch.nan, 3.0], [4.0, torch.inf]]), torch.tensor([0, 1, 2])
    shard = fp.Shard(inputs, targets)
    assert len(shard) == 3 and shard.null.tolist() == [False, True, False] and shard.inputs is inputs
    present = shard.present()
    assert len(present) == 3 and torch.equal(present.inputs, inputs[[0, 2]]) and present.targets.tolist() == [0, 2]
    assert present.present() is present
    assert len(pickle.loads(pickle.dumps(present.to(torch.device("cpu"))))) == 3
    own = fp.Shard(inputs, targets, null=torch.tensor([True, False, False]))
    assert own.present().targets.tolist() == [1, 2]  # the model itself handles NaN
    assert fp.Shard(inputs, targets, null=False).present().targets.tolist() == [0, 1, 2]
    nothing = fp.Shard(torch.full((4, 2), torch.nan), torch.zeros(4)).present()
    assert (len(nothing), len(nothing.inputs), nothing.inputs.shape[1:]) == (4, 0, (2,))
    assert fp.Shard(torch.tensor([1.0, torch.nan]), torch.zeros(2)).null.tolist() == [False, True]
    with pytest.raises(TypeError, match=r"give a tensor of torch\.bool, or False where no row is null"):
        fp.Shard(inputs, targets, null=torch.zeros(3))
    with pytest.raises(ValueError, match=r"null has shape \[2\]; give one value for each row"):
        fp.Shard(inputs, targets, null=torch.zeros(2, dtype=torch.bool))
