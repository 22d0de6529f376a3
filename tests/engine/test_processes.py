"""A run on several processes has the numbers of one, to rounding."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pairs
import planning
import pytest
import torch

from fl.engine.processes import divide_work
from fl.engine.state import average_groups
from fl.runner import job_processes


def test_work_is_split_evenly_and_each_row_once() -> None:
    work = np.array([5, 1, 9, 0, 3, 3, 8, 1])
    shares = divide_work(work, 3)
    assert sorted(np.concatenate(shares).tolist()) == list(range(8))
    assert all((np.diff(own) > 0).all() for own in shares)
    sums = [work[own].sum() for own in shares]
    assert max(sums) - min(sums) <= 3
    assert [len(own) for own in divide_work(np.zeros(4), 2)] == [2, 2]
    assert [len(own) for own in divide_work(np.array([7.0]), 3)] == [1, 0, 0]


def test_clients_without_samples_weigh_nothing_in_a_mean() -> None:
    """Also where a process has no others."""
    nobody, some = ({"w": torch.tensor([a, b])} for a, b in ((5.0, 9.0), (1.0, 3.0)))
    weights = [torch.zeros(2), torch.tensor([1.0, 3.0])]
    mean, weight = average_groups([nobody, some], weights)
    assert mean["w"].tolist() == [2.5] and weight.tolist() == [4.0]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two processes found, by method."""
    place = tmp_path_factory.mktemp("pair") / "found.json"
    tests = planning.ROOT / "tests"
    with pytest.MonkeyPatch.context() as patch:
        folders = [str(planning.ROOT), str(tests), str(tests / "helpers"), str(tests / "data")]
        patch.setenv("PYTHONPATH", os.pathsep.join(folders))
        assert job_processes.launch(2, [str(Path(pairs.__file__)), str(place)]) == 0
    return dict(json.loads(place.read_text()))


@pytest.mark.parametrize("name", pairs.NAMES)
def test_two_processes_are_one_to_rounding(name: str, pair: dict[str, Any]) -> None:
    for found in pair[name]:
        assert found["apart"] < 1e-10
        assert found["rows"]


def test_something_is_trained(pair: dict[str, Any]) -> None:
    moved = [pair[name][0]["moved"] > 1e-3 for name in pairs.METHODS]
    assert sum(moved) > 0.8 * len(moved)


def test_what_fails_in_one_is_an_error_of_the_first(pair: dict[str, Any]) -> None:
    """And the team goes on with what it is asked next."""
    assert pair["broken"] == "ValueError: cannot be made"
    assert pair[pairs.FAILS].startswith("IndexError: ")
    assert pair["gone"].startswith("another process of this run has ended (")
