"""Plugins, the code of users: `fedloom new` writes them; they are checked, hashed and run."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import planning
import preloaded
import pytest
import yaml

from fl.base import identity, plugins, registry
from fl.base.errors import ConfigError, DataError, Location
from fl.base.schema import CLOCK
from fl.cli import main
from fl.data.partition_table import validate
from fl.plan import config, plan_files
from fl.store.store import Store

NUMBER = itertools.count(1)
WHERE = Location("config/config.yaml", "plugins")
STUDY: dict[str, Any] = {
    "datasets": [{"two-clouds": {"size": 80}}],
    "partitions": [{"in-steps": {"clients": 3, "ratio": 1.5}}],
    "models": [{"small-net": {"width": 4}}],
    "methods": {
        "fedavg": None,
        "my-anchor": {"strength": 0.5, "alterations": {"scaled": {"layers": ["1"]}}},
        "shrunk": {"method": "fedavg", "upload_filters": {"soft": None}, "aggregation": "near"},
        "sized": {"method": "fedavg", "selection": "large", "participation": 0.5},
        "timed": {"method": "fedavg", "devices": "phones"},
        "versions": {
            **{"method": "fedavg", "devices": "phones"},
            "asynchronous": {"hasty": {"size": 1, "concurrency": 2}},
        },
    },
    "training": {"rounds": 2, "batch_size": 8, "lr": 0.05},
    "analyses": [{"held-by": {"bars": 2}}],
}


MADE = {
    **{"method": "my-anchor", "model": "small-net", "dataset": "two-clouds", "scheme": "in-steps"},
    "alteration": "scaled",
    "analysis": "held-by",
    **{"filter": "soft", "aggregation": "near", "devices": "phones"},
    **{"selection": "large", "server": "hasty"},
}
FILES = (
    *("aggregations/near.py", "alterations/scaled.py", "analyses/held_by.py"),
    *("datasets/two_clouds.py", "devices/phones.py", "filters/soft.py", "methods/my_anchor.py"),
    *("models/small_net.py", "schemes/in_steps.py", "selections/large.py"),
    "servers/hasty.py",
)


def forget() -> None:
    """Identities are remembered by file; tests change files."""
    identity._files.cache_clear()
    identity._code.cache_clear()


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plugins are known to the whole process: what a test brings is taken back."""
    monkeypatch.setattr(plugins, "_roots", {"fl": plugins.FL})
    monkeypatch.setattr(sys, "path", list(sys.path))
    forget()
    yield
    brought = set(plugins.roots()) - {"fl"}
    for name in [name for name in sys.modules if name.partition(".")[0] in brought]:
        del sys.modules[name]
    forget()


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plugin and a config that names it, with one thing of each kind, as `fedloom new` made it.

    The package has another name in every test, so that none finds another one's modules.
    """
    folder = tmp_path / f"lab{next(NUMBER)}"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    planning.write_config(tmp_path, STUDY, {"plugins": [folder.name]})
    for kind, name in MADE.items():
        assert main.main(["new", kind, name]) == 0
    return folder


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, text
    path.write_text(text.replace(old, new))
    forget()


def errors(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one message with which a command ends."""
    capsys.readouterr()
    assert main.main(list(arguments)) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line


# What `fedloom new` writes


