"""Folders in a config: what they stand for, and which of them the graph can carry."""

from __future__ import annotations

import os
from pathlib import Path

import planning
import pytest

from fl.base.errors import ConfigError, Location
from fl.base.folders import checked_folder
from fl.plan import config, plan

HERE = Location("config/config.yaml", "store")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("SCRATCH", "/scratch/~ann")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("BRACES", "/scratch/{ann}")
    monkeypatch.delenv("NOWHERE", raising=False)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("results/runs", "results/runs"),
        ("~/runs", "/home/ann/runs"),
        ("$SCRATCH/runs", "/scratch/~ann/runs"),
        ("${SCRATCH}/runs", "/scratch/~ann/runs"),
        ("runs/~", "runs/~"),
        ("./runs//old/", "runs/old"),
        ("../runs", "../runs"),
        # Signs that mean something to a shell, and are characters of a name.
        ("$(touch x)/$1;#'\"&|*", "$(touch x)/$1;#'\"&|*"),
    ],
)
def test_what_a_folder_stands_for(text: str, meant: str) -> None:
    assert checked_folder(text, HERE) == meant


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "which is empty"),
        ("$NOWHERE/runs", "but the environment variable 'NOWHERE' is not set"),
        ("$EMPTY/runs", "but the environment variable 'EMPTY' is not set"),
        ("~nobody-of-that-name/runs", "but no user has the home folder '~nobody-of-that-name'"),
        ("$BRACES/runs", "('/scratch/{ann}/runs'), which has braces"),
        ("a\nb", "which has a line break or a control character"),
        ("runs ", "which begins or ends with a blank"),
        ("-x", "which begins with a dash"),
        ("s3://bucket/runs", "which is an address"),
    ],
)
def test_what_the_graph_cannot_carry_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked_folder(text, HERE)
    assert str(caught.value).startswith(f"config/config.yaml: store: is {text!r}")
    assert problem in str(caught.value)


def test_all_folders_of_a_config_are_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB", str(tmp_path))
    (tmp_path / "mylab_of_places").mkdir()
    folders = {"results": "$LAB/out", "store": "~/runs", "data": "${LAB}/data"}
    folders |= {"plugins": ["$LAB/mylab_of_places"], "sources": {"digits": "$LAB"}}
    settings = config.read_settings(planning.write_config(tmp_path, settings=folders))
    assert (settings.results, settings.store) == (f"{tmp_path}/out", "/home/ann/runs")
    assert (settings.data, settings.sources) == (f"{tmp_path}/data", {"digits": str(tmp_path)})
    assert settings.plugins == (f"{tmp_path}/mylab_of_places",)


def test_a_plan_is_made_anew_when_a_variable_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"results": str(tmp_path / "results"), "store": "$SCRATCH/runs"}
    folder = planning.write_config(tmp_path, settings=settings)
    stores = []
    for scratch in ("one", "two", "two"):
        monkeypatch.setenv("SCRATCH", str(tmp_path / scratch))
        stores.append(Path(plan.read_index(folder).settings.store))
    assert stores == [tmp_path / name / "runs" for name in ("one", "two", "two")]
    assert not os.path.lexists(tmp_path / "one")
