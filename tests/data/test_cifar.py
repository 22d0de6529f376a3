"""What the keys of the CIFAR family choose, beyond the contract."""

from __future__ import annotations

import numpy as np
import pytest
from sources import cifar10_c, cifar100
from test_real_datasets import WHERE, make, prepared

from fl.base import registry
from fl.base.errors import ConfigError
from fl.base.fields import parse
from fl.data.datasets.cifar10_c import CORRUPTIONS


def test_coarse_labels_of_cifar100(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    made = cifar100.write(files)
    found = prepared("cifar100", files, tmp_path / "root", labels="coarse")
    assert np.array_equal(found.y, made.y // 5)
    assert found.classes == cifar100.COARSE
    assert (make("cifar100", labels="coarse").classes, make("cifar100").classes) == (20, 100)


def test_chosen_corruptions_and_severities_in_the_order_asked_for(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    cifar10_c.write(files)
    whole = prepared("cifar10-c", files, tmp_path / "whole")
    chosen = {"corruptions": ["snow", "fog", "brightness"], "severities": [4, 2]}
    found = prepared("cifar10-c", files, tmp_path / "part", **chosen)
    assert found.domains == ("snow", "fog", "brightness")
    each = cifar10_c.IMAGES
    rows = [
        (CORRUPTIONS.index(name) * 5 + severity - 1) * each + n
        for name in found.domains
        for severity in (4, 2)
        for n in range(each)
    ]
    assert np.array_equal(found.x, whole.x[rows])
    assert np.array_equal(found.y, whole.y[rows])
    assert found.domain.tolist() == [0] * 2 * each + [1] * 2 * each + [2] * 2 * each


def test_sizes_of_the_published_cifar10_c():
    assert make("cifar10-c", complete=True).size == 19 * 5 * 10_000
    ten = {"corruptions": list(CORRUPTIONS[:10]), "severities": [3]}
    assert make("cifar10-c", complete=True, **ten).size == 100_000
    assert make("cifar10-c").size is None


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"corruptions": ["fogg"]}, r"corruptions\.0: unknown value 'fogg' \(did you mean 'fog'"),
        ({"severities": [0]}, r"severities\.0: unknown value 0"),
        ({"severities": []}, r"severities: is \[\]; allowed: at least one, each once"),
        ({"corruptions": ["fog", "fog"]}, r"corruptions: is \['fog', 'fog'\]; allowed: at least"),
    ],
)
def test_choices_that_are_none(params, message):
    entry = registry.find("data set", "cifar10-c", WHERE)
    with pytest.raises(ConfigError, match=message):
        entry.make(parse(entry.target, params, WHERE))
