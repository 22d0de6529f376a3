"""Shakespeare's roles as clients: which character follows 80 others.

S. Caldas, S. M. K. Duddu, P. Wu, T. Li, J. Konečný, H. B. McMahan, V. Smith and A. Talwalkar. LEAF:
A Benchmark for Federated Settings. 2018. arXiv:1812.01097; the task: B. McMahan, E. Moore, D.
Ramage, S. Hampson and B. Agüera y Arcas. Communication-Efficient Learning of Deep Networks from
Decentralized Data. AISTATS 2017.

Licence: the text is in the public domain; World Library's notice in this edition forbids commercial
distribution of it.

Source: The Complete Works of William Shakespeare, Project Gutenberg's number 100, in the edition of
1994 that LEAF reads (``100.txt`` in ``1994-01-100.zip``). Later editions, ``pg100.txt`` of today
among them, are laid out otherwise and are refused. Project Gutenberg has moved the file before; if
the address fails, put the zip in a folder of your own and name that under ``sources:``.

What the reader does is LEAF's preprocessing from the raw text. A play begins at a line that says
"by William Shakespeare", from the second such line on (the first are the sonnets), and ends at line
124,196 at the latest. A role speaks from "  NAME. " on, and goes on in lines that are indented by
four; The Comedy of Errors is not indented. A role is a client of its own in each play; one of up to
two lines is left out, and so is a play of a single role. A role's lines are joined by blanks, runs
of which become one; every 80 characters in a row are an input and the next character is the label.
Characters are numbered as in LEAF's alphabet of 80; any other becomes its last, as LEAF's
indexing by -1 has it.

Clients are sorted by name and their samples are in the order of the text. There is no published
split: LEAF draws one at random from each role's samples, as the partition `natural` does. Windows
overlap, so a test sample shares characters with training samples, in LEAF as here.

``complete`` holds the text to LEAF's 1,129 roles and 4,226,158 samples, before roles of fewer than
``min_samples`` are left out. FedProx's 143 roles and 517,106 samples are a random subset of its
authors'. The alphabet and the rules were read off LEAF's and FedProx's preprocessing.

Beside the arrays that it maps, preparing files of the full size needs some 80 MB at most.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np

from fl.base.errors import DataError
from fl.base.fields import Count
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers.archives import read_member
from fl.data.readers.texts import ALPHABET, encode_characters
from fl.data.readers.validation import check_sizes, clients_with_min_samples

LENGTH = 80
LAST_LINE = 124_195
"""The last line of the plays, from 0 and without the first line of the file."""
ROLES, SAMPLES = 1_129, 4_226_158
"""Numbers of LEAF before roles are left out."""
BYLINE, UNINDENTED_PLAY = "by William Shakespeare", "THE COMEDY OF ERRORS"

Lines = dict[str, list[str]]
"""Lines of each role of a play."""


@dataclass(frozen=True)
class Shakespeare:
    """Sequences of 80 characters, and the next character as class.

    Attributes:
        min_samples: Least number of samples of a role; others are left out.
        complete: Check the text against LEAF's sizes; false reads a subset.
    """

    min_samples: Count = 3
    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (
        Source("1994-01-100.zip", "https://www.gutenberg.org/files/100/old/old/1994-01-100.zip"),
    )
    shape: ClassVar[tuple[int, ...]] = (LENGTH,)
    classes: ClassVar[int] = len(ALPHABET)
    tokens: ClassVar[int] = len(ALPHABET)
    natural_clients: ClassVar[int | None] = ROLES
    published_splits: ClassVar[tuple[str, ...]] = ()

    @property
    def size(self) -> int | None:
        """Number of samples before roles are left out, or None for a subset."""
        return SAMPLES if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[samples, 80]``, y int64 and client int32 ``[samples]``."""
        path = raw / self.sources[0].name
        lines_by_role = read_roles(
            read_member(path, "100.txt").read().decode("utf-8", "replace"), path
        )
        published = (ROLES, SAMPLES, "LEAF") if self.complete else None
        write_windows(writer, lines_by_role, path, self.min_samples, published)


