"""Places that a config names and where no folder can be: said before anything runs."""

from __future__ import annotations

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
        config.read_settings(folder)
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
        assert message.endswith(". Allowed: a folder, or a name for one to be made")


@pytest.mark.parametrize("text", ["x" * 300, "file"])
def test_plugins_and_sources_that_can_be_no_folder(tmp_path: Path, text: str) -> None:
    folder = planning.write_config(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").write_text("")
    place = str(tmp_path / text)
    assert "plugins.0: " in refusal(folder, plugins=[place])
    assert "sources.digits: " in refusal(folder, plugins=[], sources={"digits": place})


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
