"""Pictures: the scattering transform is what its formulas say, and what views do to a picture."""

import math

import pytest
import torch

import fedprivacy as fp
from fedprivacy.tasks import mirrored, shifted
from fedprivacy.tasks.scattering import FINEST, FREQUENCY, group_normalised, scattering

SIZE = 36


@pytest.fixture(scope="module")
def images():
    return torch.rand(5, 28, 28, generator=torch.Generator().manual_seed(3))


def in_space(width, angle, frequency, slant):
    """A plane wave under a Gaussian envelope of integral 1, around the first pixel and all its images on the torus."""
    places = torch.arange(SIZE, dtype=torch.float64)
    total = torch.zeros(SIZE, SIZE, dtype=torch.complex128)
    for down in range(-2, 3):
        for right in range(-2, 3):
            rows, columns = places[:, None] + SIZE * down, places[None, :] + SIZE * right
            across = rows * math.cos(angle) + columns * math.sin(angle)
            along = columns * math.cos(angle) - rows * math.sin(angle)
            envelope = torch.exp(-(across**2 + (slant * along) ** 2) / (2 * width**2))
            total += slant / (2 * math.pi * width**2) * envelope * torch.exp(1j * frequency * across)
    return total


def wavelet(width, angle, frequency, slant):
    """A plane wave under an envelope without a constant part, in the domain of frequencies."""
    wave, blank = in_space(width, angle, frequency, slant), in_space(width, angle, 0.0, slant)
    return torch.fft.fft2(wave - wave.sum() / blank.sum() * blank).real.float()


def test_features_are_the_moduli_that_the_paper_defines(images):
    """Two convolutions and an average, one pixel at a time and without any subsampling in between."""
    padded = torch.nn.functional.pad(images[:, None], [4] * 4, mode="reflect")[:, 0]
    low = in_space(FINEST * 2, 0.0, 0.0, 1.0).real.float()

    def convolved(image, filter):
        return torch.fft.ifft2(torch.fft.fft2(image) * filter)

    def averaged(image):
        return convolved(image, torch.fft.fft2(low)).real[:, ::4, ::4][:, 1:-1, 1:-1]

    found = scattering(images)
    fine, coarse = (
        [wavelet(FINEST * 2**scale, math.pi * n / 8, FREQUENCY / 2**scale, 0.5) for n in range(8)] for scale in (0, 1)
    )
    torch.testing.assert_close(found[:, 0], averaged(padded), atol=1e-4, rtol=0)
    torch.testing.assert_close(found[:, 1 + 3], averaged(convolved(padded, fine[3]).abs()), atol=1e-4, rtol=0)
    torch.testing.assert_close(found[:, 9 + 5], averaged(convolved(padded, coarse[5]).abs()), atol=5e-3, rtol=0)
    twice = convolved(convolved(padded, fine[3]).abs(), coarse[5]).abs()
    torch.testing.assert_close(found[:, 17 + 8 * 3 + 5], averaged(twice), atol=5e-3, rtol=0)


@pytest.mark.parametrize(("scales", "angles", "channels"), [(1, 8, 9), (2, 8, 81), (2, 4, 25), (3, 4, 61)])
def test_channels_and_squares(scales, angles, channels):
    found = scattering(torch.ones(2, 24, 24), scales=scales, angles=angles)
    assert found.shape == (2, channels, 24 // 2**scales, 24 // 2**scales)
    torch.testing.assert_close(found[:, 0], torch.ones_like(found[:, 0]), atol=1e-3, rtol=0)  # averages of a blank
    assert found[:, 1:].abs().max() < 1e-3  # which has no stripes


def test_a_record_s_features_depend_on_no_other_record(images):
    alone, many = scattering(images[:1]), scattering(torch.cat([images[:1], 1e6 * torch.rand(40, 28, 28)]))
    torch.testing.assert_close(many[:1], alone)
    normalised = group_normalised(many, 27)
    torch.testing.assert_close(normalised[:1], group_normalised(alone, 27))
    groups = normalised.unflatten(1, (27, 3)).flatten(2)
    torch.testing.assert_close(groups.mean(2), torch.zeros(41, 27), atol=1e-4, rtol=0)


@pytest.mark.parametrize("shape", [(28, 28), (3, 28, 27), (3, 30, 30), (3, 4, 4)])
def test_images_of_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"give \[records, side, side\], the side a multiple of 4, and larger"):
        scattering(torch.zeros(shape))


# --- views ---

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


def test_one_view_of_another_has_chances_of_its_own():
    both = shifted(pixels=1).then(mirrored())
    chances = torch.tensor([[nth(0, 3), nth(1, 3), 0.1], [nth(1, 3), nth(2, 3), 0.9]])
    moved = shifted(pixels=1).view(PICTURES, chances[:, :2])
    assert both.draws == 3 and torch.equal(both.view(PICTURES, chances), torch.stack([moved[0].flip(-1), moved[1]]))


def test_an_augmentation_without_chance_is_refused():
    with pytest.raises(ValueError, match="draws is 0; a view needs at least one"):
        fp.Augmentation(lambda records, chances: records, draws=0)
