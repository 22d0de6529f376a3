from __future__ import annotations

import numpy as np
import pytest

from fl.base.rng import generator
from fl.data import materials
from fl.data.datasets import digits_domains
from fl.data.datasets.digits_domains import MEAN, SD, DigitsDomains

SPEC = {"name": "digits-domains"}
PLAIN, INVERTED, BLENDED, ROTATED, DRAWN = range(5)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def data(root):
    return materials.prepare(SPEC, root)


@pytest.fixture(scope="module")
def raw(root, data):
    return root / "raw" / "digits-domains"


@pytest.fixture(scope="module")
def digits(raw):
    """Images [1797, 8, 8] and labels."""
    return digits_domains.read_digits(raw / "digits.csv.gz")


@pytest.fixture(scope="module")
def home(digits):
    return digits_domains.deal(digits[1])


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
    assert len(data.domains) == dataset.natural
    data.verify()


def test_domains_are_of_one_size_with_balanced_classes(data):
    assert np.bincount(data.domain).tolist() == [450, 449, 449, 449, 449]
    assert (np.diff(data.domain) >= 0).all()
    counts = np.array([np.bincount(data.y[data.domain == d], minlength=10) for d in range(5)])
    assert np.ptp(counts[:4], axis=0).max() <= 1
    assert counts[:4].sum(axis=0).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.ptp(counts[DRAWN]) == 1


def test_normalisation_is_measured(data):
    pixels = data.x * data.normalisation["scale"]
    # Another Pillow may round a pixel of the photographs or of a font differently.
    assert pixels.mean() == pytest.approx(MEAN, rel=1e-4)
    assert pixels.std() == pytest.approx(SD, rel=1e-4)
    assert data.normalisation == {"scale": 1 / 255, "mean": MEAN, "sd": SD}


# No digit in two domains


def test_each_digit_occurs_in_one_domain_only(data, grey, home):
    # No two of the 1,797 digits are alike, so an image names the digit it was made from.
    digit = {image.tobytes(): number for number, image in enumerate(grey)}
    assert len(digit) == 1797
    plain = [digit[image[0].tobytes()] for image in of(data, PLAIN)]
    inverted = [digit[(255 - image[0]).tobytes()] for image in of(data, INVERTED)]
    assert plain == np.flatnonzero(home == PLAIN).tolist()
    assert inverted == np.flatnonzero(home == INVERTED).tolist()


# How each domain is made


def test_plain_is_the_digit_enlarged_bilinearly(data, digits, home):
    image = digits[0][np.flatnonzero(home == PLAIN)[3]] * 255 / 16
    found = of(data, PLAIN)[3]
    assert (found == found[0]).all()
    # Pixel centres lie at a quarter and three quarters of the way between the small image's.
    inner = (9 * image[2, 4] + 3 * image[2, 5] + 3 * image[3, 4] + image[3, 5]) / 16
    assert found[0, 5, 9] == pytest.approx(inner, abs=0.5)
    assert found[0, 0, 0] == pytest.approx(image[0, 0], abs=0.5)
    assert found[0, 15, 4] == pytest.approx((3 * image[7, 2] + image[7, 1]) / 4, abs=0.5)
    assert (of(data, PLAIN).min(), of(data, PLAIN).max()) == (0, 255)


def test_inverted_has_the_other_polarity(data, grey, home):
    assert np.array_equal(of(data, INVERTED)[:, 2], 255 - grey[home == INVERTED])
    assert of(data, PLAIN).mean() < 100 < 155 < of(data, INVERTED).mean()


def test_blended_is_the_absolute_difference_to_a_patch_of_a_photograph(data, grey, home, raw):
    paths = [raw / "china.jpg", raw / "flower.jpg"]
    photographs = digits_domains.read_photographs(paths)
    assert photographs.shape == (2, 3, 427, 640)
    # The sky over the temple is pale blue.
    red, green, blue = photographs[0, :, 10, 10]
    assert red < green < blue
    patches = digits_domains.cut(photographs, 449).astype(int)
    difference = np.abs(grey[home == BLENDED][:, None] - patches)
    assert np.array_equal(of(data, BLENDED), difference)
    for patch in patches[:5]:
        assert any(occurs(patch, photograph) for photograph in photographs)
    assert len(np.unique(patches.reshape(449, -1), axis=0)) > 445


