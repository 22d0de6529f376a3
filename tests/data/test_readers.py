"""What single readers of published files do, beyond the contract of `test_real_datasets`."""

from __future__ import annotations

import numpy as np
import pytest
import sources
from generated import make, prepared, written
from sources import chem97 as chem97_made
from sources import shakespeare as plays_made
from sources import speech_commands as speech_made
from sources.prostate_mri import SITES

from fl.base.errors import DataError
from fl.data.datasets import abide, prostate_mri, shakespeare, speech_commands
from fl.data.datasets.cifar10_c import CORRUPTIONS
from fl.data.datasets.prostate_mri import ProstateMri
from fl.data.preparation import prepare_folder
from fl.data.readers.texts import WORD_PATTERN


def read(name, folder, **params):
    """A data set with these keys, from generated files."""
    written(name, folder / "files")
    return prepared(name, folder / "files", folder / "root", **params)


@pytest.mark.parametrize(
    ("name", "params", "size"),
    [
        ("digits-five", {}, 5 * 7438 + 147_509),
        ("digits-five", {"parts": 1}, 5 * 743 + 147_509),
        ("retina", {}, 101 + 705 + 485 + 400),
        ("fed-isic2019", {}, 23_247),
        ("prostate-mri", {}, 1_111 + 369 + 369),
        ("abide", {}, 175 + 71 + 140 + 98),
        ("abide", {"sites": list(abide.SUBJECTS_BY_SITE)}, 1_035),
        ("rxrx1", {"top": 10}, 2 * 204 * 10),
        ("cifar10-c", {}, 19 * 5 * 10_000),
        ("cifar10-c", {"corruptions": list(CORRUPTIONS[:10]), "severities": [3]}, 100_000),
    ],
)
def test_sizes_are_the_published_ones(name, params, size):
    whole = {"complete": True} if "complete" in sources.generator(name).PARAMS else {}
    assert make(name, **whole, **params).size == size


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("digits-five", r"digit_dataset\.zip: is missing.* Google Drive.*FedBN"),
        ("retina", r"Drishti-GS1_files\.zip: is missing.* register at https"),
    ],
)
def test_what_needs_a_person_says_where_the_file_is_had(name, said, tmp_path):
    with pytest.raises(DataError, match=said):
        prepare_folder(make(name), name, tmp_path / "raw", tmp_path / "out")


@pytest.mark.parametrize(
    ("slices", "site"),
    [(261, "BIDMC"), (158, "HK"), (468, "I2CVB"), (384, "BMC"), (411, "RUNMC"), (175, "UCL")],
)
def test_printed_sizes_of_prostate_come_of_sites_as_large_as_they_are(slices, site, tmp_path):
    cases = {(name, "Case00"): [1] * 10 for name in SITES}
    cases[site, "Case00"] = list(range(slices))
    order, split = ProstateMri()._divide(tmp_path, cases)
    mine = split[[at[0] == site for at in order]]
    assert [int(np.sum(mine == code)) for code in (0, 2, 1)] == list(
        prostate_mri.SLICES_BY_SITE[site]
    )
    assert len({at for at in order if at[0] == site}) == len(mine)


def test_sites_are_those_that_are_asked_for(tmp_path):
    data = read("abide", tmp_path, sites=["CALTECH", "UCLA", "CALTECH"])
    assert data.domains == ("CALTECH", "UCLA")
    assert np.bincount(data.domain).tolist() == [37, 98]


# Words


def test_words_are_leafs():
    assert WORD_PATTERN.findall("@you it's 5 o'clock... SO WHAT?! é_1 (fine)") == [
        *("you", "it's", "5", "o'clock", ".", ".", ".", "SO", "WHAT", "?", "!", "é_1", "fine")
    ]


def test_words_of_test_captions_have_no_tokens(tmp_path):
    data = read("cub200", tmp_path, vocabulary=1_000)
    training, test = data.text[3, 9], data.text[4, 9]
    assert training[0] < 1_000
    assert test[:2].tolist() == [1_000, training[1]]


