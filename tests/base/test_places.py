"""Places that a config names and where no folder can be: said before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import planning
import pytest
import yaml

from fl.base.errors import ConfigError
from fl.cli import main
from fl.plan import config


def refusal(folder: Path, **changes: object) -> str:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))
    with pytest.raises(ConfigError) as caught:
        config.settings(folder)
    return str(caught.value)


@pytest.mark.parametrize("key", ["data", "results", "store"])
def test_what_can_be_no_folder(tmp_path: Path, key: str) -> None:
    folder = planning.write_config(tmp_path)
    file, loop, lost = tmp_path / "file", tmp_path / "loop", tmp_path / "lost"
    file.write_text("")
    loop.symlink_to(loop)
    lost.symlink_to(tmp_path / "nowhere")
    for text, problem in (
        (str(file), f"but {file} is a file"),
        (str(file / "deep" / "er"), f"but {file} is a file"),
        (str(loop), "can be no folder (Too many levels of symbolic links)"),
        (str(loop / "deep"), "can be no folder (Too many levels of symbolic links)"),
        (str(lost), "can be no folder (No such file or directory)"),
        ("x" * 300, "can be no folder (File name too long)"),
    ):
        message = refusal(folder, **{key: text})
        assert f"config.yaml: {key}: " in message and problem in message, (text, message)
        assert message.endswith("; allowed: a folder, or a name for one to be made")


@pytest.mark.parametrize("text", ["x" * 300, "file"])
def test_plugins_and_sources_that_can_be_no_folder(tmp_path: Path, text: str) -> None:
    folder = planning.write_config(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").write_text("")
    place = str(tmp_path / text)
    assert "plugins.0: " in refusal(folder, plugins=[place])
    assert "sources.digits: " in refusal(folder, plugins=[], sources={"digits": place})


def test_a_hollow_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = planning.write_config(tmp_path)
    asked = ["--config", str(folder)]
    assert main.main(["plan", "--write", *asked]) == 0
    home = tmp_path / "results" / "plan"
    whole = json.loads((home / "plan.json").read_text())
    [bundle] = (home / "bundles").glob("*.json")
    for path, content in (
        (bundle, {"runs": [{}]}),
        (home / "plan.json", {**whole, "bundles": {"x": {}}}),
        (home / "plan.json", {**whole, "settings": {}}),
        (home / "plan.json", {}),
    ):
        path.write_text(json.dumps(content))
        for command in (["status"], *([["store", "gc"]] if path != bundle else [])):
            capsys.readouterr()
            assert main.main([*command, *asked]) == 1
            error = capsys.readouterr().err
            assert error.startswith(f"error: {path}: ")
            assert "python -m fl plan --write" in error
    assert main.main(["plan", "--write", *asked]) == 0
    assert main.main(["status", *asked]) == 0


@pytest.mark.parametrize(
    "command",
    [
        *(["show"], ["partition"], ["train"], ["new", "method"]),
        *(["store", "import"], ["store", "ls", "--store"], ["methods", "--config"]),
    ],
    ids=" ".join,
)
def test_a_name_that_is_longer_than_names_can_be(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = planning.write_config(tmp_path)
    asked = [*command, "x" * 300]
    assert main.main(asked if "--config" in asked else [*asked, "--config", str(folder)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and len(error.splitlines()) == 1


@pytest.mark.parametrize("key", ["results", "store"])
@pytest.mark.parametrize("kind", ["file", "lost", "long"])
def test_results_and_runs_that_can_be_in_no_folder(
    tmp_path: Path, key: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = planning.make(tmp_path).spec("fedavg")
    place = tmp_path / ("x" * 300 if kind == "long" else kind)
    if kind == "file":
        place.write_text("")
    elif kind == "lost":
        place.symlink_to(tmp_path / "nowhere")
    asked = ["train", str(spec), "--store", str(place)]
    if key == "results":
        folder = tmp_path / "config"
        refused = yaml.safe_load((folder / "config.yaml").read_text())
        (folder / "config.yaml").write_text(yaml.safe_dump({**refused, "results": str(place)}))
        asked = ["plan", "--write", "--config", str(folder)]
    assert main.main(asked) == 1
    error = capsys.readouterr().err.splitlines()
    assert "Traceback" not in "".join(error)
    assert error[-1].startswith(("error: ", "failed: "))
