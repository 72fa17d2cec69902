"""Scattering features of images: wavelets, moduli and averages without training, which therefore cost no privacy.

A scattering transform (Bruna, Mallat 2013) measures stripes in an image by strength, scale, direction and approximate
place: moduli of its convolutions with Morlet wavelets, and moduli of those with wavelets of larger scales,
each averaged over squares of 2^J pixels. A linear classifier on these features beats DP-SGD on pixels where records are
few (Tramer, Boneh 2021): the features are public, and only the classifier is learned.

Formal guarantee: a record's features depend on that record and on public constants, on nothing else. So neighbouring
shards have neighbouring features, and training on features has the epsilon of training on the images.

>>> import torch
>>> scattering(torch.zeros(5, 28, 28), scales=2).shape  # 1 + 2 x 8 + 8 x 8 channels of squares of 4 x 4 pixels
torch.Size([5, 81, 7, 7])
"""

from __future__ import annotations

import math
from functools import cache
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional

FINEST, FREQUENCY = 0.8, 3.0 * math.pi / 4.0
"""Width of the finest wavelet's envelope, in pixels, and its frequency, in radians per pixel; each larger scale has
twice the width and half the frequency. The values are those of Kymatio (Andreux et al. 2020), whose features these
match to four digits.
"""

_AT_ONCE = 16
"""Number of images that are transformed together: they stay in a processor's cache."""


def scattering(images: Tensor, *, scales: int = 2, angles: int = 8) -> Tensor:
    """Compute the scattering transform of images up to the second order.

    Args:
        images: images, shape [records, side, side]; they are mirrored beyond their edges.
        scales: J, at least 1; features are averaged over squares of 2^J pixels.
        angles: L, number of directions of stripes.

    Returns:
        Features, shape [records, channels, side / 2^J, side / 2^J], with 1 + J L + L^2 J (J - 1) / 2 channels: the
        averaged image, the first order by scale and angle, the second by both scales and both angles.

    Raises:
        ValueError: the images are not square, or their side is no multiple of 2^J, and larger.
    """
    square = 2**scales
    if images.dim() != 3 or images.shape[1] != images.shape[2] or images.shape[2] % square or images.shape[2] == square:
        shape = list(images.shape)
        raise ValueError(
            f"images have shape {shape}, and scales is {scales}; give [records, side, side], the side a multiple of "
            f"{square}, and larger."
        )
    return torch.cat([_transform(some, scales, angles) for some in images.split(_AT_ONCE)])


def group_normalised(features: Tensor, groups: int) -> Tensor:
    """Normalise each record's features to mean 0 and variance 1 in each group of channels (Wu, He 2018), untrained.

    Only a record's own features enter: there is no statistic of several records that would cost privacy.

    Args:
        features: shape [records, channels, ...].
        groups: number of groups, a divisor of the number of channels.
    """
    return functional.group_norm(features, groups)


def _transform(images: Tensor, scales: int, angles: int) -> Tensor:
    """Compute the features of a few images, each within a mirrored margin of one square."""
    padded = functional.pad(images[:, None], [2**scales] * 4, mode="reflect")
    size = padded.shape[-1]
    spectrum = torch.fft.fft2(padded)
    orders: list[list[Tensor]] = [[_averaged(padded, size, 0, scales)], [], []]
    for first in range(scales):
        once = _modulus(spectrum, size, 0, first, angles)
        orders[1].append(_averaged(once, size, first, scales))
        for second in range(first + 1, scales):
            twice = _modulus(torch.fft.fft2(once), size, first, second, angles)
            orders[2].append(_averaged(twice, size, second, scales))
    return torch.cat([channels for order in orders for channels in order], dim=1)


def _modulus(spectrum: Tensor, size: int, coarse: int, scale: int, angles: int) -> Tensor:
    """Compute |u * wavelet| for every channel u and each angle, [records, channels x angles, ...], every 2^scale
    pixels.

    Args:
        spectrum: spectrum of the channels, known every 2^coarse pixels.
        size: size of the padded image, in pixels.
        coarse: exponent of the known spacing, at most `scale`.
        scale: scale of the wavelet.
        angles: number of directions.
    """
    filtered: Tensor = spectrum[:, :, None] * _wavelets(size, coarse, scale, angles)
    stripes: Tensor = torch.fft.ifft2(_every(2 ** (scale - coarse), filtered))
    return stripes.abs().flatten(1, 2)


def _every(step: int, spectrum: Tensor) -> Tensor:
    """Subsample a spectrum to every `step` pixels in both directions: the mean of the frequencies that coincide."""
    if step == 1:
        return spectrum
    size = spectrum.shape[-1] // step
    blocks: Tensor = spectrum.unflatten(-1, (step, size)).unflatten(-3, (step, size))
    return blocks.mean(dim=(-4, -2))


def _averaged(channels: Tensor, size: int, coarse: int, scales: int) -> Tensor:
    """Average channels under the widest Gaussian, one value for each square of the image."""
    average = _average(size, coarse, scales)
    return average @ channels @ average.T


@cache
def _average(size: int, coarse: int, scales: int) -> Tensor:
    """Return the widest Gaussian in one direction, shape [squares, size / 2^coarse]; two directions are a product."""
    frequencies = _frequencies(size, coarse)
    kernel = torch.fft.ifft(_gaussian(frequencies, FINEST * 2 ** (scales - 1))).real
    squares = range(1, size // 2**scales - 1)  # the first and the last are margin
    return torch.stack([kernel.roll(2 ** (scales - coarse) * square) for square in squares]).float()


@cache
def _wavelets(size: int, coarse: int, scale: int, angles: int) -> Tensor:
    """Compute Fourier transforms of the Morlet wavelets of a scale, shape [angles, size / 2^coarse, size / 2^coarse].

    A Morlet wavelet is a plane wave under a Gaussian envelope, which is L / 4 times as wide along the crests as across
    them. A part of the envelope is subtracted so that no constant remains: a blank image has no stripes.
    """
    width, frequency = FINEST * 2**scale, FREQUENCY / 2**scale
    own = _frequencies(size, coarse)
    aliases = [2.0 * math.pi * turn for turn in (range(-2, 3) if coarse == 0 else (0,))]
    found = []
    for angle in (math.pi * number / angles for number in range(angles)):
        wave, blank = torch.zeros(len(own), len(own)).double(), torch.zeros(len(own), len(own)).double()
        for down, right in product(aliases, repeat=2):  # the pixels cannot tell these frequencies apart
            rows, columns = own[:, None] + down, own + right
            across = rows * math.cos(angle) + columns * math.sin(angle)
            along = columns * math.cos(angle) - rows * math.sin(angle)
            envelope = _gaussian(along, width * angles / 4)
            wave += envelope * _gaussian(across - frequency, width)
            blank += envelope * _gaussian(across, width)
        found.append(wave - wave[0, 0] / blank[0, 0] * blank)
    return torch.stack(found).float()


def _gaussian(frequencies: Tensor, width: float) -> Tensor:
    """Return the Fourier transform of a Gaussian of integral 1 and of this standard deviation."""
    return torch.exp(-0.5 * (width * frequencies) ** 2)


def _frequencies(size: int, coarse: int) -> Tensor:
    """Return the discrete Fourier frequencies of every 2^coarse of `size` pixels, radians per pixel, float64."""
    frequencies: Tensor = torch.fft.fftfreq(size // 2**coarse, d=2.0**coarse, dtype=torch.float64)
    return 2.0 * math.pi * frequencies
