"""The figures of a report as files: SVG and PDF, in a folder of the study's name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from fl.base import files
from fl.report.cells import Table
from fl.report.figures import Figure


def write(folder: Path, blocks: Iterable[Table | Figure]) -> None:
    """Write every panel of every figure into ``folder``; figures of older reports go."""
    found: dict[str, bytes] = {}
    for figure in (block for block in blocks if isinstance(block, Figure)):
        for panel in figure.panels:
            plain = figure.name if len(figure.panels) == 1 else f"{figure.name}-{slug(panel.title)}"
            name, n = plain, 1
            while f"{name}.pdf" in found:
                n += 1
                name = f"{plain}-{n}"
            found |= {f"{name}{end}": content for end, content in panel.picture.files().items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in found.items():
        files.write_bytes(folder / name, content)
    for path in folder.iterdir():
        if path.suffix in (".pdf", ".svg") and path.name not in found:
            path.unlink()


def slug(title: str) -> str:
    """``title`` as a part of a file's name that LaTeX takes too: ``alpha-0_1``."""
    plain = re.sub(r"(?<=\d)\.(?=\d)", "_", title)
    return re.sub(r"[^\w+-]+", "-", plain, flags=re.ASCII).strip("-")[:80]
