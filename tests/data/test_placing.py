from __future__ import annotations

import numpy as np
import pytest
from sources.packing import encoded, pack, picture

from fl.base.errors import DataError
from fl.data.readers.published_domains import fill_images, matching_name
from fl.data.readers.validation import check_missing


def test_known_is_the_end_of_a_path_of_whole_names():
    names = {"real/cat.jpg": 0, "cat.jpg": 1}
    assert matching_name("set/real/cat.jpg", names) == "real/cat.jpg"
    assert matching_name("unreal/cat.jpg", names) == "cat.jpg"
    assert matching_name("unreal/wildcat.jpg", names) is None
    assert matching_name("real/cat.jpg/x", names) is None


def test_what_is_missing_is_named(tmp_path):
    pack(tmp_path / "a.zip", {"a.png": encoded(picture("a", 9, 7))})
    with pytest.raises(DataError, match=r"a\.zip: lacks b\.png and 1 others. Try: delete the file"):
        fill_images(
            tmp_path / "a.zip",
            dict.fromkeys(("a.png", "b.png", "c.png"), 0),
            np.zeros((1, 3, 4, 4)),
        )
    with pytest.raises(DataError, match=r"a\.zip: lacks b\.png. Try: delete the file"):
        check_missing(tmp_path / "a.zip", ["b.png"])
    check_missing(tmp_path / "a.zip", [])
