"""A module without a rule inside a model of modules that have one: recomputed record by record, vectorised."""

from __future__ import annotations

from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from fedprivacy.gradients.pieces import Piece, Written
from fedprivacy.gradients.tape import Tape


def opaque(tape: Tape, name: str, module: nn.Module, inputs: Tensor) -> Tensor:
    """Any module that takes and returns one tensor whose first axis counts the records."""
    output: Tensor = type(module).forward(module, inputs)
    parameters = {own: p for own, p in module.named_parameters() if tape.part(p) is not None}
    tape.require_records_first(name, inputs)

    def gradients_of(record: Tensor, gradient: Tensor) -> dict[str, Tensor]:
        def compute(trained: dict[str, Tensor]) -> Tensor:
            computed: Tensor = functional_call(module, trained, (record.unsqueeze(0),))
            return computed

        pull_back = vjp(compute, {own: p.detach() for own, p in parameters.items()})[1]
        (written,) = pull_back(gradient.unsqueeze(0))
        return dict(written)

    def pieces_of(gradient: Tensor) -> list[Piece]:
        written = vmap(gradients_of, randomness="error")(inputs.detach(), gradient)
        return [Written(written[own]) for own in parameters]

    tape.watch(name, inputs, output, [tape.part(p) for p in parameters.values()], pieces_of)
    return output
