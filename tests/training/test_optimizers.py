"""The optimisers are torch's own, step for step, and a run's settings reach them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedprivacy.runs.settings.configuration import resolve
from fedprivacy.training.optimizers import SGD, Adam, AdamW, MovingAverage, build_optimizer

RATES = st.floats(1e-4, 1.0)
KEPT = st.floats(0.0, 0.999)
SETTINGS = {
    SGD: st.fixed_dictionaries(
        {"learning_rate": RATES, "momentum": st.just(0.0) | KEPT, "weight_decay": st.just(0.0) | st.floats(0.0, 1.0)}
    ),
    Adam: st.fixed_dictionaries(
        {"learning_rate": RATES}, optional={"betas": st.tuples(KEPT, KEPT), "eps": st.floats(1e-10, 1e-2)}
    ),
    AdamW: st.fixed_dictionaries(
        {"learning_rate": RATES, "weight_decay": st.floats(0.0, 1.0)},
        optional={"betas": st.tuples(KEPT, KEPT), "eps": st.floats(1e-10, 1e-2)},
    ),
}


def path(start, gradients, step, position):
    """The positions after each gradient."""
    with torch.no_grad():
        position.copy_(start)
    positions = []
    for gradient in gradients:
        step(gradient.clone())
        positions.append(position.detach().clone())
    return torch.stack(positions)


@pytest.mark.parametrize("optimizer", SETTINGS, ids=lambda o: o.__name__)
@given(data=st.data(), seed=st.integers(0, 2**31), steps=st.integers(1, 40))
def test_every_optimiser_is_torch_s_for_all_settings_and_steps(optimizer, data, seed, steps):
    generator, chosen = torch.Generator().manual_seed(seed), data.draw(SETTINGS[optimizer])
    start = torch.randn(7, generator=generator, dtype=torch.float64)
    gradients = torch.randn(steps, 7, generator=generator, dtype=torch.float64)
    parameter = torch.nn.Parameter(start.clone())
    theirs = getattr(torch.optim, optimizer.__name__)(
        [parameter], lr=chosen["learning_rate"], **{k: v for k, v in chosen.items() if k != "learning_rate"}
    )

    def their_step(gradient):
        parameter.grad = gradient
        theirs.step()

    ours = start.clone()
    expected = path(start, gradients, their_step, parameter)
    found = path(start, gradients, optimizer(**chosen).start(ours), ours)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9 * expected.abs().max().item())


@given(decay=st.floats(0.0, 0.9999), values=st.lists(st.floats(-10, 10), min_size=1, max_size=200))
def test_the_average_is_the_one_of_de_et_al(decay, values):
    average = MovingAverage(decay)
    average.begin({"w": torch.tensor([3.0], dtype=torch.float64)})
    average.add({"w": torch.tensor([5.0], dtype=torch.float64)})  # what was before a beginning is forgotten
    average.begin({"w": torch.tensor([values[0]], dtype=torch.float64)})
    expected = values[0]
    for t, value in enumerate(values[1:]):
        kept = min(decay, (1 + t) / (10 + t))
        expected = kept * expected + (1 - kept) * value
        average.add({"w": torch.tensor([value], dtype=torch.float64)})
    assert average.average["w"].item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("schedule", "shares"), [("linear", (1, 0.75, 0.5, 0.25)), ("cosine", (1, 0.8536, 0.5, 0.1464))]
)
def test_a_schedule_begins_with_all_of_the_rate_and_the_last_round_has_some(schedule, shares):
    config = resolve({"task": "cancer", "rounds": 4, "learning-rate": 0.2, "learning-rate-schedule": schedule})
    rates = [config.learning_rate_in(number) for number in (1, 2, 3, 4)]
    assert rates == pytest.approx([0.2 * share for share in shares], rel=1e-3)


@pytest.mark.parametrize(
    ("name", "chosen"),
    [("adam", {"momentum": 0.9}), ("adam", {"weight_decay": 0.1}), ("adamw", {"momentum": 0.9}), ("rmsprop", {})],
)
def test_what_an_optimiser_does_not_take_is_refused(name, chosen):
    with pytest.raises(ValueError, match=f"optimizer is '{name}'.* choose"):
        build_optimizer(name, 0.1, **chosen)
