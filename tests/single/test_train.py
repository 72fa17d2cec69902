"""`fp.train`: one shard is trained privately, whatever holds its records."""

import math

import pytest
import torch

import fedprivacy as fp
from fedprivacy.accounting import pld
from tests.single.coins import coins, flat, new_model, train


@pytest.fixture(scope="module")
def seeded():
    """Parameters that a training with seed 1 reaches."""
    return flat(train(seed=1).model)


def test_a_model_is_trained_within_its_budget_and_learns():
    model = new_model()
    before = flat(model).clone()
    trained = train(model, steps=60)
    inputs, targets = coins()
    assert (trained.model(inputs).argmax(1) == targets).float().mean() > 0.9
    assert torch.equal(flat(model), before)
    assert 0.999 * 2.0 <= trained.epsilon <= 2.0
    assert trained.epsilon == pld.epsilon({trained.event: trained.steps}, trained.delta)
    assert (trained.event.sampling_rate, trained.steps, trained.delta) == (0.25, 60, 1e-4)
    assert not trained.model.training


def test_the_noise_is_secret_unless_it_is_seeded(seeded):
    assert not torch.equal(flat(train().model), flat(train().model))
    assert torch.equal(flat(train(seed=1).model), seeded)
    assert not torch.equal(flat(train(seed=2).model), seeded)


def test_how_many_records_there_are_is_private_unless_it_is_said_to_be_public():
    inputs, targets = coins()
    one_more = torch.cat([inputs, torch.full((1, 2), torch.nan)]), torch.cat([targets, targets[:1]])
    private, longer = train(seed=1), train(data=one_more, seed=1)  # what it adds is zero, so only a divisor could tell
    assert private.event.relation is fp.NeighbouringRelation.ADD_OR_REMOVE_ONE
    assert torch.allclose(flat(private.model), flat(longer.model), atol=1e-5)
    with pytest.raises(ValueError, match="how many records there are is private; give sampling_rate times"):
        train(batch_size=None)
    public = train(batch_size=None, size_public=True, seed=1)
    assert public.event.relation is fp.NeighbouringRelation.ZERO_OUT
    assert torch.equal(flat(public.model), flat(private.model))  # 0.25 of 400 is the batch size that was guessed


def test_a_data_set_is_trained_on_as_its_tensors_are(seeded):
    inputs, targets = coins()
    assert torch.equal(flat(train(data=fp.Shard(inputs, targets), seed=1).model), seeded)

    class OneBuffer(torch.utils.data.Dataset):
        buffer = torch.zeros(2)

        def __len__(self):
            return 400

        def __getitem__(self, place):
            return self.buffer.copy_(inputs[place]), targets[place]

    assert torch.equal(flat(train(data=OneBuffer(), seed=1, prototype=PROTOTYPE).model), seeded)
    stream = type("Stream", (torch.utils.data.IterableDataset,), {"__iter__": lambda _: iter(())})
    with pytest.raises(ValueError, match="without a length"):
        train(data=stream(), prototype=PROTOTYPE)
    with pytest.raises(ValueError, match=r"found out from all of them: give one .* prototype=\(torch"):
        train(data=OneBuffer())


PROTOTYPE = torch.zeros(2), torch.tensor(0)


class Strange(torch.Tensor):
    """A tensor that would decide what is computed of all."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError("a record's own code was run")


class WithOne(torch.utils.data.Dataset):
    """Heads and tails as Python has them, with one more at the end."""

    def __init__(self, pair):
        inputs, targets = coins(399)
        self.pairs = [*zip(inputs.numpy(), targets.tolist(), strict=True), pair]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, place):
        pair = self.pairs[place]
        return pair() if callable(pair) else pair


OTHER_KINDS = {
    "half a label": (torch.zeros(2), 0.5),
    "raises": lambda: 1 / 0,
    "of another class": (torch.zeros(2).as_subclass(Strange), 1),
    "longer": (torch.zeros(3), 1),
    "complex": (torch.zeros(2, dtype=torch.complex64), 1),
    "NaN": (torch.tensor([1.0, math.nan]), 1),
    "text": (torch.zeros(2), "1"),
    "too large": (torch.zeros(2), 2**70),
    "no target": (torch.zeros(2),),
    "nothing": None,
    "sparse": (torch.zeros(2).to_sparse(), 1),
    "three": (torch.zeros(2), 1, 1),
}
QUICK = 3  # of them


@pytest.fixture(scope="module")
def without_it():
    return flat(train(data=coins(399), seed=1, size_public=True).model)


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.exhaustive if i >= QUICK else ()) for i, k in enumerate(OTHER_KINDS)]
)
def test_a_record_of_a_data_set_that_is_not_of_the_prototype_s_kind_is_null(kind, without_it):
    data = WithOne(OTHER_KINDS[kind])
    trained = train(data=data, seed=1, prototype=PROTOTYPE, size_public=True)
    assert torch.equal(flat(trained.model), without_it)
