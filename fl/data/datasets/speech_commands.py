"""Google's Speech Commands, version 2, with the speakers as clients: which of twelve is said.

P. Warden. Speech Commands: A Dataset for Limited-Vocabulary Speech Recognition. 2018.
arXiv:1804.03209; with seen and unseen speakers: R. Lee, M. Kim, D. Li, X. Qiu, T. Hospedales, F.
Huszár and N. D. Lane. FedL2P: Federated Learning to Personalize. NeurIPS 2023.

Licence: CC BY 4.0.

Source: ``speech_commands_v0.02.tar.gz``, 105,829 recordings of 35 words by 2,618 speakers, one
second or less each in a WAVE file ``WORD/SPEAKER_nohash_COUNT.wav``; longer recordings of noise in
``_background_noise_``; and two lists of the recordings that are for validation and for testing.

The twelve classes are Warden's: ten words, any other word ("unknown"; all of them are kept, where
TensorFlow's reader draws a tenth as many as of the ten) and silence. As in TensorFlow's reader
silence is noise: cuts of one second from the recordings of it, at a random place and at a random
volume from 0 to 1. Every speaker gets ``silence`` times as many as recordings of the ten words,
rounded. Recordings are filled up with zeros to one second. Features are 40 mel bands at 98 places,
normalised by mean and standard deviation over the training list; no paper prints its own.

A signal x of 16,000 values a second is cut into frames of 400 (25 ms) every 160 (10 ms). Each is
weighted by the periodic Hann window w_n = (1 - cos(2 pi n / 400)) / 2 and filled up with zeros to
512; its power at bin k, of k * 31.25 Hz, is P_k = |sum_n w_n x_n exp(-2 pi i k n / 512)|^2. The
features are log(10^-6 + sum_k F_mk P_k), with 40 triangular filters F_m that rise from 0 at the
frequency f_m to 1 at f_{m+1} and fall to 0 at f_{m+2}. f_0 .. f_41 lie evenly from 0 to 8,000 Hz
on the mel scale, 2595 log10(1 + f / 700) (O'Shaughnessy 1987).

A speaker is the hash in a file's name and a client; the published split (train, val, test) is the
lists', which share no speaker. FedL2P trains with the 250 speakers of the training list that have
the most data, the seen, and holds out 50 of the others, the unseen: ``seen`` and ``unseen`` keep so
many of each kind, the latter drawn at random, and None all. The domain says which kind a speaker
is. Clients are sorted by name, their samples by file name with silence at the end.

``complete`` holds the archive to 105,829 recordings (Warden), and to 2,112 speakers for training,
256 for validation and 250 for testing (FedL2P), before speakers of fewer than ``min_samples`` are
left out.

Beside the arrays that it maps, preparing files of the full size needs some 30 MB at most.
"""

from __future__ import annotations

import io
import re
import wave
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import BinaryIO, ClassVar

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.base.fields import Count, Index, Share
from fl.base.rng import generator
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers.archives import iter_members, stream_name
from fl.data.readers.validation import check_missing, check_sizes, clients_with_min_samples

WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
KEYWORD_CLASSES = ("silence", "unknown", *WORDS)
SPLIT_BY_LIST = {"validation_list.txt": 2, "testing_list.txt": 1}
"""Published split of the recordings of a list; all others are for training, 0."""
NOISE = "_background_noise_/"
RECORDING = re.compile(r"([a-z]+)/([0-9a-f]+)_nohash_\d+\.wav")
"""Name of a recording: its word and its speaker."""
SILENCE = "silence/"
RECORDINGS = 105_829
SPEAKERS = {"training": 2_112, "validation": 256, "testing": 250}
RATE = 16_000
"""Samples a second."""
FRAME, HOP, BINS, MELS = 400, 160, 512, 40
POWER_FLOOR = 1e-6
"""Added to a filter's power, so that its logarithm exists in silence."""
FEATURE_SHAPE = (1, MELS, (RATE - FRAME) // HOP + 1)


@dataclass
class ArchiveContent:
    """Content of the archive.

    Attributes:
        lists: Names of recordings in each list.
        recordings: Names of all recordings.
        noise: Recordings of noise, int16 ``[samples]`` each.
    """

    lists: dict[str, list[str]] = field(default_factory=dict)
    recordings: list[str] = field(default_factory=list)
    noise: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True)
class Speaker:
    """A speaker with the published split and the names of the recordings."""

    name: str
    split: int
    recordings: list[str]


