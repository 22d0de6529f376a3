from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sources import shakespeare as made
from sources.reading import read

from fl.base.errors import DataError
from fl.data import partition
from fl.data.datasets import shakespeare
from fl.data.datasets.shakespeare import ALPHABET, Shakespeare

SUBSET = Shakespeare(complete=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return read(SUBSET, tmp_path_factory.mktemp("shakespeare"), made.write)


def written(tokens):
    return "".join(ALPHABET[token] for token in tokens)


def in_alphabet(text):
    return "".join(character if character in ALPHABET else "}" for character in text)


def test_the_alphabet_is_leafs():
    assert len(ALPHABET) == len(set(ALPHABET)) == 80
    assert [ALPHABET.index(c) for c in "\n aZ}"] == [0, 1, 53, 50, 79]


def test_every_role_says_all_that_it_says_and_nothing_else(data):
    assert (data.x.dtype, data.x.shape[1:]) == (np.uint8, (80,))
    assert data.normalisation is None
    assert (
        data.client.tolist()
        == np.repeat(range(4), [len(t) - 80 for t in made.ROLES.values()]).tolist()
    )
    for client, text in enumerate(made.ROLES.values()):
        own = data.client == client
        whole = written(data.x[own][0]) + written(data.y[own])
        assert whole == in_alphabet(text)
        # Every input is what the one before it becomes when it moves on by one.
        assert np.array_equal(data.x[own][1:, :-1], data.x[own][:-1, 1:])
        assert np.array_equal(data.x[own][1:, -1], data.y[own][:-1])


def test_characters_outside_the_alphabet_become_its_last():
    assert written(shakespeare.numbered(["a{b|c", "é"])) == "a}b}c } "


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


def test_roles_are_clients(data):
    table = partition.natural(data.y, data.client)
    assert table["client"].nunique() == len(made.ROLES)


def test_a_file_of_other_sizes_is_no_complete_one(tmp_path):
    with pytest.raises(DataError) as error:
        read(replace(SUBSET, complete=True), tmp_path, made.write)
    assert "1994-01-100.zip: text has 4 roles, expected 1,129 (LEAF)" in str(error.value)


def test_an_edition_without_indentation_is_refused(tmp_path):
    content = (made.HEAD + made.SONNETS + made.WELL).replace("\n  ", "\n")
    with pytest.raises(DataError, match=r"1994-01-100.zip: no role .* edition of 1994"):
        read(SUBSET, tmp_path, made.write, content=content)
