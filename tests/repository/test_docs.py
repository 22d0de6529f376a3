"""The documents are current, lead somewhere, and their examples are valid."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import planning
import pytest
import yaml

from fl.base import fields, plugins
from fl.cli import catalogue
from fl.plan import plan
from fl.plan.config import Settings, Study
from tools import reference

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "config" / "README.md"
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), GUIDE]
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


@pytest.mark.parametrize("name", reference.PAGES)
def test_generated_pages_are_current_and_say_what_every_key_means(name: str) -> None:
    text = reference.PAGES[name]()
    assert (ROOT / name).read_text() == text, "python -m tools.reference"
    assert catalogue.NO_TEXT not in text


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
    (tmp_path / "cifar").mkdir()
    shutil.copytree(ROOT / "config", tmp_path / "config")
    settings, study = {}, {**BASE, **example}
    if not example.keys() <= fields.fields(Study).keys():
        settings, study = example, BASE
    write(tmp_path / "config/config.yaml", {"studies": ["quickstart"], **settings})
    write(tmp_path / "config/studies/example.yaml", study)
    runs = plan.make(tmp_path / "config", ["example"]).studies["example"].runs
    assert {run.method for run in runs} == set(study["methods"])


def write(path: Path, values: dict) -> None:
    path.write_text(yaml.safe_dump(values, sort_keys=False))


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


def test_a_row_on_the_authors_code_names_repository_and_commit() -> None:
    page = (ROOT / "docs" / "guide" / "peers.md").read_text()
    programs = re.findall(r"^\| (\S+) \(\S+/\S+, .*\) \| [0-9a-f]{7,8} \|$", page, re.MULTILINE)
    rows = re.findall(r"^\| [^|]+ \| ([^|]*authors[^|]*) \|", page, re.MULTILINE)
    assert len(rows) > 15 and {"PFLlib", "HtFLlib"} <= {*programs}
    for program in rows:
        is_known = program.removesuffix(" (the authors)") in programs
        assert is_known or re.search(r"authors \(\S+/\S+, [0-9a-f]{7,8}\)$", program), program


def exists(name: str) -> bool:
    """Whether ``fl.data.splitting.NOBODY`` or ``fl/data/split.py`` names what there is."""
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
    assert (
        exists("fl.data.splitting.NOBODY") and not exists("fl.references") and not exists("fl/a.py")
    )
    named = re.compile(r"`(fl(?:\.\w+)+|fl(?:/\w+)+(?:\.py|/)?)`")
    gone = [
        (str(page), name)
        for page in (*PAGES, *(ROOT / "fl").rglob("*.py"))
        if page.name != "CHANGELOG.md"
        for name in named.findall(re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M))
        if not exists(name)
    ]
    assert not gone


def test_the_table_of_changes_names_files_and_what_they_define() -> None:
    page = (ROOT / "docs" / "guide" / "architecture.md").read_text()
    table = page.split("## Where do I change ...?")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    for row in rows:
        paths = re.findall(r"`(fl/[\w/.]+)`", row)
        assert paths and all((ROOT / path).exists() for path in paths), row
        for names, path in re.findall(r"((?:`\w+`(?:, | and )?)+) in `(fl/[\w/.]+)`", row):
            for name in re.findall(r"`(\w+)`", names):
                defined = rf"^ *(?:def|class) {name}\b"
                assert re.search(defined, (ROOT / path).read_text(), re.M), f"{name} in {path}"


YOUR_DATA = ROOT / "docs" / "guide" / "your-data.md"


def test_every_block_on_data_of_ones_own_ends_in_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Other tests have plugins of the page's name.
    monkeypatch.setattr(plugins, "_roots", {plugins.FL.name: plugins.FL})
    for name in [name for name in sys.modules if name.partition(".")[0] == "mylab"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    shutil.copytree(ROOT / "config", tmp_path / "config")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", YOUR_DATA.read_text(), re.S | re.M)
    assert len(blocks) == YOUR_DATA.read_text().count("```") // 2
    names = types.ModuleType("docs_your_data")
    monkeypatch.setitem(sys.modules, names.__name__, names)
    tables: list[pd.DataFrame] = []
    for number, (language, block) in enumerate(blocks):
        if language == "sh":
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            subprocess.run(["bash", "-euc", block], check=True, env={**os.environ, "PATH": path})
        elif language == "text":
            continue  # Lines of a program that is not installed.
        elif file := re.match(r"# (mylab/\S+)\n", block):
            assert Path(file[1]).is_file(), "what `fedloom new` has written is replaced"
            Path(file[1]).write_text(block)
        else:
            exec(compile(block, f"your-data.md, block {number}", "exec"), vars(names))
        if number == 0:
            monkeypatch.setattr(names, "compare", recorded(names.compare, tables))
    assert len(tables) == 16
    for table in tables:
        assert table["method"].tolist() == ["local", "fedavg"]
        assert table["mean"].between(0, 1).all()
        assert table["n_missing"].eq(0).all()
    clients = [int(table["n_clients"].iloc[0]) for table in tables]
    assert clients == [5, 5, 4, 4, 4, 4, 2, 2, 4, 4, 4, 4, 4, 4, 4, 4]


def recorded(compare: Callable[..., pd.DataFrame], tables: list[pd.DataFrame]) -> Any:
    """The page's function, whose tables are kept."""
    return lambda *given: tables.append(compare(*given))


def test_the_line_of_yaml_on_data_of_ones_own_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    [line] = re.findall(r"^`(datasets: .*)`\.$", YOUR_DATA.read_text(), re.M)
    rows = {"target": [0, 1] * 30, "hospital": [1, 2, 3] * 20, "radius": range(60)}
    pd.DataFrame(rows).to_csv("biopsies.csv", index=False)
    config = planning.write_config(tmp_path, yaml.safe_load(line) | {"partitions": ["natural"]})
    assert len(plan.make(config).bundles) == 1
