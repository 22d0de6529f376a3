"""The tables of a report as LaTeX, for papers of one or two columns.

Letters have 8 points. If a table fits, it is set in one column of a two-column page, else in both.
If it is wider or longer than the page, it continues in another table. Widths are sums of the widths
of characters in Computer Modern. If a paper's text is narrower than two columns, LaTeX makes a
table smaller.

pandas' Styler, siunitx and tabularray were looked at: all of them leave to the writer where a table
that is too wide is cut, which is what the widths are for. Columns of numbers can be siunitx's.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from fl.report.cells import DASH, MINUS, Row, Table, transposed
from fl.report.facts import Facts

PREAMBLE = r"\usepackage{array,booktabs,graphicx}"
"""Packages that a document needs."""
SIUNITX = r"\usepackage{siunitx}"
"""The package that columns of siunitx need, version 3 of it."""
FITTED = (
    r"\providecommand{\fitted}[1]{\sbox0{#1}\ifdim\wd0>\linewidth"
    r"\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi}"
)
"""A command for a box that is made smaller if it is wider than the text."""
UNICODE = r"\providecommand{\onlyunicode}[2]{\ifdefined\Umathchar#1\else#2\fi}"
"""A command for a character that LuaTeX and XeTeX can set, and what pdfTeX sets in its place."""
LINES = 36
"""Largest number of lines of a table."""
BROAD = 30
"""Number of characters of a text column from which its lines are broken."""
SIZE = 8.0
"""Size of letters in points."""
GAP = 6.0
"""Points between two columns of a table."""
COLUMN_WIDTH, PAGE_WIDTH = 238.0, 500.0
"""Points of a column and of a page of two columns: less than in classes of IEEE, ACM and ICML."""
THIN_SPACE = "\N{THIN SPACE}"
WIDTHS = {"0123456789": 0.535, "il.,:;'|! jtfr()[]/-": 0.38, "mwMW%±@": 0.95, THIN_SPACE: 0.2}
"""Widths of characters, as shares of `SIZE`."""
OTHER_WIDTH = 0.56
"""Width of other lower-case letters."""
UPPER_WIDTH = 0.78
"""Width of upper-case letters."""
BOLD = 1.15
"""Factor of the width of bold text."""

GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho"
TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",  # `\textquotedbl` needs the fonts of T1.
    "±": r"$\pm$",
    THIN_SPACE: r"\,",
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
    # After the end of a row, LaTeX would read these as the distance to the next row.
    **{c: f"{{{c}}}" for c in "[]*"},
    **{c: f"\\{c}" for c in "&%$#_{}"},
    **{chr(0x3B1 + i): f"$\\{n}$" for i, n in enumerate(GREEK.split()) if n != "omicron"},
}


SET_BY_PDFTEX = "¡¢£¥§©ª®°¶º¿ÆØßæøıŁłŒœ‐–—‘’“”†‡•€™"  # noqa: RUF001
"""Characters beside letters with accents that pdfTeX sets in the fonts that it has by itself."""
MARKS = {chr(0x300 + i) for i in (0, 1, 2, 3, 4, 6, 7, 8, 10, 11, 12, 39)}
"""Marks, as Unicode combines them with letters, of the accents that these fonts have."""


def document(facts: Facts, tables: Sequence[Table]) -> str:
    """Return all tables, under a comment with what they need."""
    study = facts.plan.study
    return "\n".join(
        [_head_lines(facts), *(to_latex(table, f"{study}-{table.name}") for table in tables)]
    )


def documents(facts: Facts, tables: Sequence[Table], siunitx: bool = False) -> dict[str, str]:
    """Return each table by its name, as a file that a paper can read by itself.

    Args:
        facts: The study.
        tables: The tables.
        siunitx: Whether columns of numbers are those of siunitx.
    """
    study = facts.plan.study
    return {
        table.name: f"{_head_lines(facts, siunitx)}\n"
        f"{to_latex(table, f'{study}-{table.name}', siunitx)}"
        for table in tables
    }


def _head_lines(facts: Facts, siunitx: bool = False) -> str:
    """Return the lines at the beginning of a file: what it needs, and the state of the runs."""
    needed = PREAMBLE
    if siunitx:
        needed += f"{SIUNITX} (version 3; without uncertainty-mode=separate it prints 81.2(4))"
    return (
        f"% {facts.plan.hash}: fedloom report {facts.plan.study}; needs {needed}\n"
        f"% {facts.status}\n{FITTED}\n{UNICODE}\n"
    )


def tex(text: str) -> str:
    """Return a text for LaTeX, with special characters escaped, in one paragraph."""
    composed = unicodedata.normalize("NFC", " ".join(text.split()))
    return "".join(map(_tex_character, _set_close(composed)))


def _tex_character(character: str) -> str:
    """Return a character for LaTeX; what pdfTeX cannot set, such as an emoji, as its number too."""
    if character in TEX:
        return TEX[character]
    letter, *marks = list(unicodedata.normalize("NFD", character))
    is_known = character.isascii() or character in SET_BY_PDFTEX
    if is_known or (letter.isascii() and len(marks) == 1 and marks[0] in MARKS):
        return character
    return rf"\onlyunicode{{{character}}}{{U+{ord(character):04X}}}"


def _set_close(text: str) -> str:
    """Return a text with thin spaces around the sign of a deviation between numbers."""
    return re.sub(r"(?<=\d) ± (?=\d)", f"{THIN_SPACE}±{THIN_SPACE}", text)


def to_latex(table: Table, label: str, siunitx: bool = False) -> str:
    """Return a table environment, or several for a large table.

    Args:
        table: The table.
        label: Its label, after ``tab:``.
        siunitx: Whether columns of numbers are columns ``S`` of siunitx.
    """
    label = re.sub(r"[^\w.:+-]", "-", label, flags=re.ASCII)
    comment = f"% Table {table.number} of the page\n" if table.number else ""
    table = transposed(table)
    methods = replace(table, rows=tuple(row for row in table.rows if row.kind == "method"))
    broad = {
        i
        for i, column in enumerate(table.columns)
        if column.text and max((len(text) for text in _column(methods, i)), default=0) > BROAD
    }
    widths = [_column_width(table, i, broad) for i in range(len(table.columns))]
    # Heads of references are broken if only they make a table wider than a column.
    narrow = _column_width(methods, 0, broad)
    breaks = sum(widths) > COLUMN_WIDTH >= narrow + sum(widths[1:])
    if breaks:
        widths[0] = COLUMN_WIDTH - sum(widths[1:])
    slices = [
        (rows, [0, *numbers])
        for rows in _pages(table.rows, broad)
        for numbers in _page_columns(widths)
    ]
    pieces = []
    for i, (rows, numbers) in enumerate(slices):
        caption = f"Continued: {table.caption}" if i else table.caption
        name = f"{label}-{i + 1}" if i else label
        sliced = _with_columns(replace(table, caption=caption, rows=rows), numbers)
        width = sum(widths[number] for number in numbers)
        kind = "table" if width < COLUMN_WIDTH + 0.01 else "table*"  # Sums are rounded.
        broad_here = {place for place, number in enumerate(numbers) if number in broad}
        head_width = widths[0] if breaks else None
        pieces.append(_environment(sliced, name, broad_here, kind, head_width, siunitx))
    return comment + "\n".join(pieces)


def _with_columns(table: Table, numbers: Sequence[int]) -> Table:
    """Return a table with some of its columns, of which the first one has the number 0."""
    rows = tuple(
        replace(row, cells=tuple(row.cells[i - 1] for i in numbers[1:] if i <= len(row.cells)))
        for row in table.rows
    )
    return replace(table, columns=tuple(table.columns[i] for i in numbers), rows=rows)


def _page_columns(widths: Sequence[float]) -> Iterator[list[int]]:
    """Yield the numbers of the columns of each table, after the first column of all of them."""
    numbers: list[int] = []
    total = widths[0]
    for i, width in enumerate(widths[1:], 1):
        if numbers and total + width > PAGE_WIDTH:
            yield numbers
            numbers, total = [], widths[0]
        numbers.append(i)
        total += width
    yield numbers


def _column_width(table: Table, i: int, broad: set[int]) -> float:
    """Return the width in points of a column with the gap before it."""
    if i in broad:
        return BROAD / 2 * 1.07 * SIZE + GAP  # An em of 8 points has 8.5.
    cells = [_text_width(line) for line in _name_lines(table.columns[i].name)]
    cells += [_text_width(text) for text in _column(table, i)]
    cells += [
        BOLD * _text_width(row.cells[i - 1].full_text)
        for row in table.rows
        if 0 < i <= len(row.cells) and row.cells[i - 1].best
    ]
    return max(cells) + (GAP if i else 0)


def _text_width(text: str) -> float:
    """Return the width of a text in points."""
    shares = (
        next((share for group, share in WIDTHS.items() if character in group), None)
        or (UPPER_WIDTH if character.isupper() else OTHER_WIDTH)
        for character in _set_close(text)
    )
    return SIZE * sum(shares)


def _column(table: Table, i: int) -> Iterator[str]:
    for row in table.rows:
        if row.kind != "heading":
            yield row.cells[i - 1].full_text if i else row.head


def _pages(rows: Sequence[Row], broad: set[int]) -> Iterator[tuple[Row, ...]]:
    """Yield the rows of each table: at most `LINES` lines, each group below its heading."""
    page: list[Row] = []
    lines, heading = 0, list[Row]()
    for row in rows:
        if row.kind == "heading":
            heading = [row]
        texts = [row.head, *(cell.full_text for cell in row.cells)]
        height = max([1, *(math.ceil(len(texts[i]) / BROAD) for i in broad if i < len(texts))])
        if page and lines + height > LINES:
            if page[-1].kind == "heading":
                page.pop()
            yield tuple(page)
            page = [] if row.kind == "heading" else [*heading]
            lines = len(page)
        page.append(row)
        lines += height
    yield tuple(page)


NUMBER = re.compile(rf"([+{MINUS}]?)([\d,]+)(?:\.(\d+))?(?: ± ([\d,]+(?:\.\d+)?))?")
"""A number as tables have it, with its deviation: sign, digits before and after the point."""


def _number_format(texts: Iterable[str]) -> str:
    """Return the ``table-format`` of siunitx for a column; empty if it has no numbers."""
    numbers = [match for match in map(NUMBER.fullmatch, texts) if match]
    if not numbers:
        return ""
    decimals = max(len(match[3] or "") for match in numbers)
    signs = {match[1] for match in numbers}
    sign = "+" if "+" in signs else "-" if MINUS in signs else ""
    text = f"{sign}{max(len(match[2].replace(',', '')) for match in numbers)}"
    text += f".{decimals}" if decimals else ""
    deviations = [re.sub(r"[.,]", "", match[4]).lstrip("0") for match in numbers if match[4]]
    return f"{text}({max(1, *map(len, deviations))})" if deviations else text


def _siunitx(text: str, best: bool) -> str:
    """Return a cell of a column of siunitx: a number as it is read there, else a text in braces."""
    if not NUMBER.fullmatch(text):
        return rf"{{\bfseries {tex(text)}}}" if best else f"{{{tex(text)}}}"
    plain = text.replace(MINUS, "-").replace(",", "").replace("±", r"\pm")
    return rf"\bfseries {plain}" if best else plain


def _environment(
    table: Table,
    label: str,
    broad: set[int],
    kind: str,
    head_width: float | None,
    siunitx: bool,
) -> str:
    note = table.full_note
    formats = {
        i: written
        for i, column in enumerate(table.columns)
        if siunitx and not column.text and (written := _number_format(_column(table, i)))
    }
    aligned = (
        rf">{{\raggedright\arraybackslash}}p{{{BROAD // 2}em}}"
        if i in broad
        else rf"S[table-format={formats[i]}]" if i in formats else "l" if column.text else "r"
        for i, column in enumerate(table.columns)
    )  # fmt: skip
    heads = [_head(c.name, "l" if c.text else "r") for c in table.columns]
    heads = [f"{{{head}}}" if i in formats else head for i, head in enumerate(heads)]
    # The first two options are what bold numbers need.
    options = "mode=text,reset-text-series=false"
    options += ",uncertainty-mode=separate,retain-zero-uncertainty=true"
    return "\n".join(
        [
            rf"\begin{{{kind}}}",
            r"\centering",
            rf"\caption{{{tex(table.caption)}}}",
            rf"\label{{tab:{label}}}",
            rf"\par\smallskip\fontsize{{{SIZE:g}}}{{9.5}}\selectfont",
            rf"\setlength{{\tabcolsep}}{{{GAP / 2:g}pt}}",
            *([rf"\sisetup{{{options}}}"] if formats else []),
            rf"\fitted{{\begin{{tabular}}{{@{{}}{''.join(aligned)}@{{}}}}",
            r"\toprule",
            " & ".join(heads) + r" \\",
            r"\midrule",
            *_lines(table, broad, head_width, {*formats}),
            r"\bottomrule",
            r"\end{tabular}}",
            *([rf"\par\smallskip\raggedright {tex(note)}\par"] if note else []),
            rf"\end{{{kind}}}",
            "",
        ]
    )


def _name_lines(name: str) -> list[str]:
    """Return the lines of a column's name; one of many characters is broken at its dots too."""
    return [
        piece
        for line in name.split("\n")
        for piece in (line.split(" · ") if len(line) > BROAD // 2 else [line])
    ]


def _head(name: str, side: str) -> str:
    lines = [tex(line) for line in _name_lines(name)]
    stack = r" \\ ".join(lines)
    return stack if len(lines) == 1 else rf"\shortstack[{side}]{{{stack}}}"


def _lines(
    table: Table, broad: set[int], head_width: float | None, numeric: set[int]
) -> Iterator[str]:
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
        head, *cells = _texts(row, broad, numeric)
        if row.kind == "reference" and head_width is not None:
            head = rf"\parbox[t]{{{head_width:.0f}pt}}{{\raggedright {head}\strut}}"
        yield " & ".join([head, *cells]) + r" \\"


def _texts(row: Row, broad: set[int], numeric: set[int]) -> Iterable[str]:
    texts = [(row.head, False), *((cell.full_text, cell.best) for cell in row.cells)]
    for i, (text, best) in enumerate(texts):
        if i in numeric:
            yield _siunitx(text, best)
            continue
        written = tex(text)
        if i in broad:  # Its lines may be broken inside of ``dirichlet(clients=8)`` and ``a_b``.
            written = re.sub(r"(\(|=|/|,(?![ \d])|\\_)", r"\1\\allowbreak{}", written)
        yield rf"\textbf{{{written}}}" if best else written
