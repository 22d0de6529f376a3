"""Data sets made of generated files in the formats of the published ones."""

from __future__ import annotations

import sources
from sources.server import serving

from fl.base import registry
from fl.base.errors import Location
from fl.data import preparation
from fl.data.download import Lock
from fl.data.preparation import SourcePolicy
from fl.data.prepared import Prepared

WHERE = Location("the test")


def make(name, **params):
    """The data set as a config with these keys makes it."""
    entry = registry.find("data set", name, WHERE)
    return entry.instantiate(entry.parse({**sources.generator(name).PARAMS, **params}, WHERE))


def prepared(name, files, root, **params):
    """The set, fetched from a server of ``files`` and prepared below ``root``."""
    root.mkdir(exist_ok=True)
    with serving(files) as server:
        supply = SourcePolicy(server.url, Lock(root / "lock.json", name))
        preparation.prepare_folder(
            make(name, **params), name, root / "raw", root / "prepared", supply
        )
    return Prepared.open(root / "prepared")


def written(name, folder, **broken):
    folder.mkdir(exist_ok=True)
    return sources.generator(name).write(folder, **broken)
