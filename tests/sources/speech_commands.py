"""Recordings in the archive of Speech Commands 0.02, as torchaudio and TensorFlow read it.

A gzipped tar whose members begin with ``./``: WORD/SPEAKER_nohash_COUNT.wav of one second or less,
longer recordings in _background_noise_, the two lists, LICENSE and README.md.
"""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np

from fl.data.datasets.speech_commands import log_mel
from sources import Made
from sources.packing import pack

RATE = 16_000
NAME = "speech_commands_v0.02.tar.gz"
TEN = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
SPEAKERS = {
    "0a2b400e": [*TEN, "backward", "tree"],
    "1b4c9b89": ["yes", "no", "up", "yes", "bed"],
    "2da58b32": ["go", "go", "stop", "zero"],
    "3c257192": ["yes"],
    "4d1dcca6": ["left", "right", "marvin"],
    "5e3dde6b": ["off", "on", "on", "off"],
}
"""The words of each speaker; a repeated word has a higher count."""
VALIDATION, TESTING = ("4d1dcca6",), ("5e3dde6b",)
CLASSES = ("silence", "unknown", *TEN)
PARAMS = {"complete": False}
BROKEN = {
    "no list": ({"without": "testing_list.txt"}, rf"{NAME}: lacks testing_list.txt"),
    "a speaker in two lists": (
        {"spoil": "testing_list.txt", "strange": "yes/1b4c9b89_nohash_0.wav\n"},
        rf"{NAME}: speaker 1b4c9b89 is in more than one list",
    ),
}
STUDY = {"partitions": ["natural"], "models": ["cnn"]}
SHORT = "yes/3c257192_nohash_0.wav"
"""A recording of half a second."""


def recordings() -> dict[str, np.ndarray]:
    """The signals, int16, by name: a tone each, whose pitch tells the word."""
    made = {}
    words = sorted({word for said in SPEAKERS.values() for word in said})
    for number, (speaker, said) in enumerate(SPEAKERS.items()):
        for place, word in enumerate(said):
            name = f"{word}/{speaker}_nohash_{said[:place].count(word)}.wav"
            time = np.arange(RATE // 2 if name == SHORT else RATE) / RATE
            tone = np.sin(2 * np.pi * (200 + 100 * words.index(word)) * time)
            made[name] = (tone * (4_000 + 2_000 * number)).astype("<i2")
    return made


def noises() -> dict[str, np.ndarray]:
    """Two seconds and a bit of two noises."""
    draw = np.random.default_rng(0)
    names = ("_background_noise_/pink_noise.wav", "_background_noise_/running_tap.wav")
    return {name: draw.integers(-9_000, 9_000, 2 * RATE + 500).astype("<i2") for name in names}


def wav(samples: np.ndarray, rate: int = RATE) -> bytes:
    """A WAVE file of 16 bits and one channel."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(samples.tobytes())
    return file.getvalue()


def files() -> dict[str, bytes]:
    """Every member of the archive."""
    signals = recordings()

    def listed(speakers: tuple[str, ...]) -> bytes:
        names = sorted(name for name in signals if name.split("/")[1].startswith(speakers))
        return "".join(f"{name}\n" for name in names).encode()

    made = {name: wav(samples) for name, samples in (signals | noises()).items()}
    made["_background_noise_/README.md"] = b"Noises.\n"
    made["validation_list.txt"], made["testing_list.txt"] = listed(VALIDATION), listed(TESTING)
    return {"LICENSE": b"CC BY 4.0\n", "README.md": b"Words.\n", **dict(sorted(made.items()))}


def write(folder: Path, **broken: object) -> Made:
    """Write the archive into ``folder``."""
    pack(folder / NAME, {f"./{name}": content for name, content in files().items()}, **broken)
    return made()


def made() -> Made:
    """A row for each recording, by speaker and name; the first speaker's one of silence is last."""
    kept = [speaker for speaker, said in SPEAKERS.items() if len(said) > 1]
    signals = recordings()
    rows = [name for who in kept for name in sorted(n for n in signals if f"/{who}_" in n)]
    rows.insert(12, f"silence/{kept[0]}")
    words = [name.split("/")[0] for name in rows]
    client = [kept.index(name.split("/")[1].split("_")[0]) for name in rows]
    split = [{VALIDATION[0]: 2, TESTING[0]: 1}.get(kept[c], 0) for c in client]
    x = {row: log_mel(signals[name] / 2**15)[None] for row, name in enumerate(rows) if row != 12}
    return Made(
        samples=len(rows),
        shape=(1, 40, 98),
        classes=CLASSES,
        y=np.array([CLASSES.index(word) if word in CLASSES else 1 for word in words]),
        x=x,
        domains=("seen", "unseen"),
        domain=np.array([int(s > 0) for s in split]),
        client=np.array(client),
        split=np.array(split),
    )
