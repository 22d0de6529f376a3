from __future__ import annotations

import numpy as np
import pytest
from sources.packing import encoded, pack, picture, seen

from fl.base.errors import DataError
from fl.data.counts import lacking
from fl.data.placing import known, place


def test_known_is_the_end_of_a_path_of_whole_names():
    names = {"real/cat.jpg": 0, "cat.jpg": 1}
    assert known("set/real/cat.jpg", names) == "real/cat.jpg"
    assert known("unreal/cat.jpg", names) == "cat.jpg"
    assert known("unreal/wildcat.jpg", names) is None
    assert known("real/cat.jpg/x", names) is None


def test_images_go_to_their_rows_in_whatever_order_they_come(tmp_path):
    photos = {f"set/{name}.png": encoded(picture(name, 9, 7)) for name in "cab"}
    pack(tmp_path / "a.zip", photos | {"set/readme.txt": b"?"})
    x = np.zeros((5, 3, 4, 4), np.uint8)
    place(tmp_path / "a.zip", {"a.png": 3, "b.png": [0, 4], "c.png": 2}, x)
    for row, name in enumerate("b-cab"):
        expected = 0 if name == "-" else seen(photos[f"set/{name}.png"], 4, 4)
        assert np.array_equal(x[row], np.zeros((3, 4, 4), np.uint8) + expected), row


def test_an_image_that_comes_twice_counts_once(tmp_path):
    photos = {f"{f}/a.png": encoded(picture(f, 9, 7)) for f in ("one", "two")}
    pack(tmp_path / "a.zip", photos)
    x = np.zeros((1, 3, 4, 4), np.uint8)
    place(tmp_path / "a.zip", {"a.png": 0}, x)
    assert np.array_equal(x[0], seen(photos["one/a.png"], 4, 4))


def test_what_is_missing_is_named(tmp_path):
    pack(tmp_path / "a.zip", {"a.png": encoded(picture("a", 9, 7))})
    with pytest.raises(DataError, match=r"a\.zip: lacks b\.png and 1 others; delete the file"):
        place(
            tmp_path / "a.zip",
            dict.fromkeys(("a.png", "b.png", "c.png"), 0),
            np.zeros((1, 3, 4, 4)),
        )
    with pytest.raises(DataError, match=r"a\.zip: lacks b\.png; delete the file"):
        lacking(tmp_path / "a.zip", ["b.png"])
    lacking(tmp_path / "a.zip", [])
