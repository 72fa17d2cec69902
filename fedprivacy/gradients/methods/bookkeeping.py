"""Book-keeping: one forward pass, one backward pass for activation gradients only (Bu et al. 2023).

Works for any module made of layers that have a rule. A part without one is recomputed by `vmap`, a bare parameter with
a leading axis of one is expanded. During a forward pass, the rules replace the layers' `forward`; afterwards the model
is as before: no wrapper, no hook, no renamed parameter, no `.grad`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import Parameter

from fedprivacy.gradients.losses import Loss, checked_losses
from fedprivacy.gradients.rules import Rule, opaque, rule_for
from fedprivacy.gradients.tape import Sized, Tape
from fedprivacy.gradients.watch import OnePath


class UncoveredError(ValueError):
    """No rule covers a module."""


class BookKeeping:
    """Method that computes per-record gradients by the layers' rules."""

    name = "book-keeping"

    def __init__(self, model: nn.Module, loss: Loss, autocast: torch.dtype | None = None) -> None:
        """Choose a rule for every layer; `autocast` computes activations in half precision where that is safe.

        Raises:
            UncoveredError: the outermost module owns a parameter that cannot be expanded, or a layer's `forward` is
                not its class's.
        """
        self._model, self._loss, self._autocast = model, loss, autocast
        if autocast is not None:
            self.name = f"{self.name} in {str(autocast).removeprefix('torch.')}"
        self._indices = {p: i for i, p in enumerate(p for p in model.parameters() if p.requires_grad)}
        self._axes: dict[str, int] = {}
        self._expanded: dict[str, Parameter] = {}
        self._rules: list[tuple[str, nn.Module, Rule]] = []
        self.held_bytes = 0
        self._proven = False
        self._choose("", model)

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Sized]:
        """See `Method`.

        Raises:
            ValueDependentError: the records' paths depend on their values; checked on the first batch, which is made
                up.
        """
        tape = Tape(self._indices, self._axes, len(inputs), kept_bytes, learning=not self._proven)
        try:
            with torch.enable_grad():
                with self._installed(tape), nullcontext() if self._proven else OnePath(inputs):
                    outputs = self._forward(tape, inputs)
                losses = checked_losses(self._loss(outputs, targets), len(inputs))
                torch.autograd.grad(losses.sum(), tape.roots, allow_unused=True)
        finally:
            tape.roots.clear()  # break the cycle: roots hold the graph, whose hooks hold the tape
        self.held_bytes, self._proven = tape.held_bytes, True
        return tape.finish()

    def _forward(self, tape: Tape, inputs: Tensor) -> Tensor:
        copies = {name: tape.expanded(p).squeeze(1) for name, p in self._expanded.items()}
        with torch.autocast(inputs.device.type, self._autocast, enabled=self._autocast is not None):
            outputs: Tensor = functional_call(self._model, copies, (inputs,)) if copies else self._model(inputs)
        return outputs.float() if self._autocast else outputs

    def _choose(self, name: str, module: nn.Module) -> None:
        rule = rule_for(module)
        own = {n: p for n, p in module.named_parameters(recurse=False) if p.requires_grad}
        expandable = all(p.dim() > 1 and p.shape[0] == 1 for p in own.values())
        if rule is None and expandable:
            self._expanded |= {f"{name}.{n}" if name else n: p for n, p in own.items()}
            for child, inner in module.named_children():
                self._choose(f"{name}.{child}" if name else child, inner)
        elif "forward" in vars(module):
            raise UncoveredError(f"layer '{name}' has a forward of its own")
        elif rule is not None or name:
            self._rules.append((name, module, rule or opaque))
        else:
            raise UncoveredError(f"parameter '{next(iter(own))}' of the model itself is used by no layer with a rule")

    @contextmanager
    def _installed(self, tape: Tape) -> Iterator[None]:
        """Replace the layers' `forward` by their rules, in this thread; others see the layers unchanged."""
        try:
            for name, module, rule in self._rules:
                module.__dict__["forward"] = partial(_in_thread, get_ident(), partial(rule, tape, name), module)
            yield
        finally:
            for _, module, _ in self._rules:
                module.__dict__.pop("forward", None)


def _in_thread(thread: int, rule: Rule, module: nn.Module, *arguments: Any, **options: Any) -> Any:
    compute = rule if get_ident() == thread else type(module).forward
    return compute(module, *arguments, **options)
