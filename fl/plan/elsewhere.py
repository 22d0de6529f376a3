"""Entries that run on a data set or a partition of their own, not on the study's.

Such an entry is mostly one from which others start: a model is trained on CIFAR-10, and
personalised on CIFAR-10-C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fl.base.errors import ConfigError, Where
from fl.data import materials
from fl.plan import modal_check, partition_fit
from fl.plan.components import Choice, Inputs, choice, inputs

KEYS = {"dataset": "data set", "partition": "partition scheme"}
"""The keys of an entry, and what each of them names."""


@dataclass(frozen=True)
class Site:
    """Where a run takes place: a data set, and a partition of it with its id."""

    dataset: Choice
    scheme: Choice

    @classmethod
    def of(cls, dataset: Choice, scheme: Choice) -> Site:
        """The site of a partition of a data set, of which it can be made (`ConfigError`)."""
        partition_fit.check_fit(scheme.spec, dataset.spec, scheme.at)
        return cls(dataset, replace(scheme, id=materials.partition_id(scheme.spec, dataset.id)))


@dataclass(frozen=True)
class Elsewhere:
    """What an entry names instead of the study's; None: it takes the study's."""

    dataset: Choice | None = None
    scheme: Choice | None = None

    @classmethod
    def of(
        cls, given: Mapping[str, Any], at: Where, settle: Callable[[Choice], Choice]
    ) -> Elsewhere:
        """What an entry says.

        Args:
            settle: Finds the user's own files behind a data set.

        Raises:
            ConfigError: For what is not understood, or is a grid.
        """
        named = {
            key: choice(kind, given[key], at / key) for key, kind in KEYS.items() if key in given
        }
        dataset = named.get("dataset")
        return cls(settle(dataset) if dataset else None, named.get("partition"))

    def __bool__(self) -> bool:
        """Whether it is elsewhere at all."""
        return self != Elsewhere()

    def site(self, study: Site) -> Site:
        """Where the entry runs while the study is somewhere."""
        if not self:
            return study
        return Site.of(self.dataset or study.dataset, self.scheme or study.scheme)


def check_start(start: str, before: Site, here: Site, model: Choice, at: Where) -> None:
    """Refuse (`ConfigError`) to start from a model of other inputs or classes.

    Args:
        start: The entry that is started from, which runs at ``before``.
        at: Where it is named.
    """
    if before.dataset is here.dataset:
        return
    seen_there, seen_here = _seen(before, model), _seen(here, model)
    if seen_there == seen_here:
        return
    problem = f"{start!r} is trained on {before.dataset.text}, {_told(seen_there)}"
    problem += f", but {here.dataset.text} has {_told(seen_here)}"
    raise ConfigError(
        at, problem, "an entry whose data set has as large inputs and as many classes"
    )


def _seen(site: Site, model: Choice) -> list[Inputs]:
    return inputs(site.dataset, modal_check.check(model, site.dataset, site.scheme))


def _told(kinds: list[Inputs]) -> str:
    shapes = " and ".join(
        " x ".join(map(str, kind.shape)) for inputs_seen in kinds for kind in inputs_seen.kinds
    )
    return f"inputs of {shapes} in {kinds[0].classes} classes"
