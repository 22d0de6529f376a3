"""The tables of a report as LaTeX.

A table that is wider than the text is made smaller by LaTeX itself; one that is longer than a page
goes on in another table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from fl.report.cells import DASH, MINUS, Row, Table, transposed
from fl.report.facts import Facts

PREAMBLE = r"\usepackage{array,booktabs,graphicx}"
"""What a document needs."""
FITTED = (
    r"\providecommand{\fitted}[1]{\sbox0{#1}\ifdim\wd0>\linewidth"
    r"\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi}"
)
"""A command for a box that is made smaller if it is wider than the text."""
LINES = 36
"""Lines of a table, at most."""
BROAD = 30
"""Characters of a column of text, from which on its lines are broken."""

GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho"
TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"$\pm$",
    "×": r"$\times$",  # noqa: RUF001
    "²": "$^2$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\rightarrow$",
    "µ": r"$\mu$",
    "σ": r"$\sigma$",  # noqa: RUF001
    "τ": r"$\tau$",
    MINUS: "$-$",
    "·": r"$\cdot$",
    DASH: "--",
    "…": r"\ldots{}",
    # After the end of a row these would say how far to the next one.
    **{c: f"{{{c}}}" for c in "[]*"},
    **{c: f"\\{c}" for c in "&%$#_{}"},
    **{chr(0x3B1 + i): f"$\\{n}$" for i, n in enumerate(GREEK.split()) if n != "omicron"},
}


def document(facts: Facts, tables: Sequence[Table]) -> str:
    """All tables, under a comment that says what they need."""
    study = facts.plan.study
    head = [
        f"% {facts.plan.hash}: fedloom report {study}; needs {PREAMBLE}",
        f"% {facts.status}",
        f"{FITTED}\n",
    ]
    return "\n".join([*head, *(to_latex(table, f"{study}-{table.name}") for table in tables)])


def tex(text: str) -> str:
    """``text`` as LaTeX sets it literally, in one paragraph."""
    return "".join(TEX.get(c, c) for c in " ".join(text.split()))


def to_latex(table: Table, label: str) -> str:
    """A table environment, or several."""
    label = re.sub(r"[^\w.:+-]", "-", label, flags=re.ASCII)
    comment = f"% Table {table.number} of the page\n" if table.number else ""
    table = transposed(table)
    broad = {
        i
        for i, column in enumerate(table.columns)
        if column.text and max((len(text) for text in _column(table, i)), default=0) > BROAD
    }
    pieces = []
    for i, rows in enumerate(_pages(table.rows, broad)):
        caption = f"Continued: {table.caption}" if i else table.caption
        name = f"{label}-{i + 1}" if i else label
        pieces.append(_environment(replace(table, caption=caption, rows=rows), name, broad))
    return comment + "\n".join(pieces)


def _column(table: Table, i: int) -> Iterator[str]:
    for row in table.rows:
        if row.kind != "heading":
            yield row.cells[i - 1].full_text if i else row.head


def _pages(rows: Sequence[Row], broad: set[int]) -> Iterator[tuple[Row, ...]]:
    """The rows of each table: at most `LINES` lines, and no heading at the end."""
    page: list[Row] = []
    lines = 0
    for row in rows:
        texts = [row.head, *(cell.full_text for cell in row.cells)]
        height = max([1, *(math.ceil(len(texts[i]) / BROAD) for i in broad if i < len(texts))])
        if page and lines + height > LINES:
            heading_lines = [page.pop()] if page[-1].kind == "heading" else []
            yield tuple(page)
            page, lines = heading_lines, len(heading_lines)
        page.append(row)
        lines += height
    yield tuple(page)


def _environment(table: Table, label: str, broad: set[int]) -> str:
    note = table.full_note
    aligned = (
        rf">{{\raggedright\arraybackslash}}p{{{BROAD // 2}em}}"
        if i in broad
        else "l" if column.text else "r"
        for i, column in enumerate(table.columns)
    )  # fmt: skip
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{tex(table.caption)}}}",
            rf"\label{{tab:{label}}}",
            r"\par\smallskip\small",
            rf"\fitted{{\begin{{tabular}}{{@{{}}{''.join(aligned)}@{{}}}}",
            r"\toprule",
            " & ".join(_head(c.name, "l" if c.text else "r") for c in table.columns) + r" \\",
            r"\midrule",
            *_lines(table, broad),
            r"\bottomrule",
            r"\end{tabular}}",
            *([rf"\par\smallskip\footnotesize\raggedright {tex(note)}"] if note else []),
            r"\end{table}",
            "",
        ]
    )


def _head(name: str, side: str) -> str:
    lines = [tex(line) for line in name.split("\n")]
    stack = r" \\ ".join(lines)
    return stack if len(lines) == 1 else rf"\shortstack[{side}]{{{stack}}}"


def _lines(table: Table, broad: set[int]) -> Iterator[str]:
    n = len(table.columns)
    previous_kind = "heading"
    for row in table.rows:
        if row.kind == "heading" and row is not table.rows[0]:
            yield r"\midrule"
        if row.kind == "reference" and previous_kind != "reference":
            yield rf"\cmidrule{{1-{n}}}"
        previous_kind = row.kind
        if row.kind == "heading":
            yield rf"\multicolumn{{{n}}}{{@{{}}l}}{{\emph{{{tex(row.head)}}}}} \\"
            continue
        yield " & ".join(_texts(row, broad)) + r" \\"


def _texts(row: Row, broad: set[int]) -> Iterable[str]:
    texts = [(row.head, False), *((cell.full_text, cell.best) for cell in row.cells)]
    for i, (text, best) in enumerate(texts):
        written = tex(text)
        if i in broad:  # Its lines may be broken inside of ``dirichlet(clients=8)`` and ``a_b``.
            written = re.sub(r"(\(|=|/|,(?![ \d])|\\_)", r"\1\\allowbreak{}", written)
        yield rf"\textbf{{{written}}}" if best else written