def write_windows(
    writer: Writer,
    lines_by_role: Lines,
    path: Path,
    min_samples: int,
    published: tuple[int, int, str] | None,
    step: int = 1,
) -> dict[str, int]:
    """Write x uint8 ``[samples, 80]``, y int64 and client int32 ``[samples]``, by role.

    Args:
        writer: Where the arrays go.
        lines_by_role: Lines of each role.
        path: The file, for errors.
        min_samples: Least number of samples of a role; others are left out.
        published: Numbers of roles and of samples before roles are left out, and their source;
            None without a check.
        step: Characters between the beginnings of two samples.

    Returns:
        The number of samples of each role that is not left out, in the order of clients.
    """
    characters_by_role = {role: encode_lines(lines_by_role[role]) for role in sorted(lines_by_role)}
    sizes = {
        role: -(-(len(text) - LENGTH) // step)
        for role, text in characters_by_role.items()
        if len(text) > LENGTH
    }
    if published:
        roles, samples, source = published
        check_sizes({"text": len(sizes)}, {"text": roles}, str(path), source, "roles")
        check_sizes({"text": sum(sizes.values())}, {"text": samples}, str(path), source)
    sizes = {role: sizes[role] for role in clients_with_min_samples(sizes, min_samples, str(path))}
    x = writer.create("x", (sum(sizes.values()), LENGTH), np.uint8)
    y, first = np.empty(len(x), np.int64), 0
    for role in sizes:
        windows = np.lib.stride_tricks.sliding_window_view(characters_by_role[role], LENGTH + 1)
        windows = windows[::step]
        rows = slice(first, first := first + len(windows))
        x[rows], y[rows] = windows[:, :LENGTH], windows[:, LENGTH]
    writer.save("y", y)
    clients = np.arange(len(sizes), dtype=np.int32)
    writer.save("client", np.repeat(clients, [*sizes.values()]))
    writer.describe(list(ALPHABET), normalisation=None)
    return sizes


def read_roles(text: str, path: Path) -> Lines:
    """Return the lines of each role, by ``PLAY_ROLE``."""
    spoken: Lines = {}
    for title, play in read_plays(text, path):
        for role, lines in play.items():
            if len(play) > 1 and len(lines) > 2:
                name = re.sub(r"\W+", "_", f"{title}_{role}".replace(" ", "_"))
                spoken.setdefault(name, []).extend(lines)
    if not spoken:
        problem = "it contains no role. Allowed: the edition of 1994, which has indented roles"
        raise DataError(f"{path}: {problem}")
    return spoken


def read_plays(text: str, path: Path, last: int = LAST_LINE) -> list[tuple[str, Lines]]:
    """Return the title of each play and the lines of its roles."""
    lines = text.splitlines()[1 : last + 2]
    starts = [i for i, line in enumerate(lines) if BYLINE in line][1:]
    borders = pairwise([*starts, len(lines)])
    titled = [(_title(lines, start), start, end) for start, end in borders]
    return [(title, _read_play(lines[start + 1 : end], title)) for title, start, end in titled]


def _title(lines: list[str], byline: int) -> str:
    """Return the nearest text above the line before the byline of a play."""
    above = (lines[byline - back].strip() for back in range(2, min(byline, 7) + 1))
    return next(filter(None, above), "")


def _read_play(lines: list[str], title: str) -> Lines:
    indented = title != UNINDENTED_PLAY
    cue = re.compile(("  " if indented else "") + r"([a-zA-Z][a-zA-Z ]*)\. (.*)")
    spoken: Lines = {}
    role = ""
    for line in lines:
        if match := cue.match(line):
            role, words = match[1].upper(), match[2]
            if not indented and role.startswith("ACT "):
                role = ""
            else:
                spoken.setdefault(role, []).append(words)
        elif role and not indented and line.startswith("<"):
            role = ""
        elif role and (not indented or line.startswith("    ")):
            spoken[role].append(line[4:] if indented else line)
    return spoken


def encode_lines(lines: list[str]) -> np.ndarray:
    """Return the lines of a role as one row of characters, uint8 [characters]."""
    return encode_characters(re.sub(" +", " ", "".join(f"{line} " for line in lines)))
