"""What an analysis is: it reads stored runs and gives a table and figures for the report.

Its file in ``fl/analyses`` defines a dataclass with ``read(runs) -> Result``. It sees runs through
`Source` alone, so that its own code, its keys and the runs are its identity.

What it cannot read is refused before training, if it says so: its class has ``traces``, the names
of those that it reads, or a method ``check(shape, clients)``, which raises `FedloomError` for
samples of that shape, or so many clients (None where only the data say).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fl.base.schema import StudySetting

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from torch import Tensor

    from fl.api.trees import Tree
    from fl.blocks.plotting import Picture
    from fl.engine.simulation import Simulation


class Source(Protocol):
    """A complete run of the study, at the grid point that was selected."""

    @property
    def run(self) -> str:
        """Its id."""

    @property
    def method(self) -> str:
        """Name of the entry in the study."""

    @property
    def setting(self) -> StudySetting:
        """The data set, partition and model of its training."""

    @property
    def seed(self) -> int:
        """The training seed."""

    def traces(self) -> dict[str, Tensor]:
        """See `fl.store.store.Store.traces`."""

    def weights(self) -> Tree:
        """By stage, the final variables, see `fl.engine.simulation.Simulation.final_weights`.

        For an analysis whose class says ``weights = True``. They are on a GPU where the study
        computes on one.
        """

    def simulation(self) -> Simulation:
        """Its network, its data and who holds which sample, on the device of `weights`."""

    def counts(self) -> np.ndarray:
        """Training samples of every client by class, int64 [clients, classes]."""

    def domains(self) -> list[str]:
        """By client, the domain of most of its training samples; empty if data have no domains."""


@dataclass(frozen=True)
class Panel:
    """One picture.

    Attributes:
        setting, method: What it is a picture of.
        title: What it is called beside the others of that setting and method.
        alt: What it shows, in words.
    """

    setting: StudySetting
    method: str
    title: str
    alt: str
    picture: Picture


@dataclass(frozen=True)
class Result:
    """The table, figures and notes of an analysis.

    Attributes:
        table: Its first columns are ``dataset, partition, model, method``. In the report, columns
            of floats are means over ``seed``, for equal values of all other columns.
        columns: What the report calls columns of floats.
        caption, figure: The sentences with the table and with the pictures, at most 40 words each.
        note: What else a careful reader of the table needs.
        notes: What was left out, and why.
    """

    table: pd.DataFrame
    columns: dict[str, str]
    caption: str
    panels: tuple[Panel, ...] = ()
    figure: str = ""
    note: str = ""
    notes: tuple[str, ...] = ()


TableRow = dict[str, str | int | float]
"""A row of an analysis's table."""


def keys(source: Source) -> TableRow:
    """The columns with which every row of an analysis's table begins."""
    dataset, partition, model = source.setting
    return {
        "dataset": dataset,
        "partition": partition,
        "model": model,
        "method": source.method,
        "seed": source.seed,
    }


def first_seeds(runs: Sequence[Source]) -> list[Source]:
    """For each setting and method the run with the lowest seed, in the order given."""
    first: dict[tuple[StudySetting, str], Source] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        first.setdefault((run.setting, run.method), run)
    chosen = {run.run for run in first.values()}
    return [run for run in runs if run.run in chosen]


def with_traces(
    runs: Sequence[Source], *names: str
) -> tuple[list[tuple[Source, dict[str, Tensor]]], tuple[str, ...]]:
    """Return the runs that have all of some traces, and notes on those that do not.

    Returns:
        Each run with its traces, and a note that names the methods of the other runs, if any.
    """
    traced: list[tuple[Source, dict[str, Tensor]]] = []
    missing_methods: dict[str, None] = {}
    for run in runs:
        traces = run.traces()
        if set(names) <= set(traces):
            traced.append((run, traces))
        else:
            missing_methods[run.method] = None
    problem = f"no trace{'s' if len(names) > 1 else ''} {', '.join(names)}"
    return traced, (f"{problem}: {', '.join(missing_methods)}",) if missing_methods else ()


def tabled(runs: Sequence[Source], rows: Sequence[TableRow], *columns: str) -> pd.DataFrame:
    """Return rows that begin with the `keys` of a run as a table, which may be empty."""
    import pandas as pd

    return pd.DataFrame(rows, columns=[*(keys(runs[0]) if runs else ()), *columns])
