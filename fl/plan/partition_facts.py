"""What is known of a partition before it is made: by the keys of its scheme, or the user's table.

Whether a partition can be made of a data set is checked before either exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from fl.base.errors import ConfigError, ConfigProblems, DataError, Location
from fl.base.folders import expand
from fl.base.schema import SERVER
from fl.base.specs import ComponentSpec
from fl.data import partition_table
from fl.data.scheme import ALL, PART_SHARES, Part


@dataclass(frozen=True)
class PartitionFacts:
    """A partition scheme and the data set that it is for.

    Attributes:
        scheme: Spec of the partition scheme.
        dataset: The data set.
        dataset_name: Name of the data set, for messages.
    """

    scheme: ComponentSpec
    dataset: Any
    dataset_name: str

    @cached_property
    def own_table(self) -> pd.DataFrame | None:
        """The user's own table at the ``path`` of the scheme; None for another scheme.

        Raises:
            DataError: If the file cannot be read.
        """
        if "path" not in self.scheme:
            return None
        return partition_table.read_users_table(self.scheme)

    def has_split(self, split: str) -> bool:
        """Whether there are samples of a split.

        Args:
            split: ``val``, by which a grid's point can be chosen, or ``server``, the server's
                samples.
        """
        if self.own_table is not None:
            return bool((self.own_table["split"] == split).any())
        return bool(self.scheme.get(split, 0))

    @property
    def has_unseen_clients(self) -> bool:
        """Whether clients are held out of training."""
        if self.own_table is not None:
            return "unseen" in self.own_table and bool(self.own_table["unseen"].any())
        return bool(self.scheme.get("unseen", 0))

    @property
    def part(self) -> Part:
        """The part of the clients of which the partition consists."""
        part: Part = self.scheme.get("part", ALL)
        return part

    @property
    def clients(self) -> int | None:
        """The number of clients, unseen ones included; None if only the data can tell.

        That is so for a part of natural clients, as whole blocks of them are drawn.
        """
        count = self.clients_of_all_parts
        if self.part == ALL or count is None:
            return count
        if self.scheme["name"] == "natural":
            return None
        tuning = (count + 1) // 3  # The number nearest to a third.
        return tuning if self.part == "tuning" else count - tuning

    @property
    def clients_of_all_parts(self) -> int | None:
        """The number of clients among which a part is drawn; None if only the data can tell."""
        if self.own_table is not None:
            return int(self.own_table["client"].nunique())
        domains = getattr(self.dataset, "domains", ())
        in_domains = self.scheme.get("clients_per_domain", 0) * len(domains)
        return self.scheme.get("clients") or in_domains or self.dataset.natural_clients or None

    @property
    def part_share(self) -> float:
        """The share of the part, about, in all clients."""
        return PART_SHARES[self.part]

    def share(self, split: str) -> float:
        """Return the share of a client's samples in a split, 0 if the scheme's keys do not tell."""
        share = self.scheme.get(split, 0.0)
        return 0.0 if isinstance(share, str) else float(share)

    @property
    def note(self) -> str:
        """What a study's author should know of the user's own table; empty for nothing."""
        if self.own_table is None or self.dataset.size is None:
            return ""
        path, size = str(self.scheme["path"]), self.dataset.size
        note = partition_table.left_out_note(self.own_table, size, path)
        return note and f"{self.dataset_name}: {note}"

    def check(self, location: Location) -> None:
        """Raise `ConfigError` if the partition cannot be made, for all reasons at once."""
        problems = ConfigProblems()
        for check in (
            self._check_clients,
            self._check_part,
            self._check_newcomers,
            self._check_shares,
            self._check_published_splits,
            self._check_natural_parts,
            self._check_own_table,
        ):
            with problems.collected():
                check(location)
        problems.raise_all()

    def _check_clients(self, location: Location) -> None:
        """Raise `ConfigError` if there are too few samples or classes for so many clients."""
        scheme, data, name = self.scheme, self.dataset, self.dataset_name
        clients, per_client = scheme.get("clients"), scheme.get("classes_per_client", 1)
        fewest_samples = max(3, scheme.get("min_samples", 0))
        if clients and data.size is not None and data.size < fewest_samples * clients:
            problem = f"is {clients}, too many for the {data.size} samples of {name}"
            allowed = (
                f"at most {data.size // fewest_samples}, so that each gets {fewest_samples} or more"
            )
            raise ConfigError(location / "clients", problem, allowed)
        if clients and data.size is not None and data.size < per_client * clients:
            problem = f"is {clients}, too many for {per_client} classes each of {data.size} samples"
            allowed = (
                f"at most {data.size // per_client}, so that a holder of a class gets a sample"
            )
            raise ConfigError(location / "clients", problem, allowed)
        for key in ("classes_per_client", "dominant_classes"):
            if scheme.get(key, 1) > data.classes:
                problem = f"is {scheme[key]}, but {name} has {data.classes} classes"
                raise ConfigError(location / key, problem, f"1 to {data.classes}")

    def _check_part(self, location: Location) -> None:
        """Raise `ConfigError` for a division without parts, and for parts of one client."""
        if self.part == ALL:
            if division := self.scheme.get("division", 0):
                parts = ", ".join(part for part in PART_SHARES if part != ALL)
                problem = f"is {division}, but part is {ALL}"
                raise ConfigError(location / "division", problem, advice=f"part: {parts}")
        elif self.clients_of_all_parts == 1:
            raise ConfigError(location / "part", f"is {self.part}, but there is 1 client", ALL)

    def _check_newcomers(self, location: Location) -> None:
        """Raise `ConfigError` if no client is left to train, or if none is unseen."""
        unseen = self.scheme.get("unseen", 0)
        clients = self.clients if self.scheme.get("clients") else None
        if clients and not isinstance(unseen, str) and unseen >= clients:
            problem = f"is {unseen}, but there are {clients} clients"
            problem += "" if self.part == ALL else f" in the part {self.part}"
            raise ConfigError(
                location / "unseen", problem, f"a share < 1, or at most {clients - 1}"
            )
        limit = self.scheme.get("newcomer_samples")
        if limit is not None and not unseen:
            problem = f"is {limit}, but no client is unseen"
            raise ConfigError(location / "newcomer_samples", problem, advice="unseen: 0.2, or null")

    def _check_shares(self, location: Location) -> None:
        """Raise `ConfigError` if nothing is left to train on, or nothing to test on."""
        scheme = self.scheme
        shares = {split: self.share(split) for split in ("val", "test", SERVER)}
        if scheme.get("test", 0.5) in (0, 1) or shares["val"] + shares["test"] >= 1:
            problem = f"is {scheme['test']} beside val {scheme.get('val', 0)}"
            raise ConfigError(location / "test", problem, "test > 0 and val + test < 1")
        if sum(shares.values()) >= 1:
            problem = f"is {scheme[SERVER]} beside val {shares['val']} and test {shares['test']}"
            raise ConfigError(
                location / SERVER, problem, "val + test + server < 1, the rest is train"
            )

    def _check_published_splits(self, location: Location) -> None:
        """Raise `ConfigError` for an absent published split, or if none is left to train.

        Which splits are published may be unknown before the data set is read.
        """
        splits = getattr(self.dataset, "published_splits", None)
        followed = [key for key in ("val", "test", "unseen") if self.scheme.get(key) == "published"]
        for key in followed:
            split = "train" if key == "unseen" else key
            if splits is not None and split not in splits:
                problem = f"is published, but {self.dataset_name} has no published {split} split"
                raise ConfigError(location / key, problem, "a number, or a data set that has one")
        if splits and not {*splits} - {*followed}:
            problem = (
                f"is published, as are all samples of {self.dataset_name}: none is left to train on"
            )
            raise ConfigError(location / followed[-1], problem, "a number, or another data set")

    def _check_natural_parts(self, location: Location) -> None:
        """Raise `ConfigError` if a partition follows domains or clients that a data set lacks."""
        scheme, data, name = self.scheme, self.dataset, self.dataset_name
        if "clients_per_domain" in scheme and not getattr(data, "domains", ()):
            problem = f"{name} has no domains"
            raise ConfigError(location, problem, advice="a data set that has domains")
        if scheme["name"] == "natural" and not data.natural_clients:
            problem = f"{name} has no clients of its own"
            advice = "another scheme, or another data set"
            if hasattr(data, "path"):  # Data of the user's own can have clients.
                advice = "name the clients by `client=` (a column, or an argument of fl.arrays), "
                advice += "or choose another scheme"
            raise ConfigError(location, problem, advice=advice)

    def _check_own_table(self, location: Location) -> None:
        """Raise `ConfigError` for a user's table that is no partition of the data set."""
        if "path" not in self.scheme:
            return
        path, location = self.scheme["path"], location / "path"
        expand(path, location)  # Raises what is wrong with the path, with its location.
        try:
            table = partition_table.read_users_table(self.scheme)
            partition_table.check_columns(table, path)
            size = self.dataset.size
            size = table["sample"].max() + 1 if size is None else size
            partition_table.validate(table, np.broadcast_to(0, size), source=path)
        except DataError as error:
            raise ConfigError(location, str(error)) from None