@dataclass(frozen=True)
class SpeechCommands:
    """Log-mel features of one second in twelve classes.

    Attributes:
        silence: Number of samples of silence for each recording of the ten words.
        seen: Number of speakers of the published train split; null: all.
        unseen: Number of speakers of the other splits; null: all; 0: none.
        min_samples: Least number of samples of a speaker; others are left out.
        complete: Check the data against the published sizes; false reads a subset.
    """

    silence: Share = 0.1
    seen: Count | None = None
    unseen: Index | None = None
    min_samples: Count = 3
    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (
        Source(
            "speech_commands_v0.02.tar.gz",
            "https://storage.googleapis.com/download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
            "af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
        ),
    )
    domains: ClassVar[tuple[str, ...]] = ("seen", "unseen")
    shape: ClassVar[tuple[int, ...]] = FEATURE_SHAPE
    classes: ClassVar[int] = len(KEYWORD_CLASSES)
    published_splits: ClassVar[tuple[str, ...]] = ("train", "val", "test")

    @property
    def size(self) -> int | None:
        """Number of recordings, without samples of silence."""
        return RECORDINGS if self.complete else None

    @property
    def natural_clients(self) -> int:
        """Number of speakers before those with few recordings are left out."""
        unseen = 256 + 250 if self.unseen is None else self.unseen
        return (self.seen or 2_112) + unseen

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x float32 ``[samples, 1, 40, 98]``; y, client, domain and split ``[samples]``."""
        path = raw / self.sources[0].name
        content = read_content(path)
        speakers = by_speaker(path, content)
        if self.complete:
            _check_published_sizes(path, speakers)
        chosen = self._choose_speakers(path, speakers)
        names = [name for speaker in chosen for name in self._samples(speaker)]
        sizes = [len(self._samples(speaker)) for speaker in chosen]
        split = np.repeat(np.array([speaker.split for speaker in chosen], np.int8), sizes)
        x = writer.create("x", (len(names), *FEATURE_SHAPE), np.float32)
        _fill(x, path, content.noise, names)
        writer.save("y", np.array([_label(name) for name in names], np.int64))
        writer.save("client", np.repeat(np.arange(len(chosen), dtype=np.int32), sizes))
        writer.save("domain", (split > 0).astype(np.int32))
        writer.save("split", split)
        normalisation = _measure_normalisation(x, np.flatnonzero(split == 0))
        writer.describe(KEYWORD_CLASSES, normalisation=normalisation, domains=self.domains)

    def _samples(self, speaker: Speaker) -> list[str]:
        """Return the names of a speaker's samples, with invented names for silence."""
        words = sum(_label(name) > 1 for name in speaker.recordings)
        silences = int(self.silence * words + 0.5)
        return [*speaker.recordings, *(f"{SILENCE}{speaker.name}/{i}" for i in range(silences))]

    def _choose_speakers(self, path: Path, speakers: list[Speaker]) -> list[Speaker]:
        sizes = {speaker.name: len(self._samples(speaker)) for speaker in speakers}
        names = set(clients_with_min_samples(sizes, self.min_samples, str(path)))
        seen_speakers = [
            speaker for speaker in speakers if speaker.name in names and speaker.split == 0
        ]
        unseen_speakers = [
            speaker for speaker in speakers if speaker.name in names and speaker.split > 0
        ]
        seen_speakers.sort(key=lambda speaker: -sizes[speaker.name])
        order = generator(0, "speech-commands unseen").permutation(len(unseen_speakers))
        unseen_speakers = [unseen_speakers[i] for i in order]
        for key, number, available in (
            ("seen", self.seen, seen_speakers),
            ("unseen", self.unseen, unseen_speakers),
        ):
            if number and number > len(available):
                problem = f"{key} is {number}, but {len(available)} speakers have enough samples"
                raise DataError(
                    f"{path}: {problem}. Allowed: 1 to {len(available)}, or nothing for all"
                )
        return sorted(
            [*seen_speakers[: self.seen], *unseen_speakers[: self.unseen]],
            key=lambda speaker: speaker.name,
        )


def read_content(path: Path) -> ArchiveContent:
    """Read the lists, the names of recordings and the noise."""
    content = ArchiveContent()
    for name, stream in iter_members(path):
        if name in SPLIT_BY_LIST:
            content.lists[name] = stream.read().decode("utf-8", "replace").split()
        elif name.startswith(NOISE) and name.endswith(".wav"):
            content.noise.append(read_wav(stream))
        elif RECORDING.fullmatch(name):
            content.recordings.append(name)
    words = {name.partition("/")[0] for name in content.recordings}
    missing = [f"recordings in {word}/" for word in WORDS if word not in words]
    missing += [name for name in SPLIT_BY_LIST if name not in content.lists]
    if not any(len(noise) >= RATE for noise in content.noise):
        missing.append(f"noise of a second in {NOISE}")
    check_missing(path, missing)
    return content


def by_speaker(path: Path, content: ArchiveContent) -> list[Speaker]:
    """Return the speakers with their recordings, both sorted by name."""
    recordings = set(content.recordings)
    listed: dict[str, int] = {}
    for text, split in SPLIT_BY_LIST.items():
        check_missing(path, (f"{n} of {text}" for n in content.lists[text] if n not in recordings))
        listed |= dict.fromkeys(content.lists[text], split)
    names_by_speaker: dict[str, list[str]] = {}
    for name in sorted(recordings):
        names_by_speaker.setdefault(_speaker(name), []).append(name)
    speakers = []
    for speaker, names in sorted(names_by_speaker.items()):
        splits = {listed.get(name, 0) for name in names}
        if len(splits) > 1:
            raise DataError(
                f"{path}: speaker {speaker} is in more than one list", advice="fetch it again"
            )
        speakers.append(Speaker(speaker, splits.pop(), names))
    return speakers


