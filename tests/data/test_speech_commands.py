from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sources import speech_commands as made
from sources.reading import read

from fl.base.errors import DataError
from fl.data import sound
from fl.data.datasets.speech_commands import CLASSES, SpeechCommands

SUBSET = SpeechCommands(complete=False)
SAID = {
    who: [w if w in made.TEN else "unknown" for w in sorted(said)]
    for who, said in made.SPEAKERS.items()
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return read(SUBSET, tmp_path_factory.mktemp("speech"), made.write)


def test_the_classes_are_tensorflows():
    told = "silence unknown yes no up down left right on off stop go"
    assert tuple(told.split()) == CLASSES


def test_speakers_their_words_and_a_tenth_of_silence(data):
    # One speaker has a single recording, too few. Ten words, then 1 of silence; 4 round to 0.
    heard = {
        who: [CLASSES[label] for label in data.y[data.client == client]]
        for client, who in enumerate(w for w in SAID if w != "3c257192")
    }
    expected = {who: list(said) for who, said in SAID.items() if who != "3c257192"}
    expected["0a2b400e"].append("silence")
    assert heard == expected
    assert data.classes == CLASSES


def test_lists_are_the_split_and_unseen_are_the_others(data):
    by_client = {int(c): set(data.split[data.client == c].tolist()) for c in range(5)}
    assert by_client == {0: {0}, 1: {0}, 2: {0}, 3: {2}, 4: {1}}
    assert data.domains == ("seen", "unseen")
    assert np.array_equal(data.domain, data.client >= 3)


def test_features_are_those_of_the_recordings(data):
    assert (data.x.dtype, data.x.shape[1:]) == (np.float32, (1, 40, 98))
    assert SUBSET.shape == (1, 40, 98)
    names = sorted(name for name in made.recordings() if "2da58b32" in name)
    for row, name in zip(np.flatnonzero(data.client == 2), names, strict=True):
        signal = made.recordings()[name] / 32_768
        assert np.array_equal(data.x[row, 0], sound.log_mel(signal))


def test_a_short_recording_is_filled_up_with_zeros(tmp_path):
    data = read(replace(SUBSET, min_samples=1), tmp_path, made.write)
    features = data.x[data.client == 3][0, 0]
    assert (features[:, 50:] == np.float32(np.log(1e-6))).all()
    assert (features[:, :49].max(axis=0) > 0).all()


def test_normalisation_is_that_of_the_training_list(data):
    training = data.x[data.split == 0].astype(np.float64)
    assert data.normalisation["mean"] == pytest.approx(training.mean(), abs=1e-9)
    assert data.normalisation["sd"] == pytest.approx(training.std(), abs=1e-9)


def test_silence_is_noise_at_a_random_volume(tmp_path):
    data = read(replace(SUBSET, silence=1.0), tmp_path, made.write)
    quiet = data.x[data.y == 0, 0]
    assert (
        len(quiet) == sum(word in made.TEN for said in made.SPEAKERS.values() for word in said) - 1
    )
    assert len(np.unique(quiet[:, 20, 50])) == len(quiet)
    # White noise of up to 9,000 of 32,768: flat over time, and never louder than at full volume.
    full = sound.log_mel(next(iter(made.noises().values()))[:16_000] / 32_768).mean()
    volumes = np.exp((quiet.mean(axis=(1, 2)) - full) / 2)
    assert volumes.max() < 1.05
    assert np.ptp(volumes) > 0.5


def test_the_seen_have_the_most_data_and_the_unseen_are_drawn(tmp_path):
    data = read(replace(SUBSET, seen=2, unseen=1), tmp_path, made.write)
    sizes = np.bincount(data.client).tolist()
    assert sizes[:2] == [13, 5]
    assert len(sizes) == 3
    assert data.domain[data.client == 2].tolist() == [1] * sizes[2]
    assert replace(SUBSET, seen=2, unseen=1).natural == 3
    assert SpeechCommands().natural == 2_618
    for other in (replace(SUBSET, seen=4), replace(SUBSET, unseen=3)):
        made.write(tmp_path / "raw")
        with pytest.raises(DataError, match=r"(seen is 4, but 3|unseen is 3, but 2) speakers"):
            other.read(tmp_path / "raw", None)


def test_an_archive_of_other_sizes_is_not_complete(tmp_path):
    made.write(tmp_path)
    with pytest.raises(DataError, match=r"has 29 recordings, expected 105,829 \(Warden\)"):
        SpeechCommands().read(tmp_path, None)
