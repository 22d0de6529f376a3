"""What the readers of clinical sets compute, beyond the contract of all readers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import sources
from sources.prostate_mri import SITES

from fl.base.errors import ConfigError, DataError, Where
from fl.base.fields import parse
from fl.data import prepare
from fl.data.datasets import abide, fed_isic2019, prostate_mri, rxrx1
from fl.data.datasets.abide import Abide
from fl.data.datasets.digits_five import DigitsFive
from fl.data.datasets.fed_isic2019 import FedIsic2019
from fl.data.datasets.prostate_mri import ProstateMri
from fl.data.datasets.retina import Retina
from fl.data.datasets.rxrx1 import RxRx1
from fl.data.prepared import Prepared


def read(dataset, name, folder, **broken):
    """The set, from generated files where its raw ones belong."""
    (folder / "raw").mkdir(parents=True)
    sources.generator(name).write(folder / "raw", **broken)
    prepare(dataset, name, folder / "raw", folder / "out")
    return Prepared.open(folder / "out")


def test_sizes_are_the_published_ones():
    assert DigitsFive().size == 5 * 7438 + 147_509
    assert DigitsFive(parts=1).size == 5 * 743 + 147_509
    assert Retina().size == 101 + 705 + 485 + 400
    assert FedIsic2019().size == 23_247
    assert ProstateMri().size == 1_111 + 369 + 369
    assert Abide().size == 175 + 71 + 140 + 98
    assert Abide(sites=tuple(abide.PUBLISHED)).size == 1_035
    assert RxRx1().size == 2 * (204 * 31 + 51 * 19)
    assert RxRx1(top=10).size == 2 * 204 * 10


def test_what_needs_a_person_says_where_the_file_is_had(tmp_path):
    with pytest.raises(DataError, match=r"digit_dataset\.zip: is missing.* Google Drive.*FedBN"):
        prepare(DigitsFive(), "digits-five", tmp_path / "raw", tmp_path / "out")
    with pytest.raises(DataError, match=r"Drishti-GS1_files\.zip: is missing.* register at https"):
        prepare(Retina(), "retina", tmp_path / "raw", tmp_path / "out")


# Fed-ISIC2019


def test_grey_pictures_keep_their_colour():
    grey = np.random.default_rng(0).integers(0, 256, (1, 5, 6), dtype=np.uint8).repeat(3, axis=0)
    assert np.abs(fed_isic2019.constant_colour(grey).astype(int) - grey).max() <= 1


def test_tinted_light_becomes_white():
    grey = np.random.default_rng(0).integers(0, 128, (1, 50, 60)).repeat(3, axis=0)
    tinted = (grey * np.array([1.0, 0.5, 0.25])[:, None, None]).astype(np.uint8)
    found = fed_isic2019.constant_colour(tinted).astype(float)
    norms = np.mean(found**6, axis=(1, 2)) ** (1 / 6)
    assert norms == pytest.approx(norms.mean(), rel=0.03)


def test_a_colour_that_is_absent_stays_absent():
    red = np.zeros((3, 4, 4), np.uint8)
    red[0] = 100
    # The light is all red, and so divided by sqrt(3).
    assert fed_isic2019.constant_colour(red)[0].max() == int(100 / np.sqrt(3))
    assert not fed_isic2019.constant_colour(red)[1:].any()
    assert not fed_isic2019.constant_colour(np.zeros((3, 4, 4), np.uint8)).any()


# RxRx1


def test_commonest_treatments_and_among_equals_the_smaller(tmp_path):
    sirna = np.repeat([9, 3, 7, 5, 1], [4, 2, 2, 2, 1])
    assert rxrx1.commonest(sirna, 3, tmp_path).tolist() == [3, 5, 9]
    assert rxrx1.commonest(sirna, 5, tmp_path).tolist() == [1, 3, 5, 7, 9]


# ProstateMRI


@pytest.mark.parametrize(
    ("slices", "site"),
    [(261, "BIDMC"), (158, "HK"), (468, "I2CVB"), (384, "BMC"), (411, "RUNMC"), (175, "UCL")],
)
def test_printed_sizes_of_prostate_come_of_sites_as_large_as_they_are(slices, site, tmp_path):
    found = {(name, "Case00"): [1] * 10 for name in SITES} | {(site, "Case00"): list(range(slices))}
    order, split = ProstateMri()._divide(tmp_path, found)
    mine = split[[at[0] == site for at in order]]
    assert [int(np.sum(mine == code)) for code in (0, 2, 1)] == list(prostate_mri.PUBLISHED[site])
    assert len({at for at in order if at[0] == site}) == len(mine)


def test_seed_decides_which_slices_are_tested(tmp_path):
    found = {(name, "Case00"): list(range(1, 50)) for name in SITES}
    one, again, other = (ProstateMri(seed=s)._divide(tmp_path, found)[0] for s in (0, 0, 1))
    assert one == again
    assert sorted(one) != one != other


def test_slices_without_the_gland_are_kept_if_asked_for(tmp_path):
    data = read(ProstateMri(empty=True, complete=False), "prostate-mri", tmp_path)
    # Of 8 slices the first and the last have no two neighbours; four of the others show the gland.
    assert len(data.y) == 6 * (7 + 2 + 2)
    assert np.array_equal(data.y, data.mask.reshape(len(data.y), -1).any(axis=1))
    assert 0 < data.y.sum() < len(data.y)
    assert set(np.unique(data.mask)) == {0, 1}


def test_volume_is_cut_at_its_99th_percentile():
    volume = np.arange(100, 300).reshape(2, 10, 10)
    found = prostate_mri.scaled(volume)
    assert (found.dtype, found[0, 0, 0], found[1, 9, 9]) == (np.uint8, 0, 255)
    assert (found == 255).sum() == 2
    assert not prostate_mri.scaled(np.full((3, 4, 4), 7)).any()


# ABIDE


def test_sites_are_those_that_are_asked_for(tmp_path):
    data = read(Abide(sites=("CALTECH", "UCLA", "CALTECH")), "abide", tmp_path)
    assert data.domains == ("CALTECH", "UCLA")
    assert np.bincount(data.domain).tolist() == [37, 98]
    with pytest.raises(ConfigError, match="sites"):
        parse(Abide, {"sites": ["NYC"]}, Where("study.yaml"))


def test_incomplete_sites_are_named(tmp_path):
    dataset = Abide(sites=("LEUVEN", "YALE"))
    with pytest.raises(DataError, match=r"preprocessed1\.csv: has no subject of YALE with a file"):
        read(dataset, "abide", tmp_path)
    assert replace(dataset, complete=False).size is None


def test_correlations_are_the_upper_triangle_row_by_row():
    time = np.arange(5.0)
    signals = np.stack([time, -time, time**2, np.ones(5)], axis=1)
    r = np.corrcoef(time, time**2)[0, 1]
    assert abide.correlations(signals) == pytest.approx([-1, r, 0, -r, 0, 0])
