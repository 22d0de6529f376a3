"""What a notebook shows of results: pages in a frame, tables with all their columns."""

from __future__ import annotations

import html
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

FRAME_HEIGHT = 640
"""Height in pixels of the frame of a page."""


class Page(type(Path())):  # type: ignore[misc]
    """Path of an HTML page, which a notebook shows in a frame."""

    def _repr_html_(self) -> str | None:
        if not self.is_file():
            return None
        content = html.escape(self.read_text(encoding="utf-8"))
        style = f"width: 100%; height: {FRAME_HEIGHT}px; border: 1px solid #ddd"
        return (
            f'<iframe srcdoc="{content}" style="{style}" title="{html.escape(str(self))}"></iframe>'
        )


class WideTable(pd.DataFrame):
    """Table that is printed with all its columns, in blocks if they are wider than the terminal."""

    @property
    def _constructor(self) -> Callable[..., pd.DataFrame]:
        return WideTable

    def __repr__(self) -> str:
        width = shutil.get_terminal_size((120, 24)).columns
        rows: Any = pd.get_option("display.max_rows")
        return self.to_string(line_width=width, max_rows=rows)

    def _repr_html_(self) -> str:
        rows: Any = pd.get_option("display.max_rows")
        return self.to_html(max_rows=rows)
