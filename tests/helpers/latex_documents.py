"""Documents of LaTeX, compiled."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fl.report.latex import PREAMBLE

NEEDS_LATEX = pytest.mark.skipif(
    shutil.which("pdflatex") is None,
    reason="needs pdflatex (Debian: texlive-latex-base, texlive-latex-recommended)",
)

ONE_COLUMN = f"\\documentclass{{article}}{PREAMBLE}"


def compiled(body: str, folder: Path, head: str = ONE_COLUMN) -> str:
    """LaTeX's log of a document with nothing but these tables; it fails where LaTeX does."""
    document = f"{head}\\begin{{document}}\n{body}\\end{{document}}"
    (folder / "paper.tex").write_text(document)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    return (folder / "paper.log").read_text(errors="replace")
