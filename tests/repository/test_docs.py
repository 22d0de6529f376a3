"""The documents name everything that there is, and the examples in them are valid."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from fl.api.training import Training
from fl.base import fields, identity, registry
from fl.base.errors import Where
from fl.data.scheme import Common
from fl.plan import plan
from fl.plan.config import Best, Cells, Execution, Settings, Study

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MANUAL = (ROOT / "config" / "README.md").read_text()


@pytest.mark.parametrize("name", registry.names("method"))
def test_readme_lists_every_method(name):
    assert re.search(rf"^\| `{name}` \|", README, flags=re.M)


@pytest.mark.parametrize("kind", ["data set", "model"])
def test_readme_names_every_data_set_and_model(kind):
    missing = [name for name in registry.names(kind) if f"`{name}`" not in README]
    assert not missing


@pytest.mark.parametrize("name", registry.names("partition scheme"))
def test_manual_lists_every_partition_scheme_with_its_keys(name):
    [line] = re.findall(rf"^\| `{name}` \|.*", MANUAL, flags=re.M)
    entry = registry.find("partition scheme", name, Where(""))
    common = set(fields.fields(Common))
    assert all(f"`{key}`" in line for key in set(fields.fields(entry.target)) - common)
    assert all(f"`{key}`" in MANUAL for key in common)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in ("term", "alteration", "analysis") for name in registry.names(kind)],
)
def test_manual_lists_what_a_study_can_add_with_its_keys(kind, name):
    [line] = re.findall(rf"^\| `{name}` \|.*", MANUAL, flags=re.M)
    entry = registry.find(kind, name, Where(""))
    assert all(f"`{key}`" in line for key in fields.fields(entry.target))


@pytest.mark.parametrize("record", [Settings, Execution, Study, Cells, Best])
def test_manual_shows_every_key(record):
    missing = [k for k in fields.fields(record) if not re.search(rf"^\s*(- )?{k}:", MANUAL, re.M)]
    assert not missing


def test_manual_lists_every_file_that_only_a_person_can_get():
    sets = registry.entries("data set")
    files = [s.name for entry in sets for s in entry.target.sources if s.url is None]
    assert not [name for name in files if f"`{name}`" not in MANUAL]


def test_manual_lists_every_training_key():
    missing = [key for key in fields.fields(Training) if f"`{key}`" not in MANUAL]
    assert not missing


def test_examples_of_the_manual_are_yaml_with_known_keys():
    blocks = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", MANUAL, re.S)]
    settings, study = blocks
    assert set(settings) == set(fields.fields(Settings))
    assert set(study) == set(fields.fields(Study))


def test_the_study_of_the_manual_can_be_planned(tmp_path):
    [_, study] = re.findall(r"```yaml\n(.*?)```", MANUAL, re.S)
    shutil.copytree(ROOT / "config", tmp_path / "config")
    (tmp_path / "config" / "studies" / "manual.yaml").write_text(study)
    runs = plan.make(tmp_path / "config", ["manual"]).studies["manual"]["runs"]
    assert {run["method"] for run in runs} == {*yaml.safe_load(study)["methods"]}


def test_links_between_documents_lead_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "config" / "README.md"):
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_every_entry_of_the_ledger_is_backed_by_a_test_that_exists():
    for entry in yaml.safe_load(identity.LEDGER.read_text()) or []:
        path, _, name = entry["test"].partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(), entry
        assert (ROOT / entry["root"]).exists(), entry


def exists(name: str) -> bool:
    """Whether ``fl.data.split.NOBODY`` or ``fl/data/split.py`` names what there is."""
    if "/" in name:
        return (ROOT / name).exists()
    place = ROOT
    for at, part in enumerate(parts := name.split(".")):
        if (place / part).is_dir():
            place = place / part
            continue
        file, rest = place / f"{part}.py", parts[at + 1 :]
        if not file.exists():
            file, rest = place / "__init__.py", parts[at:]
        return not rest or re.search(rf"\b{rest[0]}\b", file.read_text()) is not None
    return True


def test_a_name_of_what_is_gone_is_told():
    assert exists("fl.data.split.NOBODY") and exists("fl/data/split.py") and exists("fl.data")
    assert not exists("fl.references") and not exists("fl/split.py")


def test_modules_and_files_that_pages_and_docstrings_name_exist():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "config" / "README.md"]
    pages.remove(ROOT / "CHANGELOG.md")
    named = re.compile(r"`(fl(?:\.\w+)+|fl(?:/\w+)+(?:\.py|/)?)`")
    for page in (*pages, *(ROOT / "fl").rglob("*.py")):
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
        gone = [name for name in named.findall(text) if not exists(name)]
        assert not gone, f"{page}: {gone}"