def occurs(patch, photograph):
    corners = np.argwhere((photograph[:, :-15, :-15] == patch[:, :1, :1]).all(axis=0))
    return any(
        np.array_equal(photograph[:, r : r + 16, c : c + 16], patch) for r, c in corners.tolist()
    )


def test_rotated_is_turned_blurred_and_noised(data, grey, home):
    found = of(data, ROTATED)
    assert (found == found[:, :1]).all()
    angles = generator(0, "digits-domains disturb").uniform(-30, 30, 449)
    turned = digits_domains.turn(grey[home == ROTATED], angles)
    kernel = np.outer([1, 2, 1], [1, 2, 1]) / 16
    windows = np.lib.stride_tricks.sliding_window_view(turned, (3, 3), axis=(1, 2))
    blurred = (windows * kernel).sum(axis=(3, 4))
    inner = found[:, 0, 1:-1, 1:-1]
    # Where three standard deviations fit between 0 and 255, nothing is clipped.
    noise = (inner - blurred)[(blurred > 80) & (blurred < 175)]
    assert noise.size > 10_000
    assert noise.mean() == pytest.approx(0, abs=1)
    assert noise.std() == pytest.approx(25, rel=0.03)


def test_turn_by_right_angles_and_by_half_of_one():
    images = np.arange(25.0).reshape(1, 5, 5)
    turn = digits_domains.turn
    assert turn(images, np.zeros(1)) == pytest.approx(images)
    assert turn(images, np.array([90.0]))[0] == pytest.approx(np.rot90(images[0], -1))
    assert turn(images, np.array([180.0]))[0] == pytest.approx(images[0, ::-1, ::-1])
    dot = np.zeros((2, 5, 5))
    dot[0, 2, 4] = dot[1, 2, 2] = 1
    turned = turn(dot, np.array([45.0, 45.0]))
    # (0, 2) from the centre goes to (sqrt 2, sqrt 2); corners beyond the edge are 0.
    assert turned[0].argmax() in (18, 8)
    assert turned[1, 2, 2] == pytest.approx(1)


def test_drawn_differ_in_colour_and_show_their_label(data):
    found, labels = of(data, DRAWN), data.y[data.domain == DRAWN]
    assert labels.tolist() == [number % 10 for number in range(449)]
    corners = found[:, :, [0, 0, -1, -1], [0, -1, 0, -1]]
    ground = np.median(corners, axis=2)[:, :, None, None]
    assert len(np.unique(ground.reshape(449, 3), axis=0)) > 440
    contrast = np.abs(found - ground).max(axis=(2, 3))
    assert np.quantile(contrast, 0.05) > 32
    # The ground of a drawing is dark or bright in all colours, and each in half of them.
    bright = (ground >= 144).reshape(449, 3)
    assert ((ground < 112).reshape(449, 3) == ~bright).all()
    assert (bright == bright[:, :1]).all()
    assert bright[:, 0].mean() == pytest.approx(0.5, abs=0.1)
    assert ((found > ground).any(axis=(2, 3)) == ~bright).all()
    # Cut out and brought to one size, most look most like a drawing of the same digit.
    ink = np.abs(found - ground).mean(axis=1)
    seen = np.stack([cropped(image / image.max()) for image in ink])
    nearest = ((seen[220:, None] - seen[:220]) ** 2).sum(axis=2).argmin(axis=1)
    assert (labels[nearest] == labels[220:]).mean() > 0.85


def cropped(ink):
    rows, columns = (np.flatnonzero((ink > 0.3).any(axis=axis)) for axis in (1, 0))
    at = (
        np.linspace(ends[0], ends[-1], size).round().astype(int)
        for ends, size in ((rows, 10), (columns, 8))
    )
    return ink[np.ix_(*at)].ravel()


# Partitions


def test_partition_is_made_and_kept_with_its_domains(root, data, tmp_path):
    scheme = {"name": "domain-dirichlet", "clients_per_domain": 2, "alpha": 0.5}
    made = materials.partition(scheme, SPEC, root, tmp_path)
    assert sorted(made["sample"]) == list(range(2246))
    assert (made["domain"] == made["client"] // 2).all()
    assert (made["domain"] == data.domain[made["sample"]]).all()
    again = materials.partition(scheme, SPEC, root, tmp_path)
    assert again.equals(made)
    assert str(again["domain"].dtype) == "int32"
