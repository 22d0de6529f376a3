from __future__ import annotations

import numpy as np
import pytest

from fl.data import preparation
from fl.data.datasets import digits_domains
from fl.data.datasets.digits_domains import DigitsDomains

SPEC = {"name": "digits-domains"}
PLAIN, INVERTED, BLENDED, ROTATED, DRAWN = range(5)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def data(root):
    return preparation.prepare_dataset(SPEC, root)


@pytest.fixture(scope="module")
def raw(root, data):
    return root / "raw" / "digits-domains"


@pytest.fixture(scope="module")
def digits(raw):
    """Images [1797, 8, 8] and labels."""
    return digits_domains.read_digits(raw / "digits.csv.gz")


@pytest.fixture(scope="module")
def home(digits):
    return digits_domains.assign_domains(digits[1])


@pytest.fixture(scope="module")
def grey(digits):
    return digits_domains.enlarge(digits[0]).astype(int)


def of(data, domain):
    return data.x[data.domain == domain].astype(int)


# What is declared, and what is written


def test_arrays_are_as_declared(data):
    dataset = DigitsDomains()
    assert (data.x.dtype, data.x.shape) == (np.uint8, (2246, 3, 16, 16))
    assert (dataset.size, *dataset.shape) == data.x.shape
    assert (data.y.dtype, data.domain.dtype, data.client.dtype) == (np.int64, np.int32, np.int32)
    assert data.classes == tuple("0123456789")
    assert data.domains == dataset.domains == ("plain", "inverted", "blended", "rotated", "drawn")
    assert np.array_equal(data.client, data.domain)
    assert len(data.domains) == dataset.natural_clients
    data.verify()


def test_domains_are_of_one_size_with_balanced_classes(data):
    assert np.bincount(data.domain).tolist() == [450, 449, 449, 449, 449]
    assert (np.diff(data.domain) >= 0).all()
    counts = np.array([np.bincount(data.y[data.domain == d], minlength=10) for d in range(5)])
    assert np.ptp(counts[:4], axis=0).max() <= 1
    assert counts[:4].sum(axis=0).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.ptp(counts[DRAWN]) == 1


# No digit in two domains


def test_each_digit_occurs_in_one_domain_only(data, grey, home):
    # No two of the 1,797 digits are alike, so an image names the digit it was made from.
    digit = {image.tobytes(): number for number, image in enumerate(grey)}
    assert len(digit) == 1797
    plain = [digit[image[0].tobytes()] for image in of(data, PLAIN)]
    inverted = [digit[(255 - image[0]).tobytes()] for image in of(data, INVERTED)]
    assert plain == np.flatnonzero(home == PLAIN).tolist()
    assert inverted == np.flatnonzero(home == INVERTED).tolist()
