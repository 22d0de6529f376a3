"""Costs of methods in tables, and final values against costs: rounds, time, bytes, privacy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from fl.base import schema
from fl.base.schema import PERSONAL, StudySetting
from fl.base.units import duration, operations, size
from fl.report import figures, plots, summaries
from fl.report.cells import NOTHING, Cell, Column, Row, Table, decimal, number, spread, unit
from fl.report.facts import Facts, rows_of_setting
from fl.report.figures import Figure, Panel
from fl.report.method_tables import Record, Show, by_setting, main_table, personalisation
from fl.report.plots import series_of
from fl.report.remarks import remarks
from fl.report.summaries import KEY, PACE_SHARES, TIMED_SHARE, whole_costs

COST_KEYS = tuple(column for column in schema.COSTS if column != "seconds")

COST_COLUMNS = (Column("time of\na run"), Column("bytes of\na run"))


def pace_table(facts: Facts) -> Table | None:
    """Return rounds and time to shares of each method's final value, and of the best method's."""
    frame = _nested(facts, facts.pace)
    if frame.empty:
        return None
    timed = f"{100 * TIMED_SHARE:g} %"
    caption = (
        f"Rounds and computing time until the mean over clients reaches shares of the method's own "
        f"final value, and rounds to {timed} of the best final value in the setting. Mean ± "
        f"standard deviation over {facts.replicates}."
    )
    note = "Rounds and time of a stored model that a method starts from are included."
    if not facts.timed_curves.empty:
        note += " Computing time is that of this simulation, not of clients' devices."
    note += facts.round_note + _errors_note(facts)
    shown: dict[str, Show] = {
        f"rounds to\n{100 * share:g} %": partial(_rounds, str(share)) for share in PACE_SHARES
    }
    shown[f"computing time\nto {timed}"] = lambda row: _mean(row["seconds"], duration)
    shown[f"rounds to {timed}\nof the best"] = partial(_rounds, "best")
    return by_setting(facts, "pace", caption, frame, shown, note=note)


def costs_table(facts: Facts) -> Table | None:
    """Return costs by client and round, and the bytes of all clients to a share of final values."""
    runs_with_traffic = facts.runs[facts.runs["traffic"].notna()].drop_duplicates("run")
    runs = facts.pace.merge(
        runs_with_traffic[["run", *COST_KEYS]].astype(dict.fromkeys(COST_KEYS, "float64")), on="run"
    )
    if runs.empty:
        return None
    percent = f"{100 * TIMED_SHARE:g} %"
    shown: dict[str, Show] = {
        "down a client\nand round": lambda row: _mean(row["bytes_down"], size),
        "up a client\nand round": lambda row: _mean(row["bytes_up"], size),
        f"in total\nto {percent}": lambda row: _mean(row["bytes"], size),
        "operations a client\nand round": lambda row: _mean(row["flops"], operations),
    }
    if (runs["flops_server"] > 0).any():
        shown["operations of\nthe server\na round"] = lambda row: _mean(
            row["flops_server"], operations
        )
    shown["memory of\na client"] = lambda row: _mean(row["memory_client"], size)
    shown["state of\na client"] = lambda row: _mean(row["state_client"], size)
    shown["state of\nthe server"] = lambda row: _mean(row["state_server"], size)
    caption = (
        "Cost of a round for a participant, state kept between rounds, and bytes of all "
        f"participants, down and up, until the mean over clients is {percent} of the method's own "
        f"final value. Means over {facts.replicates}."
    )
    note = (
        "Memory: weights and states that a training step reads. Bytes are uncompressed unless an "
        "upload filter compresses them, and include those of a stored model that a method starts "
        f"from. Operations are those of matrix products and convolutions.{facts.round_note}"
        f"{_errors_note(facts)}"
    )
    if (facts.rows["split"] == schema.CLOCK).any():
        note += " What a selection asks clients for is in the total only."
    return by_setting(facts, "costs", caption, _nested(facts, runs), shown, note=note)


def _errors_note(facts: Facts) -> str:
    """Return a sentence on shares of an error, whose better values are lower; else empty."""
    if schema.rising(facts.metric):
        return ""
    return f" An error reaches {100 * TIMED_SHARE:g} % of a value v at v / {TIMED_SHARE:g}."


def _nested(facts: Facts, runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each setting and method, whose cells are lists of the values of all runs."""
    return facts.with_settings(runs).groupby(KEY, sort=False).agg(list).reset_index()


