"""Markdown and LaTeX from the same tables as the page."""

from __future__ import annotations

import re

from fl.report.cells import DASH, MINUS, Cell, Table

TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    MINUS: "$-$",
    "·": r"$\cdot$",
    DASH: "--",
    "…": r"\ldots{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}


def tex(text: str) -> str:
    """``text`` as LaTeX sets it literally."""
    return "".join(TEX.get(c, c) for c in text)


def markdown(text: str) -> str:
    """``text`` as Markdown shows it literally, in a table cell too."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", text).replace("\n", "<br>")


def _plain(cell: Cell) -> str:
    return f"{cell.text} ({cell.remark})" if cell.remark else cell.text


def to_markdown(table: Table) -> str:
    """A pipe table under its caption."""
    columns = (table.corner, *table.columns)
    left = 1 + table.text
    rules = [":---" if i < left else "---:" for i in range(len(columns))]
    lines = [markdown(table.caption), "", _pipes([markdown(c) for c in columns]), _pipes(rules)]
    for group in table.groups:
        if group.heading:
            empty = [""] * len(table.columns)
            lines.append(_pipes([f"*{markdown(group.heading)}*", *empty]))
        for row in group.rows:
            cells = [
                f"**{markdown(_plain(c))}**" if c.best else markdown(_plain(c)) for c in row.cells
            ]
            lines.append(_pipes([markdown(row.head.text), *cells]))
    return "\n".join(lines) + "\n"


def _pipes(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def to_latex(table: Table, label: str) -> str:
    """A ``booktabs`` table environment."""
    width = len(table.columns) + 1
    head = [tex(table.corner), *(_stacked(column) for column in table.columns)]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{tex(table.caption)}}}",
        rf"\label{{tab:{label}}}",
        rf"\begin{{tabular}}{{{'l' * (1 + table.text)}{'r' * (width - 1 - table.text)}}}",
        r"\toprule",
        " & ".join(head) + r" \\",
    ]
    for group in table.groups:
        lines.append(r"\midrule")
        if group.heading:
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{\emph{{{tex(group.heading)}}}}} \\")
        ruled = False
        for row in group.rows:
            if row.reference and not ruled:
                lines.append(rf"\cmidrule{{1-{width}}}")
                ruled = True
            cells = [
                rf"\textbf{{{tex(_plain(c))}}}" if c.best else tex(_plain(c)) for c in row.cells
            ]
            lines.append(" & ".join([tex(row.head.text), *cells]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _stacked(column: str) -> str:
    lines = [tex(line) for line in column.split("\n")]
    stack = r" \\ ".join(lines)
    return lines[0] if len(lines) == 1 else rf"\shortstack[r]{{{stack}}}"
