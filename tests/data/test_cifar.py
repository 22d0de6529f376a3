"""What the keys of the CIFAR family choose, beyond the contract."""

from __future__ import annotations

import pytest
from test_real_datasets import WHERE, make

from fl.base import registry
from fl.base.errors import ConfigError
from fl.base.fields import parse
from fl.data.datasets.cifar10_c import CORRUPTIONS


def test_sizes_of_the_published_cifar10_c():
    assert make("cifar10-c", complete=True).size == 19 * 5 * 10_000
    ten = {"corruptions": list(CORRUPTIONS[:10]), "severities": [3]}
    assert make("cifar10-c", complete=True, **ten).size == 100_000
    assert make("cifar10-c").size is None


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"corruptions": ["fogg"]}, r"corruptions\.0: unknown value 'fogg' \(did you mean 'fog'"),
        ({"corruptions": ["fog", "fog"]}, r"corruptions: is \['fog', 'fog'\]; allowed: at least"),
    ],
)
def test_choices_that_are_none(params, message):
    entry = registry.find("data set", "cifar10-c", WHERE)
    with pytest.raises(ConfigError, match=message):
        entry.make(parse(entry.target, params, WHERE))
