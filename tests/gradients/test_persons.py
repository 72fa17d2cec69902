"""A record that is a person with several rows: the mean of the rows' gradients, clipped once, of that person alone."""

import itertools
import math

import pytest
import torch
from torch import nn

from fedprivacy.gradients import AutomaticClipping, FlatClipping, GradientEngine, PerLayerClipping
from fedprivacy.gradients.layout import Layout
from fedprivacy.mechanisms.gaussian_sum import SUM_ALLOWANCE
from fedprivacy.tasks import Shard
from fedprivacy.values.unit import missing_target
from tests.device.models import Rescaled
from tests.gradients.oracle import cross_entropy, error_of, expected_sum, records_gradients, some_clipping_norm

M = 4
ROWS = (1, 4, 2, 3, 1, 4, 2)
"""Of each person, fewer than M and M."""


def squared(outputs, targets):
    return (outputs[:, 0] - targets).square()


class Branching(nn.Module):
    """Chooses a layer by a value, so that only the loop computes it."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, inputs):
        return torch.stack([(self.one if row.sum() > 0 else self.other)(row) for row in inputs])


CASES = {
    "program": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (6,), cross_entropy),
    "large layer": (lambda: nn.Sequential(nn.Linear(6, 128), nn.Tanh(), nn.Linear(128, 80)), (6,), cross_entropy),
    "regression": (lambda: nn.Linear(6, 1), (6,), squared),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3)),
        (1, 6, 6),
        cross_entropy,
    ),
    "words": (
        lambda: nn.Sequential(nn.Embedding(9, 4), nn.LayerNorm(4), nn.Flatten(), nn.Linear(12, 3)),
        None,
        cross_entropy,
    ),
    "vmap": (Rescaled, (9,), cross_entropy),
    "loop": (Branching, (6,), cross_entropy),
}


def made(name, *, views=1, summed=False, **options):
    torch.manual_seed(0)
    build, _, loss = CASES[name]
    return GradientEngine(build(), loss, layout=Layout(M, views, summed=summed), **options)


def rows_of(name, count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    _, shape, loss = CASES[name]
    inputs = (
        torch.randint(9, (count, 3), generator=generator)
        if shape is None
        else torch.randn(count, *shape, generator=generator)
    )
    if loss is squared:
        return inputs, torch.randn(count, generator=generator)
    return inputs, torch.randint(3, (count,), generator=generator)


def joined(inputs, targets, rows=ROWS):
    """The batch of persons with so many rows each, as a shard lays it out."""
    persons = torch.arange(len(rows)).repeat_interleave(torch.tensor(rows))
    shard = Shard(inputs, targets, null=False, persons=persons, most_rows=M)
    return shard.inputs, shard.targets


def means(model, loss, inputs, targets, rows=ROWS):
    """Each person's mean gradient in float64, by parameter."""
    by_row = records_gradients(model, loss, inputs, targets)
    return {name: torch.stack([g.mean(0) for g in gradients.split(rows)]) for name, gradients in by_row.items()}


QUICK = "program", "words"


@pytest.mark.parametrize(
    ("name", "clipping"),
    [
        *((name, FlatClipping()) for name in QUICK),
        *(
            pytest.param(name, FlatClipping(), marks=pytest.mark.exhaustive)
            for name in list(CASES)
            if name not in QUICK
        ),
        *itertools.product(QUICK, (PerLayerClipping(), AutomaticClipping())),
    ],
    ids=str,
)
def test_a_person_s_mean_gradient_is_clipped_once(name, clipping):
    engine = made(name, clipping=clipping)
    inputs, targets = rows_of(name, sum(ROWS))
    gradients = means(engine.model, CASES[name][2], inputs, targets)
    clipping_norm = some_clipping_norm(gradients, clipping)
    result = engine.clipped_sum(*joined(inputs, targets), clipping_norm)
    expected = expected_sum(gradients, clipping, clipping_norm)
    assert error_of(result, expected, clipping_norm) < (1e-4 if isinstance(clipping, AutomaticClipping) else 1e-5)
    assert engine.method == name or name not in ("program", "vmap", "loop")


def test_views_of_a_person_s_rows_are_averaged_with_them():
    engine = made("program", views=3)
    inputs, targets = rows_of("program", 3 * sum(ROWS))
    persons, aimed = joined(inputs[::3], targets[::3])
    views = torch.stack([joined(inputs[view::3], targets[::3])[0] for view in range(3)], 2)
    gradients = means(engine.model, cross_entropy, inputs, targets[::3].repeat_interleave(3), [3 * n for n in ROWS])
    assert persons.shape[:2] == views.shape[:2]
    expected = expected_sum(gradients, FlatClipping(), 0.5)
    assert error_of(engine.clipped_sum(views, aimed, 0.5), expected, 0.5) < 1e-5