@pytest.mark.parametrize("name", ["sent140", "shakespeare"])
def test_more_samples_than_any_client_has_are_too_many(name, tmp_path):
    with pytest.raises(DataError, match=r"min_samples is 1000. Allowed: at most \d+"):
        read(name, tmp_path, min_samples=1000)


def test_roles_of_few_samples_are_left_out(tmp_path):
    sizes = [len(said) - 80 for said in plays_made.ROLES.values()]
    few = read("shakespeare", tmp_path, min_samples=min(sizes) + 1)
    assert np.bincount(few.client).tolist() == [size for size in sizes if size > min(sizes)]


def test_lines_after_the_plays_are_not_read(tmp_path):
    lines = plays_made.text().splitlines()
    last = next(i for i, line in enumerate(lines) if "children read it" in line)
    plays = dict(shakespeare.read_plays(plays_made.text(), tmp_path, last=last - 1))
    assert list(plays) == ["ALL'S WELL THAT ENDS WELL"]
    assert plays["ALL'S WELL THAT ENDS WELL"]["HELENA"] == [
        "The sand remembers what the water wrote upon it,",
        "and children read it in the morning with their feet, my lord:",
    ]


def test_a_title_may_stand_up_to_seven_lines_above(tmp_path):
    def title(blanks):
        head = f"x\nby William Shakespeare\n{'x' * 9}\nOLD\nNAME{chr(10) * (blanks + 1)}next\n"
        text = head.replace("next", "by William Shakespeare")
        return shakespeare.read_plays(text, tmp_path)[0][0]

    assert title(0) == "OLD"  # The line right above does not count.
    assert [title(blanks) for blanks in (1, 3, 6, 7)] == ["NAME"] * 3 + [""]


# Recordings


def test_a_short_recording_is_filled_up_with_zeros(tmp_path):
    data = read("speech-commands", tmp_path, min_samples=1)
    features = data.x[data.client == 3][0, 0]
    assert (features[:, 50:] == np.float32(np.log(1e-6))).all()
    assert (features[:, :49].max(axis=0) > 0).all()


def test_silence_is_noise_at_a_random_volume(tmp_path):
    quiet = (data := read("speech-commands", tmp_path, silence=1.0)).x[data.y == 0, 0]
    assert len(np.unique(quiet[:, 20, 50])) == len(quiet) > 10
    # White noise of up to 9,000 of 32,768: flat over time, and never louder than at full volume.
    full = speech_commands.log_mel(
        next(iter(speech_made.noises().values()))[:16_000] / 32_768
    ).mean()
    volumes = np.exp((quiet.mean(axis=(1, 2)) - full) / 2)
    assert volumes.max() < 1.05
    assert np.ptp(volumes) > 0.5


def test_the_seen_have_the_most_data_and_the_unseen_are_drawn(tmp_path):
    data = read("speech-commands", tmp_path, seen=2, unseen=1)
    sizes = np.bincount(data.client).tolist()
    assert sizes[:2] == [13, 5]
    assert len(sizes) == 3
    assert data.domain[data.client == 2].tolist() == [1] * sizes[2]
    keys = {"seen": 2, "unseen": 0}
    alone = prepared("speech-commands", tmp_path / "files", tmp_path / "alone", **keys)
    assert np.bincount(alone.client).tolist() == sizes[:2]
    assert make("speech-commands", complete=True).natural_clients == 2_618
    assert make("speech-commands", seen=250, unseen=0).natural_clients == 250
    for keys in ({"seen": 4}, {"unseen": 3}):
        with pytest.raises(DataError, match=r"(seen is 4, but 3|unseen is 3, but 2) speakers"):
            make("speech-commands", **keys).read(tmp_path / "files", None)


