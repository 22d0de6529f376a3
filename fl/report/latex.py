"""LaTeX from the same tables as the page, laid out to fit the text of an ``article``.

A table that is too wide is set with rows and columns exchanged, if it can be read so; else its
texts are broken into lines; else its columns are divided over several tables. One that is taller
than a page is a ``longtable``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path

import matplotlib
from matplotlib.ft2font import FT2Font

from fl.report.cells import DASH, MINUS, Cell, Group, Row, Table

PACKAGES = ("array", "booktabs", "longtable")
WIDTH = 345.0
"""Points: the text of LaTeX's ``article``, at its default size of 10 points."""
SIZE, GAP, LEAST = 9.0, 8.0, 42.0
"""Points: the type (``small``), between two columns, the narrowest column that breaks lines."""
SCALE = 200.0
"""The size at which type is measured: large, as small sizes are rounded to whole pixels."""
TALL, LINE, RULE = 520.0, 11.2, 7.0
"""Points: what a page holds of a table and its caption, a line of a table, a rule."""

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


def tex(text: str) -> str:
    """``text`` as LaTeX sets it literally, in one paragraph."""
    return "".join(TEX.get(c, c) for c in " ".join(text.split()))


def preamble() -> str:
    """The packages that a document needs."""
    return f"\\usepackage{{{','.join(PACKAGES)}}}"


def to_latex(table: Table, label: str) -> str:
    """A table environment, or several."""
    label = re.sub(r"[^\w.:+-]", "-", label, flags=re.ASCII)
    table = replace(table, caption=" ".join(filter(None, (table.caption, table.scope))))
    turned = table.transposed() if table.crossed else table
    tries = ((lay, way) for lay in (_natural, _broken) for way in (table, turned))
    fitting = (found for lay, way in tries if (found := lay(way)).width <= WIDTH)
    parts = list(islice(fitting, 1)) or [_broken(part) for part in _split(table)]
    number = f"% Table {table.number} of the page\n" if table.number else ""
    return number + "\n".join(
        _environment(part, label if i == 0 else f"{label}-{i + 1}") for i, part in enumerate(parts)
    )


@dataclass(frozen=True)
class _Layout:
    """A table whose columns have widths, in points; the texts of some are broken into lines."""

    table: Table
    heads: tuple[tuple[str, ...], ...]
    widths: tuple[float, ...]
    broken: frozenset[int] = frozenset()

    @property
    def width(self) -> float:
        return sum(self.widths) + GAP * (len(self.widths) - 1)


def _natural(table: Table) -> _Layout:
    """No text is broken, but for the heads over numbers."""
    heads, widths = [], []
    for i, name in enumerate((table.corner, *table.columns)):
        body = max([0.0, *(_wide(cell) for cell in _column(table, i))])
        lines = name.split("\n")
        if i and not table.holds_text(i):
            room = max([body, *(width(word) for line in lines for word in line.split())])
            lines = [part for line in lines for part in _wrapped(line, room)]
        heads.append(tuple(lines))
        widths.append(max(body, *map(width, lines)))
    return _Layout(table, tuple(heads), tuple(widths))


def _broken(table: Table) -> _Layout:
    """Texts are broken into lines where their columns would leave no room for the numbers."""
    plain = _natural(table)
    texts = [i for i in range(len(plain.widths)) if table.holds_text(i)]
    widths, broken = list(plain.widths), set()
    room = WIDTH - plain.width + sum(plain.widths[i] for i in texts)
    # The narrowest first: what one does not need is left to the others.
    for left, i in zip(
        range(len(texts), 0, -1), sorted(texts, key=widths.__getitem__), strict=True
    ):
        if widths[i] > room / left:
            widths[i] = max(room / left, _least(table, i))
            broken.add(i)
        room -= widths[i]
    return _Layout(table, plain.heads, tuple(widths), frozenset(broken))


def _least(table: Table, i: int) -> float:
    words = [w for cell in _column(table, i) for w in re.split(r"[\s(=/,_-]+", cell.text)]
    return max(LEAST, *(1.2 * width(word) for word in words))


def _split(table: Table) -> Iterator[Table]:
    """The columns of numbers dealt to as many tables as it takes, each with the texts."""
    plain = _natural(table)
    texts = [i for i in range(1, len(plain.widths)) if table.holds_text(i)]
    numbers = [i for i in range(1, len(plain.widths)) if not table.holds_text(i)]
    kept = [min(plain.widths[i], max(80.0, _least(table, i))) + GAP for i in (0, *texts)]
    room, taken = WIDTH - sum(kept) + GAP, list[int]()
    for i in numbers:
        if taken and sum(plain.widths[j] + GAP for j in (*taken, i)) > room:
            yield _part(table, texts, taken)
            table = replace(table, caption=re.sub(r"^(Continued: )?", "Continued: ", table.caption))
            taken = []
        taken.append(i)
    yield _part(table, texts, taken)


def _part(table: Table, texts: Sequence[int], taken: Sequence[int]) -> Table:
    own = sorted([*texts, *taken])
    groups = tuple(
        Group(
            g.heading, tuple(replace(r, cells=tuple(r.cells[i - 1] for i in own)) for r in g.rows)
        )
        for g in table.groups
    )
    return replace(table, columns=tuple(table.columns[i - 1] for i in own), groups=groups)


