"""Parameters that a hostile server chooses so that one bit of rounding becomes another gradient, and what they achieve.

A hidden layer computes almost the same number in every unit; the head takes differences of them, a million to a
thousand million times amplified. What is left of each record's output is rounding alone. Were it to depend on the
batch, one record less would change everybody's gradient: by 4.5 clipping norms, before parts had fixed sizes.

    python -m tests.privacy.hostile [--trials 10000]

runs so many trials for every method, and prints the largest change in clipping norms.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from unittest import mock

import torch
from torch import nn
from torch.nn import functional

from fedprivacy.gradients import GradientEngine, methods
from fedprivacy.gradients.invariance import sizes_that_agree
from fedprivacy.gradients.methods import SingleRows
from fedprivacy.gradients.selfcheck import PlaceError
from fedprivacy.mechanisms.gaussian_sum import SUM_ALLOWANCE

CLIPPING_NORM = 1.0
FEATURES = 20
_KINDS = {"program": "Program", "book-keeping": "BookKeeping", "vmap": "Vectorised", "loop": "Loop"}
_BY_SINGLE_ROWS = ", one row at a time"
MEANS = (*_KINDS, *(f"{name}{_BY_SINGLE_ROWS}" for name in _KINDS if name != "loop"))


def squared_error(outputs, targets):
    return (outputs[:, 0] - targets).square()


def logistic(outputs, targets):
    return functional.binary_cross_entropy_with_logits(outputs[:, 0], targets, reduction="none")


def perceptron(hidden, activation=nn.ReLU):
    return nn.Sequential(nn.Linear(FEATURES, hidden), activation(), nn.Linear(hidden, 1))


def amplify(model, seed, amplification, *, gated):
    """Set a perceptron's parameters; `gated`: its units are dead on records in [0, 1], and alive on others."""
    generator = torch.Generator().manual_seed(seed)
    inner, head = (layer for layer in model if isinstance(layer, nn.Linear))
    hidden, features = inner.weight.shape
    directions = torch.randn(hidden, features, dtype=torch.float64, generator=generator)
    common = torch.cat([torch.ones(hidden, 1, dtype=torch.float64), directions], 1)
    basis, _ = torch.linalg.qr(common, mode="complete")
    rest = basis[:, features + 1 :]
    difference = rest @ torch.randn(rest.shape[1], dtype=torch.float64, generator=generator)
    difference *= hidden**0.5 / difference.norm() / hidden
    with torch.no_grad():
        inner.weight.copy_(1e-4 * directions - (features**-0.5 if gated else 0.0))
        inner.bias.fill_(-0.3 if gated else 1.0)
        head.weight.copy_(amplification * difference)
        head.bias.zero_()


def engine_of(method, model, loss, like):
    """An engine that uses this method and no faster one; where the check refuses them here, with products of single
    rows."""
    kind, single = method.removesuffix(_BY_SINGLE_ROWS), method.endswith(_BY_SINGLE_ROWS)
    with ExitStack() as stack:
        for name in list(_KINDS)[: list(_KINDS).index(kind)]:
            stack.enter_context(mock.patch.object(methods, _KINDS[name], side_effect=NotImplementedError))
        if single:
            stack.enter_context(mock.patch.object(methods, "sizes_that_agree", _of_single_rows))
        engine = GradientEngine(model, loss)
        engine.prepare(*(rows[:0] for rows in like))
    assert engine.method in {method, kind + _BY_SINGLE_ROWS}
    return engine


def _of_single_rows(method, *others):
    """The check, for which products of many rows never treat these alike."""
    if not isinstance(method, SingleRows):
        raise PlaceError(f"{method.name} is not wanted")
    return sizes_that_agree(method, *others)


def neighbours(records, record):
    """The places of a batch without a record: the last one takes its place, or all behind it move up."""
    swapped = torch.arange(records)
    swapped[record] = records - 1
    yield swapped[:-1]
    yield torch.cat([torch.arange(record), torch.arange(record + 1, records)])


def change(engine, inputs, targets, record):
    """The largest change that one record makes to the sum, in clipping norms."""
    whole = engine.clipped_sum(inputs, targets, CLIPPING_NORM)
    sums = (engine.clipped_sum(inputs[rows], targets[rows], CLIPPING_NORM) for rows in neighbours(len(inputs), record))
    return max((whole - without).norm().item() for without in sums) / CLIPPING_NORM


def trials(method, count, seed=0):
    """The changes of so many trials: other parameters, numbers of records and records each time."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(400, FEATURES, generator=generator)
    targets = torch.randint(2, (400,), generator=generator).float()
    settings = [(hidden, loss, act) for hidden in (30, 100) for loss in (squared_error, logistic) for act in _UNITS]
    engines = [engine_of(method, perceptron(h, act), loss, (inputs, targets)) for h, loss, act in settings]
    most = 40 if method == "loop" else 400
    for trial in range(count):
        engine = engines[trial % len(engines)]
        amplification = 10.0 ** (7 + trial // len(engines) % 3)
        amplify(engine.model, trial, amplification, gated=trial // (3 * len(engines)) % 2 == 1)
        records = int(torch.randint(2, most + 1, (1,), generator=generator))
        some = torch.randperm(400, generator=generator)[:records]
        yield change(engine, inputs[some], targets[some], int(torch.randint(records, (1,), generator=generator)))


_UNITS = (nn.ReLU, nn.SiLU)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000, help="for every method")
    count = parser.parse_args().trials
    for method in MEANS:
        worst = max(trials(method, count))
        verdict = "held" if worst <= 1 + SUM_ALLOWANCE else "BROKEN"
        print(f"{method}: {count} trials, largest change {worst:.6f} C, allowed {1 + SUM_ALLOWANCE:.6f} C: {verdict}")  # noqa: T201


if __name__ == "__main__":
    main()