def test_new_files_are_in_place_and_pass_the_linter(lab: Path) -> None:
    files = sorted(path.relative_to(lab).as_posix() for path in lab.rglob("*.py"))
    assert files == list(FILES)
    ruff = Path(sys.executable).parent / "ruff"
    if not ruff.exists():
        pytest.skip("ruff is not installed beside this Python")
    # As in the root of a clone, where ``fl`` is first-party.
    settings = [
        "--config",
        planning.ROOT / "pyproject.toml",
        "--config",
        f"src=['{planning.ROOT}']",
    ]
    for command in (["check"], ["format", "--diff"]):
        done = subprocess.run(
            [ruff, *command, "--no-cache", *settings, lab],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_new_says_what_it_wrote_and_how_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    planning.write_config(tmp_path)
    assert main.main(["new", "method", "anchor"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "wrote mylab/methods/anchor.py",
        "Next: write `plugins: [mylab]` in config/config.yaml",
    ]
    before = (tmp_path / "mylab/methods/anchor.py").read_bytes()
    assert "exists already" in errors(capsys, "new", "method", "anchor")
    assert (tmp_path / "mylab/methods/anchor.py").read_bytes() == before
    assert main.main(["new", "model", "net", "--in", "other"]) == 0
    assert (tmp_path / "other/models/net.py").is_file()


@pytest.mark.parametrize("name", ["Anchor", "2nd", "-a", "", "../a"])
def test_a_name_that_configs_cannot_say_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    planning.write_config(tmp_path)
    said = errors(capsys, "new", "method", "--", name)
    assert repr(name) in said
    assert ". Allowed: small letters, digits and single dashes" in said
    assert not (tmp_path / "mylab").exists()


# Found and run


def test_a_scheme_of_ones_own_deals_every_sample(lab: Path) -> None:
    config.read_settings(Path("config"))
    entry = registry.find("partition scheme", "in-steps", WHERE)
    keys = entry.parse({"clients": 4, "test": 0.25}, WHERE)
    assert keys["ratio"] == 2.0, "as its function declares it"
    labels = np.arange(312) % 10
    made = entry.target(labels, **keys)
    validate(made, labels, source="in-steps")
    assert made["client"].value_counts().sort_index().tolist() == [23, 43, 83, 163]
    assert made.equals(entry.target(labels, **keys))
    assert not made.equals(entry.target(labels, **keys | {"seed": 1}))
    with pytest.raises(DataError, match="in-steps"):
        entry.target(labels[:11], **keys)


@pytest.mark.parametrize(
    ("command", "name", "lines"),
    [
        (
            "methods",
            "my-anchor",
            [
                *("MyAnchor: summary of the method in one line.", "Authors. Title. Venue 2026."),
                "strength: a number >= 0; default: 0.1\n Weight of the penalty; 0 is FedAvg",
            ],
        ),
        (
            "partitions",
            "in-steps",
            [
                "clients: a whole number >= 1; required\n Number of clients",
                "ratio: a number > 0; default: 2.0\n Ratio of a client's size to that of the",
                "seed: a whole number >= 0; default: 0\n Seed of the random numbers",
            ],
        ),
    ],
)
def test_what_is_new_says_its_keys(
    lab: Path, capsys: pytest.CaptureFixture[str], command: str, name: str, lines: list[str]
) -> None:
    capsys.readouterr()
    assert main.main([command, name]) == 0
    told = re.sub(r" +", " ", capsys.readouterr().out)
    for line in lines:
        assert line in told
    assert f"\nfile: {lab.name}/" in told


def test_a_study_of_ones_own_parts_is_trained(lab: Path, tmp_path: Path) -> None:
    assert main.main(["plan", "--write"]) == 0
    [study] = (tmp_path / "results/plan/studies").glob("*.json")
    found = json.loads(study.read_text())["runs"]
    assert [run["method"] for run in found] == sorted(STUDY["methods"])
    for run in found:
        bundle = tmp_path / "results/plan/bundles" / f"{run['bundle']}.json"
        assert main.main(["train", str(bundle)]) == 0
    store = Store(tmp_path / "runs")
    average, anchored, shrunk, _, timed, _ = (store.metrics(run["run"]) for run in found)
    assert average["round"].max() == anchored["round"].max() == 2
    assert not average["value"].equals(anchored["value"])
    assert not average["value"].equals(shrunk["value"]) and shrunk["value"].notna().all()
    accuracy = anchored[(anchored["metric"] == "accuracy") & (anchored["split"] == "test")]
    assert accuracy["value"].between(0, 1).all()
    assert len(accuracy) == 6, "three clients in two rounds"
    record = store.record(found[1]["run"])
    own = {name for name in record["code_files"] if name.startswith(lab.name)}
    uploads = {f"{lab.name}/{name}" for name in ("filters/soft.py", "aggregations/near.py")}
    devices = {f"{lab.name}/devices/phones.py"}
    selections = {f"{lab.name}/selections/large.py"}
    servers = {f"{lab.name}/servers/hasty.py"}
    others = uploads | devices | selections | servers
    assert own == {f"{lab.name}/{name}" for name in FILES if "analyses" not in name} - others
    assert uploads < {*store.record(found[2]["run"])["code_files"]}
    assert selections < {*store.record(found[3]["run"])["code_files"]}
    assert devices < {*store.record(found[4]["run"])["code_files"]}
    assert devices | servers < {*store.record(found[5]["run"])["code_files"]}
    is_clock = timed["split"] == CLOCK
    assert timed[~is_clock].reset_index(drop=True).equals(average), "time changes no number"
    index = plan_files.read_index(tmp_path / "results")
    assert index is not None
    [asked] = index.analyses
    assert main.main(["analyse", asked]) == 0
    made = tmp_path / "results/analyses" / asked
    assert pd.read_parquet(made / "table.parquet")["classes"].tolist() == [2.0] * 6
    assert (made / "figure-6.pdf").is_file() and not (made / "figure-7.pdf").exists()


def test_a_hyper_parameter_called_as_a_key_of_every_entry_is_refused(
    lab: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the rate of the study would be taken for the method's own."""
    edit(
        lab / "methods/my_anchor.py",
        "    strength: NonNegative = 0.1\n",
        "    strength: NonNegative = 0.1\n    lr: NonNegative = 2.0\n",
    )
    study = tmp_path / "config/studies/tiny.yaml"
    content = yaml.safe_load(study.read_text())
    study.write_text(yaml.safe_dump({**content, "methods": {"my-anchor": None}}))
    assert "methods.my-anchor.lr: the method 'my-anchor'" in errors(capsys, "plan")


# Identity


def identities() -> dict[str, str]:
    """Of the code of every method and model."""
    config.read_settings(Path("config"))
    found = [e for kind in ("method", "model") for e in registry.components(kind)]
    return {e.name: identity.root_code(identity.entry(e.kind, e.name)) for e in found}


def changed(before: dict[str, str]) -> set[str]:
    now = identities()
    assert set(now) == set(before)
    return {name for name in now if now[name] != before[name]}


def test_code_of_ones_own_is_the_identity_of_what_uses_it_and_of_nothing_else(lab: Path) -> None:
    method = lab / "methods/my_anchor.py"
    before = identities()
    edit(method, "summary of the method in one line.", "other words.")
    edit(method, "def drift", "# Why not?\n\n\ndef drift")
    assert changed(before) == set()
    edit(method, "mean(dim=1)", "sum(dim=1)")
    assert changed(before) == {"my-anchor"}


# Refused


def test_a_name_that_is_taken_is_an_error_that_names_both(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (lab / "methods/fedavg.py").write_text((lab / "methods/my_anchor.py").read_text())
    said = errors(capsys, "plan")
    assert "the method 'fedavg'" in said
    assert "fl.methods.fedavg" in said
    assert f"{lab.name}.methods.fedavg" in said


@pytest.mark.parametrize(
    ("make", "name", "problem"),
    [
        (False, "nowhere", "'nowhere' is not a folder. Allowed: the folder of a Python package"),
        (True, "my-lab", "'my-lab' is not a name that Python can import"),
    ],
)
def test_a_folder_that_is_no_package_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    make: bool,
    name: str,
    problem: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    planning.write_config(tmp_path, settings={"plugins": [name]})
    if make:
        (tmp_path / name).mkdir()
    assert errors(capsys, "plan") == f"error: config/config.yaml: plugins.0: {problem}"
    assert plugins.roots() == {"fl": plugins.FL}


def test_two_packages_of_one_name_are_refused(tmp_path: Path) -> None:
    folders = [tmp_path / place / "mylab" for place in ("a", "b")]
    for folder in folders:
        folder.mkdir(parents=True)
    plugins.use([str(folders[0])], WHERE)
    plugins.use([str(folders[0])], WHERE)
    with pytest.raises(ConfigError) as caught:
        plugins.use(map(str, folders), WHERE)
    assert str(caught.value) == (
        f"config/config.yaml: plugins.1: {folders[1]} has the same name as {folders[0]}. "
        "Allowed: packages with different names"
    )


# The contract


def contract(
    lab: Path, chosen: str, file: str = "test_methods.py"
) -> subprocess.CompletedProcess[str]:
    """The chosen contract tests, with the plugin."""
    return subprocess.run(
        [
            *(preloaded.python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen),
            f"--basetemp={lab.with_name('pytest')}",
            f"tests/contract/{file}",
        ],
        cwd=planning.ROOT,
        env={**os.environ, "FEDLOOM_PLUGINS": str(lab)},
        capture_output=True,
        text=True,
    )


def test_the_contract_covers_upload_filters_and_aggregations_of_ones_own(lab: Path) -> None:
    done = contract(
        lab, "(soft or near) and (fedavg or resumed or drawn)", "test_upload_filters.py"
    )
    assert done.returncode == 0, done.stdout
    passed = re.search(r"\b(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= 6, done.stdout


def test_the_contract_covers_methods_of_ones_own(lab: Path) -> None:
    done = contract(lab, "my-anchor")
    assert done.returncode == 0, done.stdout
    assert re.search(r"\b[1-9]\d* passed", done.stdout), done.stdout
    edit(lab / "methods/my_anchor.py", '@declare("global")', '@declare("x")')
    done = contract(lab, "my-anchor")
    assert done.returncode == 2, "it is refused before any test"
    assert "MyAnchor declares the stage 'x', but its build returns" in done.stdout


@pytest.mark.parametrize(
    ("asked", "old", "new", "problem"),
    [
        (["my-anchor"], "def build(self", "def build((self", "cannot be imported (SyntaxError"),
        (["my-anchor"], "import Tensor", "import Tensr", "cannot be imported ({line}: ImportError"),
        (["my-anchor"], "def build(", "def made(", "has 0 dataclasses with `build` or `read`. All"),
    ],
)
def test_a_broken_file_is_one_message(
    lab: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    asked: list[str],
    old: str,
    new: str,
    problem: str,
) -> None:
    edit(lab / "methods" / "my_anchor.py", old, new)
    assert main.main(["methods", *asked, "--config", str(tmp_path / "config")]) == 1
    said = capsys.readouterr().err
    line = f"{os.path.relpath(lab)}/methods/my_anchor.py, line 10"
    assert f"{lab.name}.methods.my_anchor {problem.replace('{line}', line)}" in said
    assert "Traceback" not in said


def test_of_a_compilers_long_message_the_errors_are_told() -> None:
    command = "g++ " + "-D X " * 700
    text = f"C++ compile error\n\nCommand:\n{command}\nOutput:\ng++: fatal error: no such file\n"
    told = plugins.describe(RuntimeError(text))
    assert told == "RuntimeError: C++ compile error; g++: fatal error: no such file"
    assert len(plugins.describe(RuntimeError("x " * 2000))) < 700
