"""Several rows of a person, or views of a record: the mean of their gradients is clipped once."""

import itertools

import pytest
import torch
from torch import nn

from fedprivacy.gradients import AutomaticClipping, FlatClipping, GradientEngine, PerLayerClipping
from fedprivacy.gradients.layout import Layout
from fedprivacy.tasks import Shard
from fedprivacy.values.unit import missing_target
from tests.device.models import Rescaled
from tests.gradients.oracle import cross_entropy, error_of, expected_sum, records_gradients, some_clipping_norm

M = 4
ROWS = (1, 4, 2, 3, 1, 4, 2)
"""Of each person, fewer than M and M."""

OWN_ROWS = Layout(M)


def squared(outputs, targets):
    return (outputs[:, 0] - targets).square()


class Branching(nn.Module):
    """Chooses a layer by a value, so that only the loop computes it."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, inputs):
        return torch.stack([(self.one if row.sum() > 0 else self.other)(row) for row in inputs])


class Residual(nn.Module):
    """Branches, so that it is no chain: book-keeping."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.second, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4 * 36, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        return self.last((x + self.second(x)).flatten(1))


CASES = {
    "program": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (6,), cross_entropy),
    "regression": (lambda: nn.Linear(6, 1), (6,), squared),
    "book-keeping": (Residual, (1, 6, 6), cross_entropy),
    "words": (
        lambda: nn.Sequential(nn.Embedding(9, 4), nn.LayerNorm(4), nn.Flatten(), nn.Linear(12, 3)),
        None,
        cross_entropy,
    ),
    "vmap": (Rescaled, (9,), cross_entropy),
    "loop": (Branching, (6,), cross_entropy),
}


def made(name, layout=OWN_ROWS, **options):
    torch.manual_seed(0)
    build, _, loss = CASES[name]
    return GradientEngine(build(), loss, layout=layout, **options)


def rows_of(name, count):
    generator = torch.Generator().manual_seed(1)
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
    assert engine.method == name or name in ("regression", "words")


@pytest.mark.parametrize(("name", "max_memory"), [("program", 1), *((name, None) for name in CASES if name != "loop")])
def test_views_of_a_record_are_averaged_before_clipping(name, max_memory):
    engine = made(name, Layout(views=4), max_memory=max_memory)
    inputs, targets = rows_of(name, 20)
    targets = targets[::4]
    gradients = means(engine.model, CASES[name][2], inputs, targets.repeat_interleave(4), [4] * 5)
    clipping_norm = some_clipping_norm(gradients, FlatClipping())
    result = engine.clipped_sum(inputs.unflatten(0, (5, 4)), targets, clipping_norm)
    assert error_of(result, expected_sum(gradients, FlatClipping(), clipping_norm), clipping_norm) <= 1e-5


def test_views_of_a_person_s_rows_are_averaged_with_them():
    engine = made("program", Layout(M, 3))
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
    engine = made(name, Layout(M, summed=summed))
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
