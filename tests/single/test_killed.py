"""A training that is killed at any moment goes on, for one charge a step, and shows no step's noise twice."""

from functools import partial

import pytest
import torch

from fedprivacy._support import failpoints
from tests.processes import KILLED, in_child
from tests.single.coins import charged, flat, train

POINTS = ("guard.before-slot", "guard.slot-written", "guard.appended", "client.seal-written", "client.seal-named")
ADAPTIVE = {"clipping": "adaptive", "optimizer": partial(torch.optim.Adam, lr=0.1)}
HALVED = partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5)


def lived(folder, point, times, **given):
    """Train in another process, which dies when it comes to a point for the `times`-th time."""

    def child():
        torch.set_num_threads(1)
        failpoints.arm(point, times)
        train(checkpoint=folder, resume=True, **given)

    return in_child(child)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Parameters and rows of trainings that nobody disturbs."""
    given = {"seed": 1, "schedule": HALVED, "evaluate": lambda model: model.weight.sum().item(), "evaluate_every": 1}
    return given, {
        clipping: train(checkpoint=tmp_path_factory.mktemp(clipping), **given, **settings)
        for clipping, settings in (("flat", {}), ("adaptive", ADAPTIVE))
    }


MOMENTS = ("flat", 1), ("flat", 4), ("adaptive", 3)


def marks(point, moment):
    """Every point at one moment and each moment at some point; the quick lane has one of them."""
    if MOMENTS.index(moment) != POINTS.index(point) % len(MOMENTS):
        return pytest.mark.soak
    return () if point == "guard.appended" else pytest.mark.exhaustive


@pytest.mark.parametrize(
    ("point", "clipping", "times"),
    [pytest.param(point, *moment, marks=marks(point, moment)) for point in POINTS for moment in MOMENTS],
)
def test_a_killed_training_ends_with_the_same_bits_and_charges(point, times, clipping, whole, tmp_path):
    given, expected = whole
    settings = given | (ADAPTIVE if clipping == "adaptive" else {})
    assert lived(tmp_path, point, times, **settings) == KILLED
    assert lived(tmp_path, point, 2, **settings) == KILLED  # and once more
    trained = train(checkpoint=tmp_path, resume=True, **settings)
    assert torch.equal(flat(trained.model), flat(expected[clipping].model))
    assert trained.rows == expected[clipping].rows
    assert charged(tmp_path / "account.log") == trained.steps == 6
    assert trained.epsilon == expected[clipping].epsilon


def test_an_optimiser_that_fails_after_a_look_at_a_gradient_sees_the_same_one_again(tmp_path):
    seen = []

    class Spy(torch.optim.SGD):
        def step(self, closure=None):
            parameters = [p for group in self.param_groups for p in group["params"]]
            seen.append(torch.cat([p.grad.flatten() for p in parameters]))
            raise OSError("it wants another one")

    for _ in range(3):
        with pytest.raises(OSError, match="it wants another one"):
            train(checkpoint=tmp_path, resume=True, optimizer=partial(Spy, lr=0.1))
    assert len(seen) == 3 and torch.equal(seen[0], seen[1]) and torch.equal(seen[0], seen[2])
    assert charged(tmp_path / "account.log") == 1
