"""Final values against what they cost: privacy, and bytes that clients send."""

from __future__ import annotations

import math

import pandas as pd

from fl.base.schema import PERSONAL, StudySetting
from fl.base.units import size
from fl.report import figures, plots, summaries
from fl.report.cells import NOTHING, Table, number, spread, unit
from fl.report.facts import Facts, at
from fl.report.figures import Figure, Panel
from fl.report.method_tables import Record, Show, by_setting, personalisation
from fl.report.ranks import series_of


def _private(facts: Facts) -> pd.DataFrame:
    """Return ``epsilon`` and the shared model's scores, a row for each method with noise.

    Scores are those of the shared model, because epsilon says nothing of clients' own models.
    ``epsilon`` and ``delta`` are the largest of the method's runs, which hold for all of them.
    """
    runs = facts.runs[facts.runs["selected"]]
    noised = facts.placed(runs[runs["epsilon"].notna() | runs["epsilon_lacks"].notna()])
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
    """Epsilon beside the final value; None where no run has noise on its uploads."""
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
        f"validation data chose, such as a grid's point or when a run stopped early.{facts.when}"
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
    """Final values against epsilon; None where fewer than two are known."""
    note = "Epsilon is the largest of a method's runs."
    return _figure(facts, "epsilon", "epsilon", _private(facts), note)


def bytes_figure(facts: Facts) -> Figure | None:
    """Return the figure of final values against the bytes that a client sends in a round.

    None if no method sends at most half as many as another.
    """
    frame = plots.cost_frame(facts)
    uploads = frame.loc[frame["bytes_up"] > 0, "bytes_up"]
    if uploads.empty or uploads.max() < 2 * uploads.min():
        return None
    return _figure(facts, "bytes_up", plots.COST_LABEL, frame)


def _figure(
    facts: Facts, column: str, label: str, frame: pd.DataFrame, note: str = ""
) -> Figure | None:
    positive = frame[frame[column] > 0] if column in frame else frame
    if positive.empty or positive[column].nunique() < 2:
        return None

    series = series_of(facts)

    def draw(setting: StudySetting) -> Panel | None:
        points = at(positive, setting)
        if points.empty:
            return None
        first_runs = zip(points["method"], points[column], points["mean"], strict=True)
        points_text = "; ".join(
            f"{facts.methods[m]} {number(v, facts.metric)} at {_amount(column, x)}"
            for m, x, v in first_runs
        )
        picture = figures.against(points, series, facts.metric, column, label)
        title = facts.short(setting)
        return Panel(
            title, f"{title}: final test {unit(facts.metric)} by {label}: {points_text}", picture
        )

    panels = tuple(p for setting in facts.settings if (p := draw(setting)) is not None)
    caption = (
        f"Final test {unit(facts.metric)} against {label}, on a logarithmic scale: mean, and one "
        f"standard deviation over {facts.replicates}."
    )
    drawn = tuple(method for method in series.in_colour if method in set(positive["method"]))
    note = f"{note}{facts.when} {series.note}".strip()
    return Figure(column.replace("_", "-"), caption, panels, drawn, note=note)


def _amount(column: str, value: float) -> str:
    return size(value) if column == "bytes_up" else f"{value:.3g}"


def _formatted(value: float, text: str) -> str:
    return "" if math.isnan(value) else text % value