def _rounds(goal: str, row: Record) -> str:
    values: Sequence[float] = row[goal]
    finite = pd.Series(values, dtype="float64").dropna()
    deviation = f" ± {decimal(finite.std(), 1)}" if len(finite) > 1 else ""
    return _mean(values, lambda mean: decimal(mean, 1) + deviation)


def _mean(values: Sequence[float], text: Callable[[float], str]) -> str:
    """Return the mean of known values as text, with their number if some are unknown."""
    finite = pd.Series(values, dtype="float64").dropna()
    if finite.empty:
        return NOTHING
    share = f" ({len(finite)} of {len(values)} runs)" if len(finite) < len(values) else ""
    return text(float(finite.mean())) + share


def _private(facts: Facts) -> pd.DataFrame:
    """Return ``epsilon`` and the shared model's scores, a row for each method with noise.

    Scores are those of the shared model, because epsilon says nothing of clients' own models.
    ``epsilon`` and ``delta`` are the largest of the method's runs, which hold for all of them.
    """
    runs = facts.runs[facts.runs["selected"]]
    noised = facts.with_settings(runs[runs["epsilon"].notna() | runs["epsilon_lacks"].notna()])
    counts = zip(noised["participants"], noised["clients"], strict=True)
    noised = noised.assign(drawn=[f"{k} of {n}" if pd.notna(n) else NOTHING for k, n in counts])
    guarantees = noised.groupby(summaries.KEY, sort=False).agg(
        epsilon=("epsilon", "max"),
        delta=("delta", "max"),
        epsilon_lacks=("epsilon_lacks", "first"),
        drawn=("drawn", lambda texts: ", ".join(texts.unique())),
    )
    guarantees.loc[guarantees["epsilon_lacks"].notna(), ["epsilon", "delta"]] = math.nan
    frame = facts.summary.merge(guarantees.reset_index(), on=summaries.KEY)
    if frame.empty:
        return frame
    shared = personalisation(facts)[[*summaries.KEY, "before", "before_sd_seeds"]]
    frame, personal = frame.merge(shared, "left", summaries.KEY), frame["stage"] == PERSONAL
    frame["mean"] = frame["before"].where(personal, frame["mean"])
    frame["sd_seeds"] = frame["before_sd_seeds"].where(personal, frame["sd_seeds"])
    return frame


def privacy_table(facts: Facts) -> Table | None:
    """Return the table of epsilon and final values; None if no run has noise on its uploads."""
    metric, frame = facts.metric, _private(facts)
    if frame.empty:
        return None
    caption = (
        f"Client-level differential privacy (epsilon, delta) of the shared model, and its final "
        f"test {unit(metric)}: mean ± standard deviation over {facts.replicates}."
    )
    note = (
        "Each round draws its clients without replacement; neighbouring data sets differ in one "
        "exchanged client. Epsilon is the largest of a method's runs. It does not count what "
        "validation data chose, such as a grid's point or when a run stopped early."
        f"{facts.round_note}"
    )

    def value(row: Record) -> str:
        return spread(row["mean"], row["sd_seeds"], metric)

    shown: dict[str, Show] = {
        "epsilon": lambda row: _formatted(row["epsilon"], "%.3g") or str(row["epsilon_lacks"]),
        "delta": lambda row: _formatted(row["delta"], "%.2g") or NOTHING,
        "clients\na round": lambda row: row["drawn"],
        "mean": value,
    }
    return by_setting(facts, "privacy", caption, frame, shown, note=note)


def privacy_figure(facts: Facts) -> Figure | None:
    """Return the figure of final values against epsilon; None if fewer than two are known."""
    note = "Epsilon is the largest of a method's runs."
    return _figure(facts, "epsilon", "epsilon", _private(facts), note)


