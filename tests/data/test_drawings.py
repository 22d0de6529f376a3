"""Characters as images by the rule of MNIST, on drawings whose image follows from the rule."""

from __future__ import annotations

import numpy as np
import pytest
from generated import make, written
from PIL import Image

from fl.base.errors import DataError
from fl.data.prepared import Prepared, Writer
from fl.data.readers.drawings import draw_stroke, fit


def picture(rows):
    return Image.fromarray(np.array(rows, np.uint8) * 255)


def test_longer_side_becomes_20_pixels_and_the_centre_of_mass_the_middle():
    drawn = np.zeros((90, 70))
    drawn[30:70, 5:25] = 1
    expected = np.zeros((28, 28), np.uint8)
    expected[4:24, 9:19] = 255
    assert np.array_equal(fit(picture(drawn), ""), expected)
    # An L: the foot, 20 x 5, moves the centre of mass, 10 rows by 20 columns, down and right.
    drawn = np.zeros((40, 40))
    drawn[:, :10] = drawn[30:, :] = 1
    rows = np.concatenate(
        [np.repeat(np.arange(20) + 0.5, 5), np.repeat(np.arange(15, 20) + 0.5, 15)]
    )
    first = round(14 - rows.mean())
    expected = np.zeros((28, 28), np.uint8)
    left = 28 - 20 - first  # The L is its own mirror image about the other diagonal.
    expected[first : first + 20, left : left + 5] = 255
    expected[first + 15 : first + 20, left : left + 20] = 255
    assert np.array_equal(fit(picture(drawn), ""), expected)


def test_nothing_leaves_the_image():
    drawn = np.zeros((400, 400))
    drawn[:, :4] = 1
    drawn[0, :] = 1
    image = fit(picture(drawn), "")
    # The centre of mass would come to the middle if the arm could end six pixels outside.
    assert not image[:, :8].any()
    assert image[:, 8].any()
    assert image[:, 27].any()


def test_blank_picture_is_refused():
    with pytest.raises(DataError, match="row 3: is blank"):
        fit(picture(np.zeros((8, 8))), "row 3")


def test_stroke_of_a_seven_has_its_bar_above():
    seven = np.array(
        [[0, 100], [33, 100], [66, 100], [100, 100], [80, 75], [60, 50], [50, 25], [40, 0]]
    )
    image = draw_stroke(seven, "").astype(float)
    rows = np.flatnonzero(image.sum(axis=1))
    assert len(rows) == 20
    width = [np.ptp(np.flatnonzero(image[row])) for row in rows]
    assert min(width[:2]) > 15
    assert max(width[3:]) < 8
    # Downwards the stroke goes to the left.
    assert np.flatnonzero(image[rows[4]]).mean() > np.flatnonzero(image[rows[-2]]).mean() + 4


def test_images_is_the_largest_number_of_a_domain(tmp_path):
    files = tmp_path / "files"
    written("real-digits", files)
    found = {}
    for images in (None, 20, 100):
        with Writer(tmp_path / str(images)) as writer:
            make("real-digits", images=images).read(files, writer)
            writer.finish({"name": "real-digits", "params": {}, "sources": []})
        found[images] = Prepared.open(tmp_path / str(images))
    whole = found[None]
    for images in (20, 100):
        data = found[images]
        assert np.bincount(data.domain).tolist() == [
            min(images, size) for size in np.bincount(whole.domain)
        ]
    mnist = {image.tobytes(): label for image, label in zip(whole.x, whole.y, strict=True)}
    few = found[20]
    chosen = few.y[few.domain == 0]
    assert [mnist[image.tobytes()] for image in few.x[few.domain == 0]] == chosen.tolist()
    assert len(set(chosen.tolist())) > 3
