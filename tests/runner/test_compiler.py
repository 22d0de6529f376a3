"""The folder of compiled programs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fl.runner import process_settings


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(process_settings.FOLDER_VARIABLE, "")
    monkeypatch.setattr(process_settings, "USER_FOLDER", None)


def test_programs_lie_beside_the_store_for_their_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process_settings.keep_programs(tmp_path / "runs")
    assert os.environ[process_settings.FOLDER_VARIABLE] == str(tmp_path / "compiled")
    assert stat.S_IMODE((tmp_path / "compiled").stat().st_mode) == 0o700
    monkeypatch.setattr(process_settings, "USER_FOLDER", "/mine")
    process_settings.keep_programs(tmp_path / "other" / "runs")
    assert os.environ[process_settings.FOLDER_VARIABLE] == str(tmp_path / "compiled"), (
        "left as the user has it"
    )


@pytest.mark.parametrize("kind", ["entered by the group", "of another user", "a link", "a file"])
def test_programs_that_others_could_have_put_there_are_not_run(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "compiled"
    if kind == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    elif kind == "a file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o750 if kind == "entered by the group" else 0o700)
    if kind == "of another user":
        monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    process_settings.keep_programs(tmp_path / "runs")
    used = Path(os.environ[process_settings.FOLDER_VARIABLE])
    assert used != folder and stat.S_IMODE(used.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["my results", "o'hara", "a$b"])
def test_programs_lie_where_the_compiler_takes_the_path(name: str, tmp_path: Path) -> None:
    process_settings.keep_programs(tmp_path / name / "runs")
    used = os.environ[process_settings.FOLDER_VARIABLE]
    assert Path(used).is_dir() and name not in used
    assert not (tmp_path / name).exists()
