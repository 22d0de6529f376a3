"""A study is found by the name of its file, in any folder of ``config/studies``."""

from __future__ import annotations

from pathlib import Path

import planning
import pytest
import yaml

from fl.base.errors import ConfigError, Location
from fl.plan import config, plan, plan_files, study_files

ASKED = Location("config/config.yaml", "studies")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A config folder with the study ``tiny``."""
    return planning.write_config(tmp_path)


def write(folder: Path, name: str) -> Path:
    path = folder / "studies" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(planning.STUDY))
    return path


def test_a_study_is_found_directly_and_in_a_folder(folder: Path) -> None:
    below = write(folder, "smith/table-1")
    direct = folder / "studies" / "tiny.yaml"
    assert study_files.files(folder) == {"table-1": below, "tiny": direct}
    assert study_files.file(folder, "table-1") == below
    assert study_files.file(folder, "tiny") == direct


def test_a_folder_names_no_run(folder: Path) -> None:
    before = plan.make(folder, ["tiny"]).bundles.keys()
    (folder / "studies" / "smith").mkdir()
    (folder / "studies" / "tiny.yaml").rename(folder / "studies" / "smith" / "tiny.yaml")
    assert plan.make(folder, ["tiny"]).bundles.keys() == before


def test_two_files_of_one_name_are_refused_and_both_named(folder: Path) -> None:
    first, second = write(folder, "jones/tiny"), folder / "studies" / "tiny.yaml"
    for look_up in (study_files.files, lambda folder: study_files.file(folder, "tiny")):
        with pytest.raises(ConfigError) as caught:
            look_up(folder)
        assert str(first) in str(caught.value) and str(second) in str(caught.value)


def test_an_unknown_name_is_answered_with_names_from_all_folders(folder: Path) -> None:
    write(folder, "smith/smith-table-1")
    with pytest.raises(ConfigError) as caught:
        config.read_study(folder, "smith-table-2", ASKED)
    assert "smith-table-1" in str(caught.value)


def test_copies_in_hidden_folders_are_no_studies(folder: Path) -> None:
    write(folder, ".ipynb_checkpoints/tiny")
    write(folder, ".ipynb_checkpoints/tiny-checkpoint")
    assert [*study_files.files(folder)] == ["tiny"]
    assert study_files.file(folder, "tiny") == folder / "studies" / "tiny.yaml"


def test_a_plan_follows_its_own_study_and_no_other(folder: Path) -> None:
    own, other = write(folder, "smith/own"), write(folder, "smith/other")
    settings = config.read_settings(folder)
    before = plan_files.fingerprint(folder, ["own"], settings)
    other.write_text(other.read_text() + "# edited\n")
    assert plan_files.fingerprint(folder, ["own"], settings) == before
    own.write_text(own.read_text() + "# edited\n")
    assert plan_files.fingerprint(folder, ["own"], settings) != before
