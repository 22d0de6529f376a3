"""A scheduler that is not there is told of once, before any job is handed to it."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from fl.base.errors import FedloomError
from fl.workflow import scheduler


def test_slurm_has_to_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    scheduler.check("local", None)
    settings = SimpleNamespace(status_command="sacct")
    with pytest.raises(
        FedloomError, match=r"^Slurm does not answer on this machine \(.*'sinfo'\). Try: "
    ):
        scheduler.check("slurm", settings)
    sinfo = tmp_path / "sinfo"
    sinfo.write_text("#!/bin/sh\necho 'no controller\nat all' >&2\nexit 1\n")
    sinfo.chmod(0o755)
    with pytest.raises(
        FedloomError, match=r"does not answer on this machine \(no controller\)\. Try"
    ):
        scheduler.check("slurm", settings)
    sinfo.write_text("#!/bin/sh\necho short\n")
    shutil.copy(sinfo, tmp_path / "sacct")
    scheduler.check("slurm", settings)
    assert settings.status_command == "sacct"
    (tmp_path / "sacct").unlink()
    scheduler.check("slurm", settings)
    assert settings.status_command == "squeue", "Slurm keeps no accounts"
