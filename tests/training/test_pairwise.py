"""A pairwise sum has the same bits whoever adds what, in any order, and is right."""

import random

import torch

from fedprivacy.training.cohort import PairwiseSum

VECTORS = torch.randn(37, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 1e3
LEFT_OUT = {3, 20, 36}


def added(some):
    """The sum of some ranks, one after another."""
    sums = PairwiseSum()
    for rank in some:
        sums.skip(rank) if rank in LEFT_OUT else sums.add([rank], VECTORS[rank : rank + 1].clone())
    return sums


EXPECTED = added(range(37)).total


def test_it_is_the_sum():
    kept = [rank for rank in range(37) if rank not in LEFT_OUT]
    assert torch.allclose(EXPECTED, VECTORS[kept].sum(0), rtol=1e-12)


def test_no_order_and_no_division_changes_a_bit():
    for seed in range(20):
        draw, ranks = random.Random(seed), list(range(37))
        draw.shuffle(ranks)
        cuts = sorted(draw.sample(range(38), 4))
        sums = [added(ranks[start:stop]) for start, stop in zip([0, *cuts], [*cuts, 37], strict=True)]
        draw.shuffle(sums)
        whole = PairwiseSum()
        for some in sums:
            whole.join(some)
        assert torch.equal(whole.total, EXPECTED)


def test_rows_at_once_are_rows_one_by_one():
    kept = [rank for rank in range(37) if rank not in LEFT_OUT]
    for seed in range(20):
        draw = random.Random(seed)
        first = sorted(draw.sample(kept, draw.randrange(1, len(kept))))
        sums = added(LEFT_OUT)
        for some in (first, [rank for rank in kept if rank not in first]):
            sums.add(some, VECTORS[some])
        assert torch.equal(sums.total, EXPECTED)
