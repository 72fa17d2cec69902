"""Views that come with the package: what they do to a picture."""

import pytest
import torch

import fedprivacy as fp
from fedprivacy.tasks import mirrored, shifted

PICTURES = torch.arange(2.0 * 3 * 4 * 5).view(2, 3, 4, 5)


def nth(place, of):
    """A chance in the middle of one of so many equal parts of [0, 1)."""
    return (place + 0.5) / of


@pytest.mark.parametrize(("down", "right"), [(-1, 0), (0, 0), (1, -1), (0, 1)])
def test_a_shifted_picture_has_its_pixels_elsewhere_and_its_border_twice(down, right):
    chances = torch.tensor([[nth(down + 1, 3), nth(right + 1, 3)], [nth(1, 3), nth(1, 3)]])
    view = shifted(pixels=1).view(PICTURES, chances)
    rows = [min(max(row + down, 0), 3) for row in range(4)]
    columns = [min(max(column + right, 0), 4) for column in range(5)]
    assert torch.equal(view[0], PICTURES[0][:, rows][:, :, columns])
    assert torch.equal(view[1], PICTURES[1])  # by its own chances


def test_every_shift_is_equally_likely():
    pictures = torch.arange(5.0).expand(3000, 5, 5)
    moved = shifted(pixels=2).view(pictures, torch.rand(3000, 2, generator=torch.Generator().manual_seed(0)))
    counts = moved[:, 0, 2].long().bincount(minlength=5)
    assert (counts - 600).abs().max() < 6 * (3000 * 0.2 * 0.8) ** 0.5


def test_half_of_the_pictures_are_mirrored():
    view = mirrored().view(PICTURES, torch.tensor([[0.49], [0.5]]))
    assert torch.equal(view[0], PICTURES[0].flip(-1)) and torch.equal(view[1], PICTURES[1])


def test_one_view_of_another_has_chances_of_its_own():
    both = shifted(pixels=1).then(mirrored())
    chances = torch.tensor([[nth(0, 3), nth(1, 3), 0.1], [nth(1, 3), nth(2, 3), 0.9]])
    expected = mirrored().view(shifted(pixels=1).view(PICTURES, chances[:, :2]), chances[:, 2:])
    assert both.draws == 3 and torch.equal(both.view(PICTURES, chances), expected)


def test_an_augmentation_without_chance_is_refused():
    with pytest.raises(ValueError, match="draws is 0; a view needs at least one"):
        fp.Augmentation(lambda records, chances: records, draws=0)
