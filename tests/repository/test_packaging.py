"""The conda recipe and the site's pages and links agree with the package."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

from fl.runner import environment
from tools import site

ROOT = Path(__file__).resolve().parents[2]

CONDA_NAMES = {
    "torch": "pytorch",
    "snakemake": "snakemake-minimal",
    "matplotlib": "matplotlib-base",
}


def test_the_conda_recipe_has_the_version_and_the_ranges_of_the_package() -> None:
    recipe = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert recipe["context"]["version"] == environment.VERSION
    ranges = [*project["dependencies"], *project["optional-dependencies"]["workflow"]]
    pairs = [re.fullmatch(r"([\w-]+)(.*)", text).groups() for text in ranges]  # type: ignore[union-attr]
    wanted = [f"{CONDA_NAMES.get(name, name)} {versions}" for name, versions in pairs]
    assert recipe["requirements"]["run"] == [f"python {project['requires-python']}", *wanted]


def test_every_link_of_the_site_leads_to_a_file(tmp_path: Path) -> None:
    site.write(tmp_path / "site")
    pages = tmp_path / "site" / "pages"
    dead = [
        (page.name, match[1])
        for page in pages.glob("*.md")
        for match in site.LOCAL_LINK.finditer(site.CODE_BLOCK.sub("", page.read_text()))
        if match[1] and not (pages / match[1]).is_file()
    ]
    assert not dead


def test_the_navigation_has_every_page_once(tmp_path: Path) -> None:
    tabs = site.navigation(site.page_names())
    placed = re.findall(r"[\w-]+\.(?:md|ipynb)", str(tabs))
    assert sorted(placed) == sorted(site.page_names().values())