def test_photographs_of_cifar10_c_stand_once_in_a_domain_and_in_one_split(tmp_path):
    """Eight of ten, at severities 2 and 4 in turn; the last one drawn is the test split's."""
    written("cifar10-c", tmp_path / "files")
    whole = prepared("cifar10-c", tmp_path / "files", tmp_path / "whole").x.reshape(19, 5, 10, -1)
    keys = {"photographs": 8, "severities": [2, 4]}
    data = prepared("cifar10-c", tmp_path / "files", tmp_path / "drawn", **keys)
    assert data.x.shape == (19 * 8, 3, 32, 32)
    photographs = []
    for domain in range(19):
        rows = data.x[data.domain == domain].reshape(8, -1)
        at = [np.argwhere((whole[domain] == row).all(axis=-1)).tolist() for row in rows]
        assert [place[0][0] + 1 for place in at] == [2, 4] * 4
        photographs.append([place[0][1] for place in at])
        assert data.split[data.domain == domain].tolist() == [0] * 7 + [1]
        assert data.y[data.domain == domain].tolist() == photographs[-1]
    assert len(set(photographs[0])) == 8
    assert all(drawn == photographs[0] for drawn in photographs)
    small = prepared("cifar10-c", tmp_path / "files", tmp_path / "small", pixels=28, **keys)
    assert small.x.shape == (19 * 8, 3, 28, 28)
    with pytest.raises(DataError, match="has 10 photographs, but the config asks for 11"):
        prepared("cifar10-c", tmp_path / "files", tmp_path / "more", photographs=11)


# Clients and their blocks


def test_clients_of_chem97_are_authorities_or_schools_with_enough_pupils(tmp_path):
    whole = read("chem97", tmp_path)
    schools = chem97_made.SCHOOLS

    def again(folder, **params):
        return prepared("chem97", tmp_path / "files", tmp_path / folder, **params)

    few = again("few", clients="school", min_samples=4)
    large = [size for size in schools.values() if size >= 4]
    assert np.bincount(few.client).tolist() == large == [10, 20, 28, 27]
    rows = np.isin(np.repeat(range(len(schools)), [*schools.values()]), [0, 1, 3, 4])
    assert np.array_equal(few.x, whole.x[rows])
    assert np.array_equal(few.y, whole.y[rows])
    # The authority of each school; the first one has two.
    assert np.array_equal(few.block, np.repeat([0, 0, 1, 2], large))
    assert np.bincount(again("all", clients="school").client).tolist() == [*schools.values()]
    assert whole.block is None
    assert make("chem97", complete=True).size == 31_022
    assert make("chem97", complete=True, min_samples=2).size is None
    assert make("chem97").natural_clients == 131
    assert make("chem97", clients="school").natural_clients == 2_410


def test_points_of_chem97_are_a_number_to_predict(tmp_path):
    points, grades = (
        read("chem97", tmp_path, target="points"),
        prepared("chem97", tmp_path / "files", tmp_path / "grades"),
    )
    assert np.array_equal(points.target, 2.0 * grades.y)
    assert not points.y.any()
    assert (points.classes, points.normalisations["target"]["mean"]) == (("points",), None)
    dataset = make("chem97", target="points")
    assert (dataset.task, dataset.classes) == ("regression", 1)
    assert (make("chem97").task, make("chem97").classes) == ("classification", 6)


def test_users_of_few_ratings_are_left_out_and_films_keep_their_numbers(tmp_path):
    made = written("movielens", tmp_path / "files", sizes=(20, 40, 30))
    whole, few = (
        prepared("movielens", tmp_path / "files", tmp_path / str(n), features="film", min_samples=n)
        for n in (1, 30)
    )
    assert np.array_equal(few.client, np.repeat([0, 1], [40, 30]))
    assert np.array_equal(few.x, whole.x[20:])
    assert np.array_equal(few.y, made.y[20:])
    assert make("movielens", complete=True, min_samples=30).size is None


def test_the_block_of_a_role_is_its_play(tmp_path):
    """Of three roles, the second and the third are of one play."""
    data = read("roles", tmp_path, blocks=True)
    assert np.array_equal(data.block, data.client > 0)
    assert prepared("roles", tmp_path / "files", tmp_path / "without").block is None


@pytest.mark.parametrize("name", ["chem97", "movielens"])
def test_more_rows_than_any_client_has_are_too_many(name, tmp_path):
    with pytest.raises(DataError, match=r"min_samples is 31. Allowed: at most 30"):
        read(name, tmp_path, min_samples=31)
