"""The program's commands: each has its options, and only its own modules are imported for it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import planning
import pytest

from fl.base import registry
from fl.cli import main

NAMES = [command.name for commands in main.COMMANDS_BY_GROUP.values() for command in commands]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main.main([name, "--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert f"fedloom {name}" in said
    assert ("--config" in said) != (name == "store"), "those of the store have it themselves"


def test_help_lists_every_command_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["--help"])
    first_words = [
        line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:2] == "  "
    ]
    assert len(NAMES) == len(set(NAMES))
    assert [word for word in first_words if word in NAMES] == NAMES


def test_a_command_that_does_not_exist_is_refused_with_those_that_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.main(["plam"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "'plam' (did you mean 'plan'?)" in line and line.startswith("error: the command line: ")
    with pytest.raises(SystemExit) as end:
        main.main([])
    assert end.value.code == 2


SPY = """
import json, sys
from fl.base import registry
from fl.cli import main
try:
    main.main(sys.argv[1:])
except SystemExit:
    pass
print("\\n" + json.dumps([name for name in sys.modules if name.startswith("fl.")]))
"""


@pytest.mark.parametrize("name", ["plan", "status", "train", "prepare", "--help"])
def test_a_command_does_not_import_others_nor_reports(name: str) -> None:
    words = [name] if name == "--help" else [name, "--help"]
    told = subprocess.run(
        [sys.executable, "-c", SPY, *words],
        cwd=planning.ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout
    modules = {module.removeprefix("fl.") for module in json.loads(told.splitlines()[-1])}
    shared = {"cli.main", "cli.commands", "cli.stores"}
    own = {module for module in modules if module.startswith("cli.")} - shared
    assert len(own) == (name != "--help")
    foreign = {"report", "analyses", "notebook"}
    if name != "status":  # It says which reports are out of date.
        assert not {module.split(".")[0] for module in modules} & foreign


def test_data_sets_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["datasets"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["data", "set", "samples", "shape", "classes", "clients", "files"]
    rows = {line.split()[0]: re.split(r"\s{2,}", line) for line in lines if line}
    assert rows["vowel"][:6] == ["vowel", "990", "10", "11", "15", "downloaded"]
    assert rows["digits"][:5] == ["digits", "1,797", "1 x 8 x 8", "10", "ready"]
    assert "by hand" in rows["office-caltech10"] and "your own" in rows["table"]
    assert {*registry.names("data set")} <= {*rows}
