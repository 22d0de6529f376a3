"""Tables as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fl.report.cells import Table


def markdown(text: str) -> str:
    """``text`` as Markdown shows it literally, in a table cell too."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", text).replace("\n", "<br>")


def to_markdown(table: Table) -> str:
    """A pipe table under its caption."""
    number = f"**Table {table.number}.** " if table.number else ""
    lines = [
        number + markdown(table.whole_caption),
        "",
        _pipes(markdown(column.name) for column in table.columns),
        _pipes(":---" if column.text else "---:" for column in table.columns),
    ]
    for row in table.rows:
        if row.kind == "heading":
            lines.append(_pipes([f"*{markdown(row.head)}*", *[""] * (len(table.columns) - 1)]))
            continue
        texts = [(markdown(cell.whole), cell.best) for cell in row.cells]
        lines.append(_pipes([markdown(row.head), *(f"**{t}**" if b else t for t, b in texts)]))
    return "\n".join(lines) + "\n"


def _pipes(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
