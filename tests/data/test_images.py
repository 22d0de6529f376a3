from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from fl.base.errors import DataError
from fl.data.readers.image_files import decode_image


def stream(pixels, mode=None, form="PNG"):
    """A picture as a file, named as a member of an archive is."""
    image = Image.fromarray(pixels)
    out = io.BytesIO()
    (image.convert(mode) if mode else image).save(out, form)
    found = io.BytesIO(out.getvalue())
    found.name = "set.zip: cat/1.png"
    return found


COLOUR = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)


def test_crop_comes_before_size():
    assert np.array_equal(
        decode_image(stream(COLOUR), None, crop=(1, 2, 5, 4)), COLOUR[2:4, 1:5].transpose(2, 0, 1)
    )
    middle = decode_image(stream(COLOUR), (4, 4), crop="centre")
    assert np.array_equal(middle, COLOUR[:, 1:5].transpose(2, 0, 1))


@pytest.mark.parametrize("mode", ["RGBA", "P"])
def test_wrong_mode_is_named_unless_it_may_be_converted(mode):
    with pytest.raises(
        DataError, match=rf"set\.zip: cat/1\.png: the image has mode {mode}. Allowed: RGB, L$"
    ):
        decode_image(stream(COLOUR, mode), (4, 6))
    assert decode_image(stream(COLOUR, mode), (4, 6), converts=(mode,)).shape == (3, 4, 6)
