from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sources import shakespeare as made
from sources.reading import read

from fl.base.errors import DataError
from fl.data.datasets import shakespeare
from fl.data.datasets.shakespeare import Shakespeare

SUBSET = Shakespeare(complete=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return read(SUBSET, tmp_path_factory.mktemp("shakespeare"), made.write)


def test_lines_after_the_plays_are_not_read(tmp_path):
    lines = made.text().splitlines()
    last = next(i for i, line in enumerate(lines) if "children read it" in line)
    plays = dict(shakespeare.plays(made.text(), tmp_path, last=last - 1))
    assert plays["ALL'S WELL THAT ENDS WELL"]["HELENA"] == [
        "The sand remembers what the water wrote upon it,",
        "and children read it in the morning with their feet, my lord:",
    ]
    assert list(plays) == ["ALL'S WELL THAT ENDS WELL"]


def test_a_title_may_stand_up_to_seven_lines_above(tmp_path):
    def title(blanks):
        head = f"x\nby William Shakespeare\n{'x' * 9}\nOLD\nNAME{chr(10) * (blanks + 1)}next\n"
        text = head.replace("next", "by William Shakespeare")
        return shakespeare.plays(text, tmp_path)[0][0]

    assert title(0) == "OLD"  # The line right above does not count.
    assert [title(blanks) for blanks in (1, 3, 6, 7)] == ["NAME"] * 3 + [""]


def test_roles_of_few_samples_are_left_out(tmp_path, data):
    sizes = np.bincount(data.client)
    few = read(replace(SUBSET, min_samples=int(sizes.min()) + 1), tmp_path, made.write)
    assert np.bincount(few.client).tolist() == [s for s in sizes.tolist() if s > sizes.min()]


def test_more_samples_than_any_role_has_are_too_many(tmp_path, data):
    most = int(np.bincount(data.client).max())
    with pytest.raises(DataError, match=rf"min_samples is {most + 1}; allowed: at most {most}"):
        read(replace(SUBSET, min_samples=most + 1), tmp_path, made.write)