@pytest.mark.parametrize(
    ("name", "summed"),
    [
        *(pytest.param(name, False, id=name) for name in ("program", "words")),
        *(pytest.param(name, False, id=name, marks=pytest.mark.exhaustive) for name in ("vmap", "loop")),
        pytest.param("program", True, id="sums"),
    ],
)
def test_a_person_s_bits_do_not_show_how_many_rows_others_have(name, summed):
    engine = made(name, summed=summed)
    inputs, targets = rows_of(name, 40)
    norms = {}
    for others in itertools.product((1, M), repeat=2):
        rows = (3, *others, 2)
        own = torch.cat([torch.arange(3), torch.arange(10, 10 + sum(others)), torch.arange(38, 40)])
        batch = joined(inputs[own], targets[own], rows)
        norms[others] = torch.cat(engine.clip(*batch, 0.5).squared_norms)[[0, 3]]
    first, *rest = norms.values()
    assert all(torch.equal(first, other) for other in rest)
    alone = [engine.clip(*joined(inputs[own], targets[own], (len(own),)), 0.5) for own in (range(3), range(38, 40))]
    assert torch.equal(first, torch.cat([clipped.squared_norms[0] for clipped in alone]))


@pytest.mark.parametrize(("trials", "seed"), [(40, 0), pytest.param(10_000, 1, marks=pytest.mark.soak)])
def test_a_whole_person_moves_the_sum_by_at_most_the_clipping_norm(trials, seed):
    """Whatever rows that person and all others have, under parameters of any size; see also `tests.device`."""
    engine, generator, furthest = made("program"), torch.Generator().manual_seed(seed), 0.0
    for trial in range(trials):
        count = int(torch.randint(2, 40, (1,), generator=generator))
        rows = torch.randint(1, M + 1, (count,), generator=generator).tolist()
        inputs, targets = rows_of("program", sum(rows), seed=1000 * seed + trial)
        inputs[torch.rand(len(inputs), generator=generator) < 0.2] *= 10.0 ** (trial % 13)
        inputs[torch.rand(len(inputs), generator=generator) < 0.05] = (math.nan, math.inf, -1e30, 1e-40)[trial % 4]
        for parameter in engine.model.parameters():
            parameter.data.copy_(10.0 ** (trial % 5 - 2) * torch.randn(parameter.shape, generator=generator))
        persons, aimed = joined(inputs, targets, rows)
        place = int(torch.randint(count, (1,), generator=generator))
        left = torch.arange(count - 1)
        left[left == place] = count - 1  # the last one takes the place
        moved = engine.clipped_sum(persons, aimed, 0.5) - engine.clipped_sum(persons[left], aimed[left], 0.5)
        furthest = max(furthest, float(moved.norm()) / 0.5)
    assert 0.9 < furthest <= 1.0 + SUM_ALLOWANCE


def test_a_person_with_a_row_that_cannot_be_computed_counts_for_nothing():
    engine = made("words")
    inputs, targets = rows_of("words", sum(ROWS))
    inputs[3, 0], targets[5] = 9, -5  # rows of the second and the third person: an id, a label that there is not
    found = engine.clip(*joined(inputs, targets), 0.5)
    usable = [0, 3, 4, 5, 6]
    batch = joined(inputs, targets)
    expected = engine.clipped_sum(batch[0][usable], batch[1][usable], 0.5)
    assert found.records == len(usable)
    assert torch.allclose(found.total, expected, rtol=1e-5, atol=1e-7)
    assert engine.stack(*batch) is None, "persons are not stacked"


@pytest.mark.parametrize(("computed", "per_step"), [(2, 2), (3, 3), (8, None), (8, 11)])
def test_a_summed_gradient_is_over_the_most_rows_that_a_step_computes(computed, per_step):
    """With all of them there the weights add up to 1, and to k / most for k rows; as a mean they add up to 1."""
    targets = torch.zeros(computed, computed, dtype=torch.int64)
    for rows in range(1, computed + 1):
        targets[rows - 1, rows:] = missing_target(targets)
    for summed in (True, False):
        layout = Layout(rows=8, per_step=per_step, summed=summed)
        weights = layout.lay_out(torch.rand(computed, computed, 3), targets)[2].view(computed, computed)
        expected = torch.arange(1, computed + 1) / computed if summed else torch.ones(computed)
        torch.testing.assert_close(weights.sum(1), expected)
