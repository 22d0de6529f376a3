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


def by_definition(signal, band, frame):
    """The formula in the module, term by term."""
    powers = []
    for k in range(257):
        total = 0j
        for n in range(400):
            weight = (1 - math.cos(2 * math.pi * n / 400)) / 2
            turn = complex(
                math.cos(2 * math.pi * k * n / 512), -math.sin(2 * math.pi * k * n / 512)
            )
            total += weight * signal[160 * frame + n] * turn
        powers.append(abs(total) ** 2)
    low, middle, high = (hertz(mel(8_000) * (band + i) / 41) for i in range(3))
    filtered = sum(
        power
        * max(0, min((k * 31.25 - low) / (middle - low), (high - k * 31.25) / (high - middle)))
        for k, power in enumerate(powers)
    )
    return math.log(1e-6 + filtered)


def test_features_are_those_of_the_formula():
    found = sound.log_mel(SIGNAL)
    assert (found.dtype, found.shape) == (np.float32, (40, 98))
    for band, frame in ((0, 0), (7, 50), (39, 97)):
        assert found[band, frame] == pytest.approx(by_definition(SIGNAL, band, frame), abs=2e-6)


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


def test_a_tone_is_heard_in_its_band_and_silence_is_the_floor():
    time = np.arange(sound.RATE) / sound.RATE
    centres = np.array([hertz(mel(8_000) * (i + 1) / 41) for i in range(40)])
    for pitch in (500, 1_000, 4_000):
        heard = sound.log_mel(np.sin(2 * np.pi * pitch * time))
        assert (heard.argmax(axis=0) == np.abs(centres - pitch).argmin()).all()
    assert (sound.log_mel(np.zeros(sound.RATE)) == np.float32(math.log(1e-6))).all()


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
        (wav(channels=2), "a.wav: is of 16000 Hz, 2 channel(s), 16 bit"),
        (wav(width=1), "a.wav: is of 16000 Hz, 1 channel(s), 8 bit"),
        (wav(b"\0" * 100)[:-50], "a.wav: is cut off after 25 of 50 samples"),
        (wav()[:16] + b"\0\0\0\x7f" + wav()[20:], "a.wav: is no WAVE file"),
        (b"RIFF", "a.wav: is no WAVE file"),
        (b"", "a.wav: is no WAVE file"),
        (b"not sound at all", "a.wav: is no WAVE file"),
    ],
)
def test_what_is_no_such_wave_file_is_named(content, told):
    with pytest.raises(DataError) as error:
        sound.read_wav(named(content))
    assert str(error.value).startswith(told)
