"""Augmentation: random views of a record that have the same meaning, such as a scan moved by a pixel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # every `--help` asks for the bound below, and need not wait for torch
    from torch import Tensor

LARGEST_MULTIPLICITY = 256
"""Maximum number of views of a record; each costs as much as a record without views."""


@dataclass(frozen=True, slots=True)
class Augmentation:
    """A way to make random views of records.

    A row of a view depends on the same row of inputs and chances, and on public constants: on no other record, and on
    no random numbers of its own. Therefore it costs no privacy: a record's views are averaged before the average is
    clipped (augmentation multiplicity, De et al. 2022).

    >>> import fedprivacy as fp, torch
    >>> dimmed = fp.Augmentation(lambda scans, chances: scans * (0.9 + 0.2 * chances.view(-1, 1, 1, 1)), draws=1)
    >>> both = fp.tasks.shifted(pixels=1).then(dimmed)
    >>> both.draws, both.view(torch.ones(5, 1, 8, 8), torch.rand(5, 3)).shape
    (3, torch.Size([5, 1, 8, 8]))

    Attributes:
        view: function (inputs [batch, ...], chances [batch, draws], from [0, 1)) -> a view of each record, of the
            inputs' shape and type.
        draws: number of random numbers that it takes for a record, at least 1.

    Raises:
        ValueError: `draws` is less than 1, so that all views would be the same.
    """

    view: Callable[[Tensor, Tensor], Tensor]
    draws: int

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise ValueError(f"draws is {self.draws}; a view needs at least one random number to differ from others.")

    def then(self, other: Augmentation) -> Augmentation:
        """Apply the other augmentation to this one's views."""

        def view(inputs: Tensor, chances: Tensor) -> Tensor:
            return other.view(self.view(inputs, chances[:, : self.draws]), chances[:, self.draws :])

        return Augmentation(view, self.draws + other.draws)


def shifted(pixels: int) -> Augmentation:
    """Move images [batch, ..., height, width] by up to `pixels` pixels along each axis; the border repeats.

    >>> import torch
    >>> image, chances = torch.arange(9.0).view(1, 3, 3), torch.tensor([[0.5, 0.9]])
    >>> shifted(pixels=1).view(image, chances)  # not up or down, but one to the left
    tensor([[[1., 2., 2.],
             [4., 5., 5.],
             [7., 8., 8.]]])
    """

    def view(inputs: Tensor, chances: Tensor) -> Tensor:
        for axis, chance in zip((-2, -1), chances.unbind(1), strict=True):
            inputs = _move(inputs, (chance * (2 * pixels + 1)).floor().long() - pixels, axis)
        return inputs

    return Augmentation(view, 2)


def mirrored() -> Augmentation:
    """Mirror half of the images [batch, ..., width], exchanging left and right.

    >>> import torch
    >>> image = torch.tensor([[[1.0, 2.0, 3.0]]])
    >>> mirrored().view(image, torch.tensor([[0.2]])), mirrored().view(image, torch.tensor([[0.7]]))
    (tensor([[[3., 2., 1.]]]), tensor([[[1., 2., 3.]]]))
    """

    def view(inputs: Tensor, chances: Tensor) -> Tensor:
        turned = (chances[:, 0] < 0.5).view(-1, *[1] * (inputs.dim() - 1))
        return inputs.flip(-1).where(turned, inputs)

    return Augmentation(view, 1)


def _move(inputs: Tensor, shifts: Tensor, axis: int) -> Tensor:
    """Move each record's values along an axis by its own number of places, [batch]."""
    import torch

    length = inputs.shape[axis]
    places = (torch.arange(length, device=inputs.device) + shifts.unsqueeze(1)).clamp(0, length - 1)
    shape = [len(inputs)] + [1] * (inputs.dim() - 1)
    shape[axis] = length
    return inputs.gather(axis, places.view(shape).expand_as(inputs))
