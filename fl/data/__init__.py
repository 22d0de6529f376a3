"""From raw files to arrays, and from arrays to who holds which sample."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol
from urllib.parse import urlparse
from urllib.request import url2pathname

from fl.base.errors import DataError
from fl.base.files import sha256
from fl.base.folders import path_of
from fl.data.contents import content
from fl.data.download import Source, fetch
from fl.data.lock import Lock
from fl.data.prepared import DESCRIPTION, Prepared, Writer


class Dataset(Protocol):
    """A data set: a frozen dataclass whose fields are its config keys, and its reader.

    Its size and shape are known before anything is read, so that a config can be checked. A data
    set may also have:

    - ``complete``, a field that is true by default, of published sets: what is read is held to the
      published sizes. ``complete: false`` reads a subset in the same format, which has files and
      sizes of its own.
    - ``tokens``, of sets of tokens: how many different ones there are.
    - ``path``, a field of a user's own set: the file or folder that it reads where it lies.
    - ``files``: all files that it reads, if these are more than ``path``.
    - ``published_splits``: the names of the splits in which its samples are published. A config
      that asks for another one is refused. A data set without this attribute is asked when it is
      partitioned.
    - ``task``: the name of what it is for, see `fl.api.task`; ``classification`` without it.
    - ``modalities``: the kinds of input that it has of every sample, if there are several, see
      `fl.data.modality.Modality`. The first of them is ``x``. A client holds all of them, or one,
      as the partition says.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    sources: ClassVar[tuple[Source, ...]]

    @property
    def size(self) -> int | None:
        """How many samples there are; None of a subset, which tells when it is read."""

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


@dataclasses.dataclass(frozen=True)
class Supply:
    """Where the raw files of a data set come from, and what they are held to.

    Attributes:
        origin: See `fetch`.
        lock: The checksums of files whose publisher states none.
        content: What the user's own files (`own_files`) must have in them, see `fl.data.contents`.
    """

    origin: str | None = None
    lock: Lock | None = None
    content: Mapping[str, str] = dataclasses.field(default_factory=dict)


PUBLISHED = Supply()
"""From their publishers, held to their checksums."""


def check_complete(dataset: Dataset, name: str) -> None:
    """Raise a `DataError` for a class that lacks what a data set has, see `Dataset`."""
    absent = object()
    for attribute in ("sources", "size", "shape", "classes", "natural", "read"):
        if inspect.getattr_static(dataset, attribute, absent) is absent:
            whole = "`fedloom new dataset NAME` writes a whole one"
            raise DataError(f"data set {name}: its class has no `{attribute}`; {whole}")


def raw_name(spec: Mapping[str, Any]) -> str:
    """The folder in ``data/raw`` for the files behind a data set's spec: a subset has its own."""
    return str(spec["name"]) + ("" if spec.get("complete", True) else "-subset")


def sources(dataset: Dataset) -> list[Source]:
    """The raw files of a data set; of a subset without the checksums, which are of the whole."""
    if getattr(dataset, "complete", True):
        return list(dataset.sources)
    return [dataclasses.replace(source, sha256=None) for source in dataset.sources]


def placed(source: Source, origin: str | None, raw: Path) -> Path | None:
    """Where on this machine a source is put by its user; None if it is fetched from elsewhere."""
    if origin is not None:
        remote = urlparse(origin).scheme in ("http", "https")
        return None if remote else path_of(origin) / source.name
    if source.url is None:
        return raw / source.name
    address = urlparse(source.url)
    return Path(url2pathname(address.path)) if address.scheme == "file" else None


def own_files(dataset: Dataset, origin: str | None) -> dict[str, list[Path]]:
    """What a data set reads of the user's own: its ``path``, and files at a ``file:`` address for
    which it states no checksum.

    Such files may change, so what is made of them is named by their content.

    Returns:
        The files by name.
    """
    files_by_name = {}
    path = getattr(dataset, "path", None)
    if isinstance(path, str):
        files = getattr(dataset, "files", None)
        files_by_name[path_of(path).name] = [path_of(path)] if files is None else list(files)
    for source in sources(dataset) if origin is None else ():
        here = placed(source, None, Path()) if source.url and not source.sha256 else None
        if here is not None:
            files_by_name[source.name] = [here]
    return files_by_name


def gather(dataset: Dataset, raw: str | Path, supply: Supply = PUBLISHED) -> list[Path]:
    """The raw files of a data set, fetched into ``raw`` unless they are there already.

    Raises:
        DataError: If a file cannot be had, or if one of the user's own has another content than
            ``supply`` states.
    """
    users, known = own_files(dataset, supply.origin), supply.content
    _check(known, {name: content(users[name]) for name in users if name in known})
    # What is the user's own is held to its content alone, and not to the lock.
    return [
        fetch(
            source,
            raw,
            supply.origin,
            None if source.name in users else supply.lock,
            known.get(source.name),
        )
        for source in sources(dataset)
    ]


def _check(expected: Mapping[str, str], actual: Mapping[str, str]) -> None:
    """Raise a `DataError` for the first file that is not what it was, or what it must be."""
    for name in expected.keys() & actual.keys():
        if expected[name] != actual[name]:
            raise DataError(
                f"{name}: has changed since it was planned what to do with it; start again, and"
                " what is made of it gets another name"
            )


def prepare(
    dataset: Dataset,
    name: str,
    raw: str | Path,
    folder: str | Path,
    supply: Supply = PUBLISHED,
) -> Prepared:
    """Fetch the sources of ``dataset`` into ``raw``, prepare it in ``folder``, once, and open it.

    A folder that is complete stays as it is.

    Raises:
        DataError: If the folder was made from other files than the lock says; if it is damaged; or
            if a source cannot be had.
    """
    folder = Path(folder)
    if not (folder / DESCRIPTION).exists():
        _make(dataset, name, Path(raw), folder, supply)
    prepared = Prepared.open(folder)
    _check_lock(prepared, dataset, supply)
    return prepared


def _make(dataset: Dataset, name: str, raw: Path, folder: Path, supply: Supply) -> None:
    paths = gather(dataset, raw, supply)
    known = {source.name: source.sha256 for source in sources(dataset)}
    users = own_files(dataset, supply.origin)
    contents = {path.name: known[path.name] or sha256(path) for path in paths}
    contents |= {name: content(files) for name, files in users.items() if name not in contents}
    _check(supply.content, contents)
    made_from = [{"name": name, "sha256": sha} for name, sha in contents.items()]
    try:
        with Writer(folder) as writer:
            dataset.read(raw, writer)
            _check(contents, {name: content(files) for name, files in users.items()})
            params = dataclasses.asdict(dataset)
            writer.finish({"name": name, "params": params, "sources": made_from})
    except OSError as error:
        raise DataError(f"{folder}: cannot be prepared ({error})") from error


def _check_lock(prepared: Prepared, dataset: Dataset, supply: Supply) -> None:
    if supply.lock is None:
        return
    locked = {source.name for source in sources(dataset) if not source.sha256}
    locked -= own_files(dataset, supply.origin).keys()
    made_from = {source["name"]: source["sha256"] for source in prepared.sources}
    for name in sorted(locked & made_from.keys()):
        expected = supply.lock.expected(name)
        if expected not in (None, made_from[name]):
            raise DataError(
                f"{prepared.folder}: was prepared from a {name} with sha256 {made_from[name]}, but"
                f" {supply.lock.path} says {expected}; delete the folder to prepare it again, or"
                " mend the lock file"
            )
