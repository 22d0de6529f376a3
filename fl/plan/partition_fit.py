"""Whether a partition can be made of a data set, checked before either exists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fl.base.errors import ConfigError, DataError, Location
from fl.base.places import expand
from fl.base.registry import entry_of
from fl.base.schema import SERVER
from fl.data import holdings

Spec = Mapping[str, Any]
"""``{"name": ..., key: value, ...}`` of a partition scheme, or of a data set."""


def holds(scheme: Spec, split: str) -> bool:
    """Whether a partition of that scheme has samples of ``val``, by which a grid's point can be
    chosen, or of ``server``, which are the server's own.
    """
    if "path" in scheme:
        return bool((holdings.brought(scheme)["split"] == split).any())
    return bool(scheme.get(split, 0))


def holds_out(scheme: Spec) -> bool:
    """Whether a partition of that scheme has clients that are held out of training."""
    if "path" in scheme:
        table = holdings.brought(scheme)
        return "unseen" in table and bool(table["unseen"].any())
    return bool(scheme.get("unseen", 0))


def clients_of(scheme: Spec, dataset: Spec) -> int | None:
    """How many clients a partition has, those held out included; None where only the data say."""
    if "path" in scheme:
        return int(holdings.brought(scheme)["client"].nunique())
    _, data = entry_of("data set", dataset)
    several = scheme.get("clients_per_domain", 0) * len(getattr(data, "domains", ()))
    return scheme.get("clients") or several or data.natural or None


def share(scheme: Spec, split: str) -> float:
    """The share of a client's samples in ``val``, ``test`` or ``server``, as far as the scheme's
    keys tell.
    """
    given = scheme.get(split, 0.0)
    return 0.0 if isinstance(given, str) else float(given)


def check_fit(scheme: Spec, dataset: Spec, location: Location) -> None:
    """Refuse at once a partition that cannot be made of that data set (`ConfigError`)."""
    _, data = entry_of("data set", dataset)
    clients, per_client = scheme.get("clients"), scheme.get("classes_per_client", 1)
    least = max(3, scheme.get("min_samples", 0))
    if clients and data.size is not None and data.size < least * clients:
        problem = f"is {clients}, too many for the {data.size} samples of {dataset['name']}"
        allowed = f"at most {data.size // least}, so that each gets {least} or more"
        raise ConfigError(location / "clients", problem, allowed)
    if clients and data.size is not None and data.size < per_client * clients:
        problem = f"is {clients}, too many for {per_client} classes each of {data.size} samples"
        allowed = f"at most {data.size // per_client}, so that a holder of a class gets a sample"
        raise ConfigError(location / "clients", problem, allowed)
    for key in ("classes_per_client", "dominant_classes"):
        if scheme.get(key, 1) > data.classes:
            problem = f"is {scheme[key]}, but {dataset['name']} has {data.classes} classes"
            raise ConfigError(location / key, problem, f"1 to {data.classes}")
    if scheme.get("test", 0.5) in (0, 1) or share(scheme, "val") + share(scheme, "test") >= 1:
        problem = f"is {scheme['test']} beside val {scheme.get('val', 0)}"
        raise ConfigError(location / "test", problem, "test > 0 and val + test < 1")
    shares = {split: share(scheme, split) for split in ("val", "test", SERVER)}
    if sum(shares.values()) >= 1:
        problem = f"is {scheme[SERVER]} beside val {shares['val']} and test {shares['test']}"
        raise ConfigError(location / SERVER, problem, "val + test + server < 1, the rest is train")
    unseen = scheme.get("unseen", 0)
    if clients and not isinstance(unseen, str) and unseen >= clients:
        problem = f"is {unseen}, but there are {clients} clients"
        raise ConfigError(location / "unseen", problem, f"a share < 1, or at most {clients - 1}")
    _check_published(scheme, dataset, getattr(data, "published_splits", None), location)
    if "clients_per_domain" in scheme and not getattr(data, "domains", ()):
        raise ConfigError(location, f"{dataset['name']} has no domains", "a data set that has")
    if scheme["name"] == "natural" and not data.natural:
        allowed = "another scheme, or a data set that has"
        raise ConfigError(location, f"{dataset['name']} has no clients of its own", allowed)
    if "path" in scheme:
        expand(scheme["path"], location / "path")  # What is wrong with it is said with its place.
        try:
            table = holdings.brought(scheme)
            holdings.check_columns(table, scheme["path"])
            size = table["sample"].max() + 1 if data.size is None else data.size
            holdings.validate(table, np.broadcast_to(0, size), source=scheme["path"])
        except DataError as error:
            raise ConfigError(location / "path", str(error)) from None


def _check_published(
    scheme: Spec, dataset: Spec, splits: tuple[str, ...] | None, location: Location
) -> None:
    """Refuse a published split that a data set does not have, or that leaves nothing to train on.

    splits: those that it has; None: nobody knows before it is read.
    """
    asked = [key for key in ("val", "test", "unseen") if scheme.get(key) == "published"]
    for key in asked:
        wanted = "train" if key == "unseen" else key
        if splits is not None and wanted not in splits:
            problem = f"is published, but {dataset['name']} has no published {wanted} split"
            raise ConfigError(location / key, problem, "a number, or a data set that has one")
    if splits and not {*splits} - {*asked}:
        problem = f"is published, as are all samples of {dataset['name']}: none is left to train on"
        raise ConfigError(location / asked[-1], problem, "a number, or another data set")
