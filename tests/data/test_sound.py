from __future__ import annotations

import io
import math
import wave

import numpy as np
import pytest
import torch

from fl.base.errors import DataError
from fl.data import sound

DRAW = np.random.default_rng(3)
SIGNAL = DRAW.uniform(-1, 1, sound.RATE) * np.hanning(sound.RATE)


def mel(hertz):
    return 2595 * math.log10(1 + hertz / 700)


def hertz(mel):
    return 700 * (10 ** (mel / 2595) - 1)


def test_features_are_those_of_torch_stft():
    # torch puts the window of 400 in the middle of 512, so 56 zeros stand before the signal.
    padded = torch.nn.functional.pad(torch.from_numpy(SIGNAL), (56, 56))
    window = torch.hann_window(400, dtype=torch.float64)
    spectrum = torch.stft(padded, 512, 160, 400, window, center=False, return_complex=True)
    edges = [hertz(mel(8_000) * i / 41) for i in range(42)]
    at = np.arange(257) * 31.25
    bank = np.stack([np.interp(at, edges[m : m + 3], [0, 1, 0]) for m in range(40)])
    expected = np.log(1e-6 + bank @ spectrum.abs().square().numpy())
    np.testing.assert_allclose(sound.log_mel(SIGNAL), expected, rtol=0, atol=2e-6)


def wav(samples=b"\1\0\2\0", rate=16_000, channels=1, width=2):
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setframerate(rate)
        out.setnchannels(channels)
        out.setsampwidth(width)
        out.writeframes(samples)
    return file.getvalue()


def test_wave_files_are_read_to_the_sample():
    samples = np.array([-32_768, 0, 1, 32_767], "<i2")
    found = sound.read_wav(io.BytesIO(wav(samples.tobytes())))
    assert (found.dtype, found.tolist()) == (np.int16, samples.tolist())


def named(content):
    stream = io.BytesIO(content)
    stream.name = "a.wav"
    return stream


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (wav(rate=8_000), "a.wav: is of 8000 Hz, 1 channel(s), 16 bit; allowed: 16000 Hz"),
        (wav(b"\0" * 100)[:-50], "a.wav: is cut off after 25 of 50 samples"),
        (wav()[:16] + b"\0\0\0\x7f" + wav()[20:], "a.wav: is no WAVE file"),
        (b"not sound at all", "a.wav: is no WAVE file"),
    ],
)
def test_what_is_no_such_wave_file_is_named(content, told):
    with pytest.raises(DataError) as error:
        sound.read_wav(named(content))
    assert str(error.value).startswith(told)
