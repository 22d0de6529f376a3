"""A path that may not be read or written is one message; such a run is passed over."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import planning
import pytest

from fl.cli import main

REFUSED = {
    # By path and mode: a command, and what is named.
    ("config/config.yaml", 0): ("methods", "config/config.yaml"),
    ("config", 0): ("methods", "config/config.yaml"),
    ("config/studies/tiny.yaml", 0): ("plan tiny", "config/studies/tiny.yaml"),
    ("results/plan", 0): ("status", "results/plan/plan.json"),
    ("results/plan/studies", 0): ("show tiny", "results/plan/studies/tiny.json"),
    ("results/partitions", 0): ("report tiny", "results/partitions/"),
    ("runs", 0): ("show tiny", "runs"),
    (".", 0o500): ("new method anchor", "mylab"),
}
COMMANDS = ("plan", "show tiny", "status", "store ls", "store verify")
SPY = """
import contextlib, io, json, os, sys
from fl.cli import main
told = []
for path, mode, command in json.loads(sys.argv[1]):
    before = os.stat(path).st_mode & 0o777
    os.chmod(path, mode)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        status = main.main([*command.split(), "--config", "config"])
    os.chmod(path, before)
    told.append([status, said.getvalue()])
print("\\n" + json.dumps(told))
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A planned study of two runs that are there."""
    monkeypatch.chdir(tmp_path)
    places = {"results": "results", "store": "runs"}
    planning.write_config(tmp_path, {"seeds": [0, 1]}, places)
    assert main.main(["plan", "--write", "--config", "config"]) == 0
    [bundle] = (tmp_path / "results" / "plan" / "bundles").glob("*.json")
    assert main.main(["train", str(bundle), "--config", "config"]) == 0
    return tmp_path


def said(lab: Path, *asked: tuple[str, int, str]) -> list[tuple[int, str]]:
    """Status and stderr of commands while a path has a mode, in one process that is not root."""
    powerless: list[str] = []
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root may read everything, and setpriv is not there to change that")
        powerless = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    done = subprocess.run(
        [*powerless, sys.executable, "-P", "-c", SPY, json.dumps(asked)],
        cwd=lab,
        env={**os.environ, "PYTHONPATH": str(planning.ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [(status, text) for status, text in json.loads(done.stdout.splitlines()[-1])]


def test_what_may_not_be_read_or_written_is_one_message(lab: Path) -> None:
    asked = [(path, mode, command) for (path, mode), (command, _) in REFUSED.items()]
    named = [name for _, name in REFUSED.values()]
    for name, (status, error) in zip(named, said(lab, *asked), strict=True):
        assert status == 1, name
        assert error.startswith(f"error: {name}"), error
        assert "denied" in error and len(error.splitlines()) == 1


def test_a_run_that_may_not_be_read_is_named_and_passed_over(lab: Path) -> None:
    run, _ = sorted(path.name for path in (lab / "runs").iterdir())
    for status, error in said(lab, *((f"runs/{run}", 0, command) for command in COMMANDS)):
        assert status == 0
        assert f"runs/{run}: permission denied; the run is skipped" in error


def test_a_run_that_may_not_be_read_is_not_replaced(lab: Path) -> None:
    run, _ = sorted(path.name for path in (lab / "runs").iterdir())
    [bundle] = (lab / "results" / "plan" / "bundles").glob("*.json")
    [(status, error)] = said(lab, (f"runs/{run}", 0, f"train {bundle}"))
    assert status == 1 and f"runs/{run}: permission denied. Try: ask its owner" in error
    assert (lab / "runs" / run / "run.json").exists()
