"""Independent answers: one backward pass for each record in float64, then each clipping by its definition.

Nothing here shares code with `fedprivacy.gradients`.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from unittest import mock

import torch
from torch.nn import functional

from fedprivacy.gradients import AutomaticClipping, FlatClipping, GradientEngine, PerLayerClipping, engine, methods

CLIPPINGS = (FlatClipping(), PerLayerClipping(), AutomaticClipping())


def cross_entropy(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")


def records_gradients(model, loss, inputs, targets):
    """For each trained parameter, by name, the gradients [n, *parameter] of the n records that have a finite one."""
    model = copy.deepcopy(model).double()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows = []
    for record, target in zip(inputs.double() if inputs.is_floating_point() else inputs, targets, strict=True):
        try:
            (value,) = loss(model(record[None]), target[None])
            gradients = torch.autograd.grad(value, trained.values(), allow_unused=True, materialize_grads=True)
        except IndexError:
            continue
        if all(g.isfinite().all() for g in gradients):
            rows.append(gradients)
    columns = zip(*rows, strict=True) if rows else [()] * len(trained)
    return {
        name: torch.stack(column) if column else p.new_empty(0, *p.shape)
        for (name, p), column in zip(trained.items(), columns, strict=True)
    }


def layers_of(gradients):
    """The gradients [n, d] of each layer: of the parameters whose names agree up to the last dot."""
    layers = {}
    for name, rows in gradients.items():
        layers.setdefault(name.rpartition(".")[0], []).append(rows.unsqueeze(1).flatten(1))
    return {name: torch.cat(parts, 1) for name, parts in layers.items()}


def norms_of(gradients):
    """Euclidean norms [n] of the records' whole gradients."""
    return torch.cat([rows.unsqueeze(1).flatten(1) for rows in gradients.values()], 1).norm(dim=1)


def some_clipping_norm(gradients, clipping):
    """A clipping norm that about half of the records exceed.

    It is at least .05: the loss of a record that is learnt by heart has a gradient of float32's own rounding.
    """
    layers = list(layers_of(gradients).values())
    by_layer = torch.cat([rows.norm(dim=1) for rows in layers]) * len(layers) ** 0.5
    norms = by_layer if isinstance(clipping, PerLayerClipping) else norms_of(gradients)
    norms = norms[norms > 0]
    return max(0.05, 0.9 * norms.median().item()) if len(norms) else 1.0


def expected_sum(gradients, clipping, clipping_norm):
    """The clipped sum [d], by the clipping's definition."""
    layers = layers_of(gradients)
    norms = norms_of(gradients)
    total = []
    for name, rows in gradients.items():
        if isinstance(clipping, PerLayerClipping):
            share = clipping_norm / len(layers) ** 0.5
            scales = (share / layers[name.rpartition(".")[0]].norm(dim=1)).clamp(max=1.0)
        elif isinstance(clipping, AutomaticClipping):
            scales = clipping_norm / (norms + 0.01)
        else:
            scales = (clipping_norm / norms).clamp(max=1.0)
        total.append((scales @ rows.unsqueeze(1).flatten(1)).flatten())
    return torch.cat(total)


def error_of(result, expected, clipping_norm):
    """Relative to the sum; or to C, in whose units the noise is, where records cancel."""
    return ((result.double() - expected).norm() / max(expected.norm().item(), clipping_norm)).item()


def no_program():
    """Let the engine begin with book-keeping, so that it is the rules that are tested."""
    return mock.patch.object(methods, "Program", side_effect=NotImplementedError)


def any_company():
    """Let the engine take methods that treat no two places alike, as kernels do for some small shapes: so that what is
    tested is whether they are right. Whether they are alike is tested in `tests.gradients.test_invariance`. Parts have
    the smallest size: to try the others takes most of the time."""
    return mock.patch.object(methods, "sizes_that_agree", lambda _means, _model, _probe, sizes, _kept: sizes[-1:])


def chosen_once():
    """Let engines of one model share what the first one chose: the choice takes most of the time, and knows of no
    clipping."""
    choose, chosen = engine.admit_method, []

    def once(*asked, **how):
        chosen.append(chosen[0] if chosen else choose(*asked, **how))
        return chosen[0]

    return mock.patch.object(engine, "admit_method", once)


def check_every_clipping(model, inputs, targets, **how):
    """Assert that each clipping's sum of a batch equals the oracle's; `how` is that of `check_batches`."""
    check_batches(model, [(inputs, targets, None)], **how)


def check_batches(model, batches, *, method="book-keeping", loss=cross_entropy, **options):
    """Assert that each clipping's sums equal the oracle's, and that one engine computed them by (one of) these methods.

    A batch is inputs, targets, and which rows are records; None: all.
    """
    admissible = (method,) if isinstance(method, str) else method
    gradients = [
        records_gradients(model, loss, *(rows if mask is None else rows[mask] for rows in batch))
        for *batch, mask in batches
    ]
    with nullcontext() if "program" in admissible else no_program(), any_company(), chosen_once():
        for clipping in CLIPPINGS:
            private = GradientEngine(model, loss, clipping, **options)
            for (inputs, targets, mask), by_record in zip(batches, gradients, strict=True):
                clipping_norm = some_clipping_norm(by_record, clipping)
                result = private.clipped_sum(inputs, targets, clipping_norm, mask)
                expected = expected_sum(by_record, clipping, clipping_norm)
                assert result.shape == expected.shape
                # automatic clipping divides by norms down to its stability of 0.01, and so amplifies rounding
                tolerance = 1e-4 if isinstance(clipping, AutomaticClipping) else 1e-5
                assert error_of(result, expected, clipping_norm) < tolerance, clipping
            assert private.method in admissible
