from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sources import speech_commands as made
from sources.reading import read

from fl.base.errors import DataError
from fl.data import sound
from fl.data.datasets.speech_commands import SpeechCommands

SUBSET = SpeechCommands(complete=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return read(SUBSET, tmp_path_factory.mktemp("speech"), made.write)


def test_a_short_recording_is_filled_up_with_zeros(tmp_path):
    data = read(replace(SUBSET, min_samples=1), tmp_path, made.write)
    features = data.x[data.client == 3][0, 0]
    assert (features[:, 50:] == np.float32(np.log(1e-6))).all()
    assert (features[:, :49].max(axis=0) > 0).all()


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
