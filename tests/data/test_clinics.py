"""What the readers of clinical sets compute, beyond the contract of all readers."""

from __future__ import annotations

import numpy as np
import pytest
import sources
from sources.prostate_mri import SITES

from fl.base.errors import ConfigError, DataError, Where
from fl.base.fields import parse
from fl.data import prepare
from fl.data.datasets import abide, prostate_mri
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


# ABIDE


def test_sites_are_those_that_are_asked_for(tmp_path):
    data = read(Abide(sites=("CALTECH", "UCLA", "CALTECH")), "abide", tmp_path)
    assert data.domains == ("CALTECH", "UCLA")
    assert np.bincount(data.domain).tolist() == [37, 98]
    with pytest.raises(ConfigError, match="sites"):
        parse(Abide, {"sites": ["NYC"]}, Where("study.yaml"))