def _column(table: Table, i: int) -> list[Cell]:
    return [row.cells[i - 1] if i else row.head for row in table.rows]


def _plain(cell: Cell) -> str:
    return f"{cell.text} ({cell.remark})" if cell.remark else cell.text


def _wide(cell: Cell) -> float:
    return width(_plain(cell)) * (1.16 if cell.best else 1)


def _wrapped(text: str, room: float) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and width(longer) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


@lru_cache(maxsize=1)
def _font() -> FT2Font:
    font = FT2Font(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "cmr10.ttf"))
    font.set_size(SCALE, 72)
    return font


@lru_cache(maxsize=4096)
def width(text: str) -> float:
    """The width of ``text`` in LaTeX's own type, in points, rather too much than too little."""
    if not text:
        return 0.0
    font = _font()
    font.set_text(re.sub(r"[^ -~]", "m", text))
    # Type of nine points is drawn wider than that of ten made smaller: digits by 2.8 %.
    return 1.035 * font.get_width_height()[0] / 64 * SIZE / SCALE


def _environment(layout: _Layout, label: str) -> str:
    table = layout.table
    caption = rf"\caption{{{tex(table.caption)}}}"
    spec = f"{{@{{}}{''.join(_aligned(layout))}@{{}}}}"
    body = list(_lines(layout))
    style = rf"\setlength{{\tabcolsep}}{{{GAP / 2:g}pt}}"
    head = [r"\toprule", _head(layout), r"\midrule"]
    if _height(layout) > TALL:
        lines = [
            rf"\begingroup\small{style}",
            rf"\begin{{longtable}}{spec}",
            rf"{caption}\label{{tab:{label}}}\\",
            *head,
            r"\endfirsthead",
            *head,
            r"\endhead",
            r"\bottomrule",
            r"\endfoot",
            *body,
            r"\end{longtable}",
            r"\endgroup",
        ]
    else:
        lines = [
            r"\begin{table}",
            r"\centering",
            caption,
            rf"\label{{tab:{label}}}",
            r"\par\smallskip",
            rf"\small{style}",
            rf"\begin{{tabular}}{spec}",
            *head,
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    return "\n".join(lines) + "\n"


def _height(layout: _Layout) -> float:
    """Points: of the caption, the head, the rows, the headings of groups, and the rules."""
    table = layout.table
    lines = 1.2 * width(table.caption) / WIDTH + 2 + max(map(len, layout.heads))
    for row in table.rows:
        cells = [row.head, *row.cells]
        lines += max([1.0, *(-(-_wide(cells[i]) // layout.widths[i]) for i in layout.broken)])
    rules = 3 + len(table.groups) + sum(any(r.reference for r in g.rows) for g in table.groups)
    return LINE * (lines + sum(bool(group.heading) for group in table.groups)) + RULE * rules


def _aligned(layout: _Layout) -> Iterator[str]:
    for i, wide in enumerate(layout.widths):
        if i in layout.broken:
            yield rf">{{\raggedright\arraybackslash}}p{{{wide:.0f}pt}}"
        else:
            yield "l" if layout.table.holds_text(i) else "r"


def _head(layout: _Layout) -> str:
    stacks = []
    for i, lines in enumerate(layout.heads):
        side = "l" if layout.table.holds_text(i) else "r"
        stack = r" \\ ".join(map(tex, lines))
        stacks.append(stack if len(lines) == 1 else rf"\shortstack[{side}]{{{stack}}}")
    return " & ".join(stacks) + r" \\"


def _lines(layout: _Layout) -> Iterator[str]:
    """The rows, under the headings of their groups."""
    n = len(layout.widths)
    for i, group in enumerate(layout.table.groups):
        if i:
            yield r"\midrule"
        if group.heading:
            heading = rf"\emph{{{tex(group.heading)}}}"
            if width(group.heading) > layout.width:
                column = rf"@{{}}>{{\raggedright\arraybackslash}}p{{{layout.width:.0f}pt}}@{{}}"
                yield rf"\multicolumn{{{n}}}{{{column}}}{{{_breakable(heading)}}} \\"
            else:
                yield rf"\multicolumn{{{n}}}{{@{{}}l}}{{{heading}}} \\"
        ruled = False
        for row in group.rows:
            if row.reference and not ruled:
                yield rf"\cmidrule{{1-{n}}}"
                ruled = True
            yield _row(layout, row)


def _row(layout: _Layout, row: Row) -> str:
    texts = []
    for i, cell in enumerate((row.head, *row.cells)):
        text = tex(_plain(cell))
        text = _breakable(text) if i in layout.broken else text
        texts.append(rf"\textbf{{{text}}}" if cell.best else text)
    return " & ".join(texts) + r" \\"


def _breakable(text: str) -> str:
    """LaTeX that may be broken into lines inside of ``dirichlet(clients=8)`` and ``a_b``."""
    return re.sub(r"(\(|=|/|,(?! )|\\_)", r"\1\\allowbreak{}", text)
