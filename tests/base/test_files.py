"""What the disk refuses is named together with what helps."""

from __future__ import annotations

import errno
import os
import pwd
from pathlib import Path

import pytest

from fl.base import files
from fl.base.errors import FedloomError


def test_what_several_people_need_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the message about another person's file, and before others meet the problem."""
    store, before = tmp_path / "store", os.umask(0o022)
    try:
        store.mkdir()
        assert files.sharing_problem(store) == "", "of one person"
        store.chmod(0o770)
        assert "with umask 022: a folder for several people needs" in files.sharing_problem(store)
        os.umask(0o002)
        assert files.sharing_problem(store) == ""
        monkeypatch.setattr(os, "getegid", lambda: store.stat().st_gid + 1)
        assert "does not get its group" in files.sharing_problem(store)
        store.chmod(0o2770)
        assert files.sharing_problem(store) == ""
        assert files.sharing_problem(tmp_path / "absent") == ""
    finally:
        os.umask(before)
    with pytest.raises(FedloomError, match="permission denied; change"), files.disk_errors(store):
        raise PermissionError(errno.EACCES, "Permission denied", str(store / "run" / "lease.json"))
    monkeypatch.setattr(os, "geteuid", lambda: store.stat().st_uid + 1)
    owner = pwd.getpwuid(store.stat().st_uid).pw_name
    advice = f"as it belongs to {owner}; a folder for several people needs .* `umask 002`"
    with pytest.raises(FedloomError, match=advice), files.disk_errors(store):
        raise PermissionError(errno.EACCES, "Permission denied", str(store / "run" / "lease.json"))
