"""Programs for maintainers answer `--help` and refuse what they do not know, and write nothing."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from fl.base import plugins

TOOLS = plugins.FL.parent / "tools"
PROGRAMS = sorted(
    path.stem for path in TOOLS.glob("*.py") if '__name__ == "__main__"' in path.read_text()
)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("argument", "status"), [("--help", 0), ("--nothing", 2)])
def test_a_program_reads_its_arguments(
    program: str,
    argument: str,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["x", argument])
    monkeypatch.delitem(sys.modules, f"tools.{program}", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"tools.{program}", run_name="__main__")
    assert ended.value.code == status
    printed = capsys.readouterr()
    assert (printed.out or printed.err).startswith(f"usage: python -m tools.{program}")
