"""From raw files to arrays, and from arrays to who holds which sample.

Making what runs read, once: prepared data sets and partitions, each under its identity.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol
from urllib.parse import urlparse
from urllib.request import url2pathname

from fl.api.task import DEFAULT, Task
from fl.base import registry
from fl.base.errors import DataError, Location
from fl.base.folders import path_of
from fl.base.registry import Component, component_of
from fl.data.download import Source
from fl.data.inputs import Modality
from fl.data.prepared import Writer


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
      `fl.data.inputs.Modality`. The first of them is ``x``. A client holds all of them, or one,
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


def check_dataset_class(dataset: Dataset, name: str) -> None:
    """Raise a `DataError` for a class that lacks what a data set has, see `Dataset`."""
    absent = object()
    for attribute in ("sources", "size", "shape", "classes", "natural", "read"):
        if inspect.getattr_static(dataset, attribute, absent) is absent:
            whole = "`fedloom new dataset NAME` writes a whole one"
            raise DataError(f"data set {name}: its class has no `{attribute}`; {whole}")


def raw_folder_name(spec: Mapping[str, Any]) -> str:
    """The folder in ``data/raw`` for the files behind a data set's spec: a subset has its own."""
    return str(spec["name"]) + ("" if spec.get("complete", True) else "-subset")


def raw_sources(dataset: Dataset) -> list[Source]:
    """The raw files of a data set; of a subset without the checksums, which are of the whole."""
    if getattr(dataset, "complete", True):
        return list(dataset.sources)
    return [dataclasses.replace(source, sha256=None) for source in dataset.sources]


def local_path(source: Source, origin: str | None, raw: Path) -> Path | None:
    """Where on this machine a source is put by its user; None if it is fetched from elsewhere."""
    if origin is not None:
        remote = urlparse(origin).scheme in ("http", "https")
        return None if remote else path_of(origin) / source.name
    if source.url is None:
        return raw / source.name
    address = urlparse(source.url)
    return Path(url2pathname(address.path)) if address.scheme == "file" else None


def own_files_by_name(dataset: Dataset, origin: str | None) -> dict[str, list[Path]]:
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
    for source in raw_sources(dataset) if origin is None else ():
        here = local_path(source, None, Path()) if source.url and not source.sha256 else None
        if here is not None:
            files_by_name[source.name] = [here]
    return files_by_name


Spec = Mapping[str, Any]
"""``{"name": ..., key: value, ...}`` of a data set or a partition scheme.

That of a data set which is read from files of the user's own has their ``content``
(`fl.plan.components`).
"""


def task_component(dataset: Spec) -> Component:
    """The registry's entry for the task that a data set says it has; it imports torch."""
    return registry.find("task", task_name(dataset), Location(dataset["name"]) / "task")


def task_name(dataset: Spec) -> str:
    """The name of a data set's task."""
    name: str = getattr(component_of("data set", dataset)[1], "task", DEFAULT)
    return name


def task_of(dataset: Spec) -> Task:
    """The task of a data set."""
    task: Task = task_component(dataset).instantiate({})
    return task


def modalities_of(dataset: Spec) -> tuple[Modality, ...]:
    """The kinds of input that a data set has of every sample; none, where there is but one."""
    kinds: tuple[Modality, ...] = getattr(component_of("data set", dataset)[1], "modalities", ())
    return kinds
