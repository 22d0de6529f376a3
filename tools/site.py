"""Sources of the site: ``python -m tools.site FOLDER``, then ``mkdocs build --strict``.

All pages come into one folder, with links that fit it. Other files of the repository to which a
page links, such as a study, come into its folder ``files``. The navigation is that of
``docs/index.md``: a tab for each heading, a page for each link.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections import Counter
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]

NAME_BY_PAGE = {
    "README.md": "index.md",
    "docs/index.md": "all-pages.md",
    "config/README.md": "write-a-study.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Names in the site of pages that have others in the repository."""

REPORT_TABLES = "fl/report/templates/tables.js"
"""The script of tables that reports and the site share."""

LOCAL_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]*)(#[^)\s]*)?(?=\))")
CODE_BLOCK = re.compile(r"(^```.*?^```$)", re.M | re.S)


def page_names() -> dict[Path, str]:
    """Return the name in the site of each page of the repository, by its path.

    Raises:
        ValueError: If two pages have one name, since they come into one folder.
    """
    documents = [path for kind in ("md", "ipynb") for path in (ROOT / "docs").rglob(f"*.{kind}")]
    pages = {path: path.name for path in sorted(documents)}
    pages |= {ROOT / page: name for page, name in NAME_BY_PAGE.items()}
    if twice := [name for name, count in Counter(pages.values()).items() if count > 1]:
        raise ValueError(f"several pages are named {', '.join(twice)}")
    return pages


def site_text(page: Path, names: dict[Path, str], files: set[Path]) -> str:
    """Return the text of a page with links that fit the site.

    Args:
        page: Path of the page.
        names: Name in the site of each page.
        files: Gets the other files to which the page links.
    """

    def link(match: re.Match[str]) -> str:
        path = (page.parent / match[1]).resolve()
        anchor = match[2] or ""
        if path in names:
            return names[path] + anchor
        if path.is_relative_to(ROOT / "docs"):
            return path.relative_to(ROOT / "docs").as_posix() + anchor
        if path.is_file() and path.suffix != ".md":  # MkDocs would make a page of it.
            files.add(path)
            return f"files/{path.relative_to(ROOT).as_posix()}"
        return match[0]

    pieces = CODE_BLOCK.split(page.read_text(encoding="utf-8"))
    return "".join(
        piece if piece.startswith("```") else LOCAL_LINK.sub(link, piece) for piece in pieces
    )


def navigation(names: dict[Path, str]) -> list[object]:
    """Return the navigation of MkDocs by the headings and links of ``docs/index.md``."""
    index = ROOT / "docs" / "index.md"
    tabs: list[object] = [{"Home": "index.md"}]
    for section in index.read_text(encoding="utf-8").split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        pages: list[dict[str, str]] = []
        for label, target in re.findall(r"\[([^\]]+)\]\(([^)#\s]+)", text.replace("\n  ", " ")):
            name = names.get((index.parent / target).resolve())
            if name and name != "index.md":
                pages.append({label[:1].upper() + label[1:]: name})
        tabs.append({heading: pages})
    contribute = {"Contributing": "contributing.md", "Changes": "changelog.md"}
    contribute_pages = [{title: name} for title, name in contribute.items()]
    return [*tabs, {"Fedloom": [*contribute_pages, {"All pages": "all-pages.md"}]}]


def write(folder: Path) -> None:
    """Write the sources and the configuration of the site.

    Args:
        folder: Gets ``mkdocs.yml`` and ``pages``; what was in it goes.
    """
    shutil.rmtree(folder, ignore_errors=True)
    pages, names, files = folder / "pages", page_names(), set[Path]()
    shutil.copytree(ROOT / "docs", pages, ignore=shutil.ignore_patterns("*.md", "*.ipynb"))
    shutil.copyfile(ROOT / REPORT_TABLES, pages / "site" / "report-tables.js")
    for page, name in names.items():
        (pages / name).write_text(site_text(page, names, files), encoding="utf-8")
    for path in files:
        copy = pages / "files" / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    config = {
        "INHERIT": str(ROOT / "mkdocs.yml"),
        "docs_dir": str(pages.resolve()),
        "site_dir": str(ROOT / "site"),
        "nav": navigation(names),
    }
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m tools.site", description=__doc__)
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)
