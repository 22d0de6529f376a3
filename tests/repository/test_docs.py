"""The documents are current, lead somewhere, and their examples are valid."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml
from PIL import Image

from fl.base import fields
from fl.cli import catalogue, reference
from fl.plan import plan
from fl.plan.config import Settings, Study

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "config" / "README.md"
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), GUIDE]
EXAMPLES = [
    yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.S)
]
BASE = {
    "datasets": ["digits"],
    "partitions": [{"homogeneous": {"clients": 4}}],
    "models": ["mlp"],
    "methods": {"fedavg": None},
    "seeds": [0],
}
"""What an example that shows a part of a study is a part of."""
MOST_WORDS = {
    "README.md": 1000,
    "config/README.md": 2000,
    "docs/architecture.md": 1000,
    "docs/training-core.md": 1800,
}


@pytest.mark.parametrize("name", reference.PAGES)
def test_generated_pages_are_current_and_say_what_every_key_means(name: str) -> None:
    text = reference.PAGES[name]()
    assert (ROOT / name).read_text() == text, "python -m fl.cli.reference"
    assert catalogue.UNSAID not in text


def test_the_guide_shows_every_key_of_settings_and_of_a_study() -> None:
    shown = [set(example) for example in EXAMPLES]
    assert set(fields.fields(Settings)) in shown
    assert set(fields.fields(Study)) in shown


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: next(iter(example)))
def test_every_example_of_the_guide_is_planned(
    example: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    files_of_ones_own(tmp_path)
    shutil.copytree(ROOT / "config", tmp_path / "config")
    settings, study = {}, {**BASE, **example}
    if not example.keys() <= fields.fields(Study).keys():
        settings, study = example, BASE
    write(tmp_path / "config/config.yaml", {"studies": ["quickstart"], **settings})
    write(tmp_path / "config/studies/example.yaml", study)
    runs = plan.make(tmp_path / "config", ["example"]).studies["example"]["runs"]
    assert {run["method"] for run in runs} == set(study["methods"])


def write(path: Path, values: dict) -> None:
    path.write_text(yaml.safe_dump(values, sort_keys=False))


def files_of_ones_own(folder: Path) -> None:
    """The tables, images and mirror that examples name."""
    (folder / "cifar").mkdir()
    for label in "ab":
        (folder / "photos" / label).mkdir(parents=True)
        for i in range(8):
            Image.new("L", (8, 8), i).save(folder / "photos" / label / f"{i}.png")
    images = sorted(path.relative_to(folder) for path in folder.glob("photos/*/*"))
    labels, places = list("ab" * 8), [1] * 8 + [2] * 8
    people = {"age": range(16), "diagnosis": labels, "hospital": places}
    scans = {"file": map(str, images), "finding": labels, "site": places}
    pd.DataFrame(people).to_csv(folder / "patients.csv", index=False)
    pd.DataFrame(scans).to_csv(folder / "scans.csv", index=False)


def test_links_between_documents_lead_somewhere() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text()):
            file = page.parent / target if target else page
            assert file.exists(), f"{page}: {target}"
            assert not anchor or anchor in anchors(file), f"{page}: {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """The names that a page's headings have in links."""
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", MOST_WORDS)
def test_pages_that_everybody_reads_stay_short(name: str) -> None:
    assert len((ROOT / name).read_text().split()) <= MOST_WORDS[name]


def exists(name: str) -> bool:
    """Whether ``fl.data.split.NOBODY`` or ``fl/data/split.py`` names what there is."""
    if "/" in name:
        return (ROOT / name).exists()
    place = ROOT
    for at, part in enumerate(parts := name.split(".")):
        if (place / part).is_dir():
            place = place / part
            continue
        if (place / f"{part}.py").exists():
            files, rest = [place / f"{part}.py"], parts[at + 1 :]
        else:
            files, rest = [*place.glob("__init__.py*")], parts[at:]
        text = "".join(file.read_text() for file in files)
        return not rest or re.search(rf"\b{rest[0]}\b", text) is not None
    return True


def test_modules_and_files_that_pages_and_docstrings_name_exist() -> None:
    assert exists("fl.data.split.NOBODY") and not exists("fl.references") and not exists("fl/a.py")
    named = re.compile(r"`(fl(?:\.\w+)+|fl(?:/\w+)+(?:\.py|/)?)`")
    gone = [
        (str(page), name)
        for page in (*PAGES, *(ROOT / "fl").rglob("*.py"))
        if page.name != "CHANGELOG.md"
        for name in named.findall(re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M))
        if not exists(name)
    ]
    assert not gone
