"""What an analysis is: it reads stored runs and yields a table and figures for the report.

Its file in ``fl/analyses`` defines a dataclass with ``read(runs) -> Result``. It sees runs through
`Source` alone, so that its identity is that of its own code, its keys and the runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from torch import Tensor

    from fl.report.drawing import Picture
    from fl.simulation.simulate import Simulation

Setting = tuple[str, str, str]
"""Data set, partition and model, as the study writes them."""


class Source(Protocol):
    """A complete run of the study, at the grid point that was selected.

    method: the study's name for its entry.
    """

    @property
    def run(self) -> str:
        """Its id."""

    @property
    def method(self) -> str:
        """The study's name of its entry."""

    @property
    def setting(self) -> Setting:
        """Under what circumstances it was trained."""

    @property
    def seed(self) -> int:
        """The training seed."""

    def traces(self) -> dict[str, Tensor]:
        """See `fl.store.store.Store.traces`."""

    def weights(self) -> dict[str, Any]:
        """By stage the final variables, see `fl.simulation.simulate.Simulation.final`; for an
        analysis whose class says ``weights = True``. Where the study computes on a GPU, they are
        there.
        """

    def simulation(self) -> Simulation:
        """Its network, its data and who holds which sample, on the device of `weights`."""

    def counts(self) -> np.ndarray:
        """Training samples of every client by class, int64 [clients, classes]."""

    def domains(self) -> list[str]:
        """The domain of most of each client's training samples; empty where data have none."""


@dataclass(frozen=True)
class Panel:
    """One picture: of which setting and method it is, what it is called beside those, and what it
    shows in words.
    """

    setting: Setting
    method: str
    title: str
    alt: str
    picture: Picture


@dataclass(frozen=True)
class Result:
    """What an analysis found.

    table: its first columns are ``dataset, partition, model, method``; ``seed`` is averaged over in
    the report, and so are columns of floats, by all the others. columns: what columns of floats are
    called there. caption, figure: the sentences below the table and the pictures. notes: what was
    left out, and why.
    """

    table: pd.DataFrame
    columns: dict[str, str]
    caption: str
    panels: tuple[Panel, ...] = ()
    figure: str = ""
    notes: tuple[str, ...] = ()


def keys(source: Source) -> dict[str, Any]:
    """The columns with which every row of an analysis' table begins."""
    dataset, partition, model = source.setting
    return {
        **{"dataset": dataset, "partition": partition, "model": model},
        **{"method": source.method, "seed": source.seed},
    }


def first_seeds(runs: Sequence[Source]) -> list[Source]:
    """Of each setting and method the run of the lowest seed, in the order given."""
    found: dict[tuple[Setting, str], Source] = {}
    for run in sorted(runs, key=lambda one: one.seed):
        found.setdefault((run.setting, run.method), run)
    chosen = {run.run for run in found.values()}
    return [run for run in runs if run.run in chosen]
