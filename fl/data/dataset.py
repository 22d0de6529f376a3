"""Interface of data sets, and the kinds of input that a sample has, of which a client may hold one.

A partition numbers clients by modality: the data set's modalities in order, and one more number for
clients that hold all of them (`modality_groups`).
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol
from urllib.parse import urlparse
from urllib.request import url2pathname

from fl.api.task import DEFAULT, Task
from fl.base import registry
from fl.base.errors import DataError, Location
from fl.base.folders import path_of
from fl.base.specs import ComponentSpec
from fl.data.download import Source
from fl.data.prepared import Writer

ANY_MODALITIES = "any"
"""Value of a model's ``modalities`` if it takes several inputs of numbers with any names."""


@dataclass(frozen=True)
class Modality:
    """One kind of input, such as photographs, captions or the readings of one sensor.

    Attributes:
        name: Name in models and messages.
        array: Name of its array in the prepared data set.
        shape: Shape of one input.
        tokens: Number of different tokens if inputs are tokens, else 0.
    """

    name: str
    array: str
    shape: tuple[int, ...]
    tokens: int = 0


def input_names(model: Any) -> tuple[str, ...]:
    """Return the names of a model's inputs; empty if it takes a single tensor."""
    names = getattr(model, "modalities", ())
    return (names,) if isinstance(names, str) else tuple(names)


def accepts_modalities(model: Any, modalities: Sequence[Modality]) -> bool:
    """Whether a model takes these modalities as its inputs."""
    accepted, names = input_names(model), {modality.name for modality in modalities}
    if accepted == (ANY_MODALITIES,):
        return len(names) > 1 and not any(modality.tokens for modality in modalities)
    return len(names) > 1 and set(accepted) == names


def modality_groups(modalities: Sequence[Modality], count: int) -> list[tuple[Modality, ...]]:
    """Return the modalities that clients hold, by the number in a partition.

    Args:
        modalities: The modalities of the data set.
        count: Number of groups: that of modalities, or one more, whose clients hold all of them.
    """
    return [*((modality,) for modality in modalities), tuple(modalities)][:count]


def group_title(group: Sequence[Modality]) -> str:
    """Return the modalities of a group as text: ``image``, ``image and text``."""
    return " and ".join(modality.name for modality in group)


class Dataset(Protocol):
    """Interface of a data set: a frozen dataclass whose fields are its config keys.

    Its size and shape are known before any file is read, so that a config can be checked. A data
    set may have further attributes:

    - ``complete``: a field of published data sets, true by default. Sizes must then equal the
      published ones. ``complete: false`` reads a subset in the same format, with files and sizes
      of its own.
    - ``tokens``: number of different tokens, if inputs are tokens.
    - ``padding``: the token that fills short texts up; the last one without this attribute. None
      if the data do not tell, and then there may be more tokens.
    - ``path``: a field of data sets that read the user's own file or folder in its location.
    - ``tokenizer_file``: the user's own tokenizer that it reads, or None.
    - ``files``: all files that it reads, if there are more than ``path``.
    - ``published_splits``: names of the splits in which samples are published. A config that asks
      for another split is refused. Without this attribute, the split is checked when the data
      set is partitioned.
    - ``task``: name of its task (`fl.api.task`); ``classification`` without it.
    - ``modalities``: the modalities of every sample, if there are several
      (`Modality`). The first one is ``x``. A client holds all of them or one,
      according to the partition.
    - ``domains``: names of the domains, if there are any.
    - ``input_reader``: how its files become inputs (`fl.data.readers.raw_inputs`), for models that
      are kept. Without it, such a model takes arrays as the data set has them.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    sources: ClassVar[tuple[Source, ...]]

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset, whose size is known when it is read."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""

    @property
    def classes(self) -> int:
        """Number of classes."""

    @property
    def natural_clients(self) -> int | None:
        """Number of natural clients, such as writers or hospitals, or None."""

    def read(self, raw: Path, writer: Writer) -> None:
        """Read the raw files in ``raw``; write arrays and a description to ``writer``."""


def check_dataset_class(dataset: Dataset, name: str) -> None:
    """Raise a `DataError` if a class lacks an attribute of `Dataset`."""
    missing = object()
    for attribute in ("sources", "size", "shape", "classes", "natural_clients", "read"):
        if inspect.getattr_static(dataset, attribute, missing) is missing:
            advice = "fedloom new dataset NAME, which writes a complete example"
            raise DataError(f"data set {name}: its class has no `{attribute}`", advice=advice)


def raw_folder_name(spec: ComponentSpec) -> str:
    """Return the name of a data set's folder in ``data/raw``; a subset has its own folder."""
    return str(spec["name"]) + ("" if spec.get("complete", True) else "-subset")


def raw_sources(dataset: Dataset) -> list[Source]:
    """Return the raw files of a data set; a subset's are without the full set's checksums."""
    if getattr(dataset, "complete", True):
        return list(dataset.sources)
    return [dataclasses.replace(source, sha256=None) for source in dataset.sources]


def local_path(source: Source, origin: str | None, raw: Path) -> Path | None:
    """Return the path where the user provides a raw file on this machine, or None."""
    if origin is not None:
        remote = urlparse(origin).scheme in ("http", "https")
        return None if remote else path_of(origin) / source.name
    if source.url is None:
        return raw / source.name
    address = urlparse(source.url)
    return Path(url2pathname(address.path)) if address.scheme == "file" else None


def own_files_by_name(dataset: Dataset, origin: str | None) -> dict[str, list[Path]]:
    """Return the user's own files that a data set reads, by name.

    These are its ``path``, its tokenizer, and files at a ``file:`` address without a checksum. Such
    files may change. Results that are computed from them are therefore named by their content.
    """
    files_by_name = {}
    path = getattr(dataset, "path", None)
    if isinstance(path, str):
        files = getattr(dataset, "files", None)
        files_by_name[path_of(path).name] = [path_of(path)] if files is None else list(files)
    tokenizer = getattr(dataset, "tokenizer_file", None)
    if tokenizer is not None:
        files_by_name[tokenizer.name] = [tokenizer]
    for source in raw_sources(dataset) if origin is None else ():
        path_on_machine = (
            local_path(source, None, Path()) if source.url and not source.sha256 else None
        )
        if path_on_machine is not None:
            files_by_name[source.name] = [path_on_machine]
    return files_by_name


def task_name(dataset: Dataset) -> str:
    """Return the name of a data set's task."""
    name: str = getattr(dataset, "task", DEFAULT)
    return name


def task_of(dataset: Dataset, dataset_name: str) -> Task:
    """Return the task of a data set; importing it imports torch.

    Args:
        dataset: The data set.
        dataset_name: Its name, for messages.
    """
    component = registry.find("task", task_name(dataset), Location(dataset_name) / "task")
    task: Task = component.instantiate({})
    return task


def modalities_of(dataset: Dataset) -> tuple[Modality, ...]:
    """Return the modalities of a data set; an empty tuple if it has one kind of input only."""
    kinds: tuple[Modality, ...] = getattr(dataset, "modalities", ())
    return kinds
