"""Amplitudes of images in frequency space, which carry style, apart from phases, which carry form.

Jiang, Wang, Dou. HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on
Heterogeneous Medical Images. AAAI 2022. arXiv:2112.10775 (section 3.2).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Spectrum = Literal["whole", "mean"]
"""Which amplitudes are replaced: all, or only that of frequency 0, an image's mean."""


def amplitude(images: Tensor) -> Tensor:
    """|F(x)| of each channel, [b, c, h, w], for images [b, c, h, w]."""
    return torch.fft.fft2(images).abs()


def with_amplitude(images: Tensor, given: Tensor, spectrum: Spectrum = "whole") -> Tensor:
    """Images [b, c, h, w] that keep their phases and get the amplitudes ``given``, [c, h, w]."""
    found = torch.fft.fft2(images)
    there = given.expand(images.shape)
    if spectrum == "mean":
        at_zero = torch.zeros_like(given)
        at_zero[..., 0, 0] = 1
        there = torch.where(at_zero.bool(), there, found.abs())
    return torch.fft.ifft2(torch.polar(there, found.angle())).real
