"""One training step as a user of Opacus 1.6 runs it, in each of its modes. Needs the `bench` extra."""

from __future__ import annotations

import warnings

from torch import nn, optim

from benchmarks.gradient_models import CLIPPING_NORM, LEARNING_RATE, NOISE_MULTIPLIER, Problem
from benchmarks.measure import Mark, Step

DEFAULT = "hooks"
MODES = (DEFAULT, "ew", "functorch", "ghost")
"""Opacus' names."""


def opacus_step(problem: Problem, mode: str) -> Step:
    """The wrapped model, optimizer and loss that `PrivacyEngine.make_private` returns; no loader, no accountant.

    Raises:
        ImportError: Opacus is not there.
    """
    from opacus.grad_sample.utils import prepare_module
    from opacus.optimizers import get_optimizer_class
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    warnings.filterwarnings("ignore", message="Full backward hook is firing|In CPU autocast")
    ghost = {"max_grad_norm": CLIPPING_NORM} if mode == "ghost" else {}
    model = prepare_module(problem.build(), grad_sample_mode=mode, **ghost)
    optimizer = get_optimizer_class("flat", distributed=False, grad_sample_mode=mode)(
        optim.SGD(model.parameters(), lr=LEARNING_RATE),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIPPING_NORM,
        expected_batch_size=len(problem.inputs),
    )
    loss = nn.CrossEntropyLoss()
    criterion = DPLossFastGradientClipping(model, optimizer, loss) if mode == "ghost" else loss

    def step(mark: Mark) -> None:
        optimizer.zero_grad()
        criterion(model(problem.inputs), problem.targets).backward()
        mark()
        optimizer.step()

    return step
