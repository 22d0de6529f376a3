"""Sound: WAVE files as signals, and their log-mel features.

A signal x of 16,000 values a second is cut into frames of 400 (25 ms) every 160 (10 ms). Each is
weighted by the periodic Hann window w_n = (1 - cos(2 pi n / 400)) / 2 and filled up with zeros to
512; its power at bin k, of k * 31.25 Hz, is P_k = |sum_n w_n x_n exp(-2 pi i k n / 512)|^2. The
features are log(10^-6 + sum_k F_mk P_k), with 40 triangular filters F_m that rise from 0 at the
frequency f_m to 1 at f_{m+1} and fall to 0 at f_{m+2}. f_0 .. f_41 lie evenly from 0 to 8,000 Hz
on the mel scale, 2595 log10(1 + f / 700) (O'Shaughnessy 1987).

No library: torchaudio's latest (2.11) does not load beside torch 2.13, and soundfile takes a file
that is cut off for a shorter one.
"""

from __future__ import annotations

import io
import wave
from functools import cache
from typing import BinaryIO

import numpy as np

from fl.base.errors import DataError, reading
from fl.data.archives import name_of

RATE = 16_000
"""Samples a second."""
FRAME, HOP, BINS, MELS = 400, 160, 512, 40
FLOOR = 1e-6
"""Added to a filter's power, so that its logarithm exists in silence."""


def read_wav(stream: BinaryIO) -> np.ndarray:
    """A signal, int16 ``[samples]``; `DataError` that names it unless 16 kHz, mono, 16 bit."""
    name = name_of(stream)
    with reading(name, "is no WAVE file"), wave.open(io.BytesIO(stream.read())) as file:
        rate, channels, bits = file.getframerate(), file.getnchannels(), 8 * file.getsampwidth()
        stated, samples = file.getnframes(), file.readframes(file.getnframes())
    if (rate, channels, bits) != (RATE, 1, 16):
        problem = f"is of {rate} Hz, {channels} channel(s), {bits} bit"
        raise DataError(f"{name}: {problem}; allowed: {RATE} Hz, 1 channel, 16 bit")
    if len(samples) != 2 * stated:
        raise DataError(f"{name}: is cut off after {len(samples) // 2} of {stated} samples")
    return np.frombuffer(samples, "<i2")


def frames(samples: int) -> int:
    """How many frames a signal of so many samples has."""
    return (samples - FRAME) // HOP + 1


def log_mel(signal: np.ndarray) -> np.ndarray:
    """Features, float32 ``[40, frames]``, of a signal ``[samples]`` on the scale from -1 to 1."""
    cut = np.lib.stride_tricks.sliding_window_view(signal, FRAME)[::HOP]
    window = (1 - np.cos(2 * np.pi * np.arange(FRAME) / FRAME)) / 2
    power = np.abs(np.fft.rfft(cut * window, BINS)) ** 2
    return np.log(FLOOR + filters() @ power.T).astype(np.float32)


@cache
def filters() -> np.ndarray:
    """The mel filters F, ``[40, 257]``."""
    mel = np.linspace(0, 2595 * np.log10(1 + RATE / 2 / 700), MELS + 2)
    edges = 700 * (10 ** (mel / 2595) - 1)
    low, middle, high = (edges[i : i + MELS, None] for i in range(3))
    at = np.arange(BINS // 2 + 1) * RATE / BINS
    rising, falling = (at - low) / (middle - low), (high - at) / (high - middle)
    return np.maximum(0, np.minimum(rising, falling))