def _speaker(name: str) -> str:
    match = RECORDING.fullmatch(name)
    return match[2] if match else ""


def _label(name: str) -> int:
    word = name.partition("/")[0]
    return 0 if name.startswith(SILENCE) else KEYWORD_CLASSES.index(word) if word in WORDS else 1


def _check_published_sizes(path: Path, speakers: list[Speaker]) -> None:
    recordings = {"the archive": sum(len(speaker.recordings) for speaker in speakers)}
    check_sizes(recordings, {"the archive": RECORDINGS}, str(path), "Warden", "recordings")
    counts = Counter(speaker.split for speaker in speakers)
    sizes = dict(zip(SPEAKERS, (counts[split] for split in (0, 2, 1)), strict=True))
    check_sizes(sizes, SPEAKERS, str(path), "FedL2P", "speakers")


def _fill(x: np.ndarray, path: Path, noise: list[np.ndarray], names: list[str]) -> None:
    """Write features to ``x``, a row for each name: recordings in order, then silence."""
    row = {name: i for i, name in enumerate(names)}
    for name, stream in iter_members(path, row.__contains__):
        x[row[name], 0] = log_mel(_second(read_wav(stream)))
    for name, i in row.items():
        if name.startswith(SILENCE):
            x[i, 0] = log_mel(silence(noise, name))


def _second(samples: np.ndarray) -> np.ndarray:
    """Return a second of 16-bit samples as a signal from -1 to 1, padded by zeros."""
    signal = np.zeros(RATE)
    signal[: len(samples)] = samples[:RATE] / 2**15
    return signal


def silence(noise: list[np.ndarray], name: str) -> np.ndarray:
    """Return a second of noise at a random position and volume for that name."""
    draw = generator(0, "speech-commands silence", name)
    long = [samples for samples in noise if len(samples) >= RATE]
    samples = long[draw.integers(len(long))]
    first = int(draw.integers(len(samples) - RATE + 1))
    return _second(samples[first : first + RATE]) * draw.random()


def _measure_normalisation(x: np.ndarray, rows: np.ndarray) -> dict[str, float]:
    """Mean and standard deviation of some rows, in one pass over them."""
    total = square = 0.0
    for i in rows:
        features = x[i].astype(np.float64)
        total += float(features.sum())
        square += float(np.square(features).sum())
    values = len(rows) * x[0].size
    mean = total / values
    return {"scale": 1.0, "mean": mean, "sd": float(np.sqrt(square / values - mean**2))}


def read_wav(stream: BinaryIO) -> np.ndarray:
    """Read a WAVE file of 16 kHz, mono, 16 bit as int16 ``[samples]``.

    No library: torchaudio's latest (2.11) does not load beside torch 2.13, and soundfile takes a
    file that is cut off for a shorter one.
    """
    name = stream_name(stream)
    with wrap_read_errors(name, "is no WAVE file"), wave.open(io.BytesIO(stream.read())) as file:
        rate, channels, bits = file.getframerate(), file.getnchannels(), 8 * file.getsampwidth()
        stated, samples = file.getnframes(), file.readframes(file.getnframes())
    if (rate, channels, bits) != (RATE, 1, 16):
        problem = f"is of {rate} Hz, {channels} channel(s), {bits} bit"
        raise DataError(f"{name}: {problem}. Allowed: {RATE} Hz, 1 channel, 16 bit")
    if len(samples) != 2 * stated:
        raise DataError(f"{name}: is cut off after {len(samples) // 2} of {stated} samples")
    return np.frombuffer(samples, "<i2")


def log_mel(signal: np.ndarray) -> np.ndarray:
    """Return features, float32 [40, frames], of a signal [samples] on the scale from -1 to 1."""
    frames = np.lib.stride_tricks.sliding_window_view(signal, FRAME)[::HOP]
    window = (1 - np.cos(2 * np.pi * np.arange(FRAME) / FRAME)) / 2
    power = np.abs(np.fft.rfft(frames * window, BINS)) ** 2
    return np.log(POWER_FLOOR + filters() @ power.T).astype(np.float32)


@cache
def filters() -> np.ndarray:
    """Return the mel filters F, [40, 257]."""
    mel = np.linspace(0, 2595 * np.log10(1 + RATE / 2 / 700), MELS + 2)
    edges = 700 * (10 ** (mel / 2595) - 1)
    low, middle, high = (edges[i : i + MELS, None] for i in range(3))
    frequencies = np.arange(BINS // 2 + 1) * RATE / BINS
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    return np.maximum(0, np.minimum(rising, falling))