def bytes_figure(facts: Facts) -> Figure | None:
    """Return the figure of final values against the bytes that a client sends in a round.

    None if no method sends at most half as many as another.
    """
    frame = plots.upload_frame(facts)
    uploads = frame.loc[frame["bytes_up"] > 0, "bytes_up"]
    if uploads.empty or uploads.max() < 2 * uploads.min():
        return None
    silent = [
        facts.methods[m] for m in facts.methods if m in {*frame[frame["bytes_up"] == 0].method}
    ]
    note = f"Not drawn, as nothing is sent up: {', '.join(silent)}." if silent else ""
    return _figure(facts, "bytes_up", "bytes up a client and round", frame, note)


def _figure(
    facts: Facts, column: str, label: str, frame: pd.DataFrame, note: str = ""
) -> Figure | None:
    positive = frame[frame[column] > 0] if column in frame else frame
    if positive.empty or positive[column].nunique() < 2:
        return None

    series = series_of(facts)

    def draw(setting: StudySetting) -> Panel | None:
        points = rows_of_setting(positive, setting)
        if points.empty:
            return None
        first_runs = zip(points["method"], points[column], points["mean"], strict=True)
        points_text = "; ".join(
            f"{facts.methods[m]} {number(v, facts.metric)} at {_amount(column, x)}"
            for m, x, v in first_runs
        )
        picture = figures.against(points, series, facts.metric, column, label)
        title = facts.short_name(setting)
        return Panel(
            title, f"{title}: final test {unit(facts.metric)} by {label}: {points_text}", picture
        )

    panels = tuple(p for setting in facts.settings if (p := draw(setting)) is not None)
    caption = (
        f"Final test {unit(facts.metric)} against {label}, on a logarithmic scale: mean, and one "
        f"standard deviation over {facts.replicates}."
    )
    drawn = tuple(method for method in series.in_colour if method in set(positive["method"]))
    note = f"{note}{facts.round_note} {series.note}".strip()
    return Figure(column.replace("_", "-"), caption, panels, drawn, note=note)


def _amount(column: str, value: float) -> str:
    return size(value) if column == "bytes_up" else f"{value:.3g}"


def _formatted(value: float, text: str) -> str:
    return "" if math.isnan(value) else text % value


def overview(facts: Facts) -> Table:
    """Return the main table, over draws if there are several, with columns of costs."""
    facts = facts.merged_draws or facts
    table, cost_cells = main_table(facts), _cost_cells(facts)
    # Rows of references come after those of methods, and cost nothing.
    nothing = (Cell(""), Cell(""))
    cells = [*(cost_cells.get(method, nothing) for method in facts.methods)]
    cells += [nothing] * (len(table.rows) - len(cells))
    rows = tuple(_extended(row, added) for row, added in zip(table.rows, cells, strict=True))
    note = (
        "Costs are means over the runs of a method, with those of the runs that it starts from; "
        "bytes are those of all clients, down and up."
    )
    note = " ".join([note, *remarks(facts)])
    heads = (*table.columns, *COST_COLUMNS)
    return replace(
        table, columns=heads, rows=rows, note=f"{table.note} {note}".lstrip(), crossed=""
    )


def _extended(row: Row, added: tuple[Cell, ...]) -> Row:
    """Return a row with more cells, without links, which lead to parts of a page."""
    return replace(row, cells=(*(replace(cell, link="") for cell in row.cells), *added))


def _cost_cells(facts: Facts) -> dict[str, tuple[Cell, Cell]]:
    """Return the cells of `COST_COLUMNS` by method."""
    runs = whole_costs(facts.runs)
    mean_costs = runs.groupby("method")[["whole_seconds", "whole_bytes"]].mean()
    return {
        str(method): (
            Cell(_known(row["whole_seconds"], duration)),
            Cell(_known(row["whole_bytes"], size)),
        )
        for method, row in mean_costs.iterrows()
    }


def _known(value: float, text: Callable[[float], str]) -> str:
    return NOTHING if pd.isna(value) else text(value)
