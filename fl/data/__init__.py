"""From raw files to arrays, and from arrays to who holds which sample."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, ClassVar, Protocol

from fl.data.download import Source, fetch
from fl.data.prepared import DESCRIPTION, Prepared, Writer
from fl.errors import DataError
from fl.files import sha256

__all__ = ["Dataset", "load", "prepare"]


class Dataset(Protocol):
    """A data set: a frozen dataclass whose fields are its config keys, and its reader.

    Its size and shape are known before anything is read, so that a config can be checked.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    sources: ClassVar[tuple[Source, ...]]

    @property
    def size(self) -> int:
        """How many samples there are."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""

    @property
    def classes(self) -> int:
        """How many classes there are."""

    @property
    def natural(self) -> int | None:
        """How many clients it has of its own, or None."""

    def read(self, raw: Path, writer: Writer) -> None:
        """Turn the raw files in ``raw`` into arrays and a description in ``writer``."""


def prepare(dataset: Dataset, name: str, raw: str | Path, folder: str | Path) -> None:
    """Fetch the sources of ``dataset`` into ``raw`` and prepare it in ``folder``, once.

    A folder that is complete stays as it is. Raises `DataError` if it holds the same data set with
    other parameters, if it is damaged, or if a source cannot be had.
    """
    folder, params = Path(folder), dataclasses.asdict(dataset)
    if (folder / DESCRIPTION).exists():
        found = Prepared.open(folder)
        if (found.name, found.params) != (name, params):
            raise DataError(
                f"{folder}: holds {found.name} {found.params}, not {name} {params}; delete the"
                " folder or prepare into another"
            )
        return
    paths = [fetch(source, raw) for source in dataset.sources]
    sources = [{"name": path.name, "sha256": sha256(path)} for path in paths]
    try:
        with Writer(folder) as writer:
            dataset.read(Path(raw), writer)
            writer.finish({"name": name, "params": params, "sources": sources})
    except OSError as error:
        raise DataError(f"{folder}: cannot be prepared ({error})") from error


def load(name: str, root: str | Path = "data/prepared") -> Prepared:
    """Open the prepared data set ``root/name``, or the only ``root/name-<hash>`` there is.

    Raises `DataError` that lists what there is if there is none such, or more than one.
    """
    root = Path(root)
    if (root / name).is_dir():
        return Prepared.open(root / name)
    there = sorted(p.parent.name for p in root.glob(f"[!.]*/{DESCRIPTION}"))
    hashed = [n for n in there if re.fullmatch(re.escape(name) + "-[0-9a-f]{6,64}", n)]
    if len(hashed) == 1:
        return Prepared.open(root / hashed[0])
    problem = f"{len(hashed)} variants of {name!r}" if hashed else f"no data set {name!r}"
    raise DataError(f"{root}: {problem}; there is: {', '.join(there) or 'nothing'}")
