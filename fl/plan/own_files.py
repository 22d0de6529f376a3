"""The user's own files behind the data sets of a plan: their content is part of a run's identity.

There are three kinds: a file that a data set reads in place, one that it has a ``file:`` address
of, and, where no checksum is stated, one that a person puts into ``data/raw`` or into a folder of
``sources:``. The last kind is also compared with the lock file, whose entry is used when the file
is gone. Downloaded files are not considered here: before a download their content is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from fl import data
from fl.base import registry
from fl.base.errors import ConfigError, DataError
from fl.base.files import is_folder
from fl.base.places import path_of
from fl.data import materials
from fl.data.contents import Contents, stamp
from fl.data.lock import Lock
from fl.plan.components import Choice


@dataclass(frozen=True)
class Own:
    """Finds the user's own files behind data sets.

    Attributes:
        root: The config's ``data``.
        origins: The config's ``sources``.
        lock: The lock file.
        watched: By path, the `stamp` of each file before it was read.
    """

    root: Path = Path("data")
    origins: Mapping[str, str] = field(default_factory=dict)
    lock: Path = Path("config/sources.lock.json")
    watched: dict[str, str] = field(default_factory=dict)

    def settle(self, choice: Choice) -> Choice:
        """A data set with the content of its files, and its id.

        Raises:
            ConfigError: For files of which no data set can be made, and for one that differs from
                the lock file.
        """
        _, dataset = registry.entry_of("data set", choice.spec)
        origin = self.origins.get(choice.entry.name)
        try:
            data.check_complete(dataset, choice.entry.name)
            users = data.own_files(dataset, origin)
            self._watch(dataset, users)
            contents = Contents(self.root)
            contents_by_name = {
                name: contents.of(files)
                for name, files in users.items()
                if all(path.exists() for path in files)
            }
            # A table is looked through for these, and tells what is wrong with it.
            _ = dataset.shape, dataset.classes, dataset.size, dataset.natural
        except DataError as error:
            raise ConfigError(choice.at, str(error)) from None
        locked = self._held(choice, dataset, origin)
        settled = replace(choice, content={**contents_by_name, **locked})
        return replace(settled, id=materials.dataset_id(settled.spec))

    def _held(self, choice: Choice, dataset: data.Dataset, origin: str | None) -> dict[str, str]:
        """The content of the files that the lock file has an entry for."""
        name, users, by_source = data.raw_name(choice.spec), data.own_files(dataset, origin), {}
        lock = Lock(self.lock, name)
        for source in data.sources(dataset):
            path = data.placed(source, origin, self.root / "raw" / name)
            if path is None or source.sha256 or source.name in users:
                continue
            self.watched.setdefault(str(path), stamp([path]))
            expected = lock.expected(source.name)
            there = Contents(self.root).of([path]) if path.is_file() else expected
            if expected and there != expected:
                problem = f"{path} has sha256 {there}, but {self.lock} says {expected}"
                allowed = f"that file; or, if the new one is meant, no {source.name} in the lock"
                raise ConfigError(choice.at, problem, f"{allowed}: runs on it get other names")
            if there:
                by_source[source.name] = there
        return by_source

    def _watch(self, dataset: data.Dataset, users: Mapping[str, list[Path]]) -> None:
        """Record the `stamp` of files; a folder, to which files may be added, counts as one."""
        path = getattr(dataset, "path", None)
        folder = path_of(path) if isinstance(path, str) and is_folder(path_of(path)) else None
        files = [file for paths in users.values() for file in paths]
        outside = [file for file in files if not folder or not file.is_relative_to(folder)]
        for place in (folder, *outside):
            if place is not None:
                self.watched.setdefault(str(place), stamp([place]))
