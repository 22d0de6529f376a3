"""Methods by simulated time: how long they take, and what they reach in equal time or bytes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd

from fl.base.schema import CLOCK, SETTING, StudySetting
from fl.base.units import precise_duration, size
from fl.report import claims_tables, figures, summaries
from fl.report.cells import NOTHING, Table, decimal, number, unit
from fl.report.clock_claims import goal_text, times_to_goal
from fl.report.facts import Facts, rows_of_setting
from fl.report.figures import Figure, Panel
from fl.report.method_tables import Record, Show, by_setting, main_table
from fl.report.plots import TIME_LABEL, series_of, time_frame
from fl.report.summaries import KEY


def clock_rows(facts: Facts) -> pd.DataFrame:
    """Return what is known of each round of runs with devices: a column for each metric.

    Returns:
        A row for each run and round, with the columns of `KEY` and ``run``. ``seconds`` are those
        until the end of the round, ``bytes`` those of all clients until then, down and up; both
        with those of the model that a run starts from. Runs are left out if the time of that model
        is unknown, as it was trained without devices.
    """
    rows = facts.rows[facts.rows["split"] == CLOCK]
    rows = summaries.complete_rows(rows, facts.runs)
    keys = [*KEY, "run", "round"]
    wide = rows.pivot_table("value", keys, "metric", observed=True).reset_index()
    wide = wide.reindex(columns=[*wide.columns, *({"idle"} - {*wide.columns})])
    if wide.empty:
        return wide
    sent = (wide["bytes_down"] + wide["bytes_up"]).groupby(wide["run"]).cumsum()
    runs = facts.runs.drop_duplicates("run").set_index("run")
    wide = wide.assign(
        seconds=wide["seconds"] + wide["run"].map(runs["simulated_before"]),
        bytes=sent + wide["run"].map(runs["bytes_before"]),
    )
    return wide.dropna(subset="seconds")


def clock_table(facts: Facts) -> Table | None:
    """Return the table of simulated time; None if no run has devices."""
    clock, lines = clock_rows(facts), facts.timed_curves
    if clock.empty or lines.empty:
        return None
    runs = clock.groupby([*KEY, "run"], sort=False, observed=True).agg(
        end=("seconds", "max"),
        bytes=("bytes", "max"),
        rounds=("round", "max"),
        idle=("idle", "mean"),
        lost=("lost", "mean"),
        dropped=("dropped", "mean"),
        slowest=("slowest", "mean"),
    )
    runs = runs.join(times_to_goal(facts, lines)).reset_index()
    shown: dict[str, Show] = {
        f"time to\n{goal_text(facts)}": _time_to_goal,
        f"bytes to\n{goal_text(facts)}": _bytes_to_goal,
        "time of\na run": lambda row: precise_duration(float(np.mean(row["end"]))),
        "bytes of\na run": lambda row: size(float(np.mean(row["bytes"]))),
        "slowest used\nof a round": lambda row: precise_duration(float(np.mean(row["slowest"]))),
        "idle\n(%)": _idle,
        "lost\n(%)": lambda row: decimal(float(100 * np.mean(row["lost"])), 1),
        "dropped\na round": lambda row: decimal(float(np.mean(row["dropped"])), 1),
    }
    frame = facts.with_settings(runs).groupby(KEY, sort=False).agg(list).reset_index()
    caption = (
        f"Simulated time and bytes of all clients, down and up. Means over {facts.replicates}."
    )
    if facts.plan.goal is None:
        caption += f" The best: the best mean final test {unit(facts.metric)} of the setting."
    note = (
        "Time follows from devices, counted operations and bytes; no computer's clock is in it. A "
        "time is counted at evaluated rounds. > 10 s (5 of 8): five of eight runs reach the value, "
        "and the others count with their whole time. Slowest used, idle: of clients whose result "
        "the server uses; idle is the share of a round in which they wait for its end. Lost: share "
        "of clients' work that the server does not use."
    )
    if (facts.runs["rounds_before"] > 0).any():
        note += " Time and bytes of a stored model that a method starts from are included."
    return by_setting(facts, "clock", caption, frame, shown, note=note)


def _idle(row: Record) -> str:
    shares = np.array(row["idle"], float)
    return NOTHING if np.isnan(shares).all() else decimal(float(100 * np.nanmean(shares)), 1)


def _censored(row: Record, text: str) -> str:
    """Return a mean over runs as text, as a lower bound if some do not reach the goal."""
    count = sum(row["reaches"])
    if not count:
        return f"not in {text}"
    return text if count == len(row["reaches"]) else f"> {text} ({count} of {len(row['reaches'])})"


def _time_to_goal(row: Record) -> str:
    return _censored(row, precise_duration(float(np.mean(row["goal_seconds"]))))


def _bytes_to_goal(row: Record) -> str:
    return _censored(row, size(float(np.mean(row["goal_bytes"]))))


def equal_tables(facts: Facts) -> tuple[Table, ...]:
    """Return the results at equal simulated time, and at equal bytes, each with its comparisons.

    The time is that of the shortest run of a setting, so that every run has been there. Each run
    counts with its last evaluated round until then. A method without any in one of its runs is left
    out, and named.
    """
    lines = facts.timed_curves
    if lines.empty:
        return ()
    tables = []
    for column, amount, name in (("seconds", precise_duration, "time"), ("bytes", size, "bytes")):
        ends = lines.groupby([*KEY, "run"], sort=False, observed=True)[column].max()
        ends_of_setting = ends.groupby(SETTING, sort=False, observed=True)
        limits = ends_of_setting.min().rename("limit")
        if ends_of_setting.nunique().max() < 2:
            continue  # All runs of a setting are equally long: the main table is this one.
        within = lines.merge(limits.reset_index(), on=SETTING)
        within = within[within[column] <= within["limit"]]
        # Means over the runs that are quick enough would be of quick devices.
        late = lines[~lines["run"].isin(within["run"])][[*SETTING, "method"]].drop_duplicates()
        within = within.merge(late.assign(is_late=True), "left", [*SETTING, "method"])
        within = within[within["is_late"].isna()]
        last = within.groupby("run", observed=True)["round"].max().rename("last")
        last -= facts.runs.drop_duplicates("run").set_index("run")["rounds_before"]
        rows = facts.rows.merge(last.reset_index(), on="run")
        rows = rows[rows["round"] <= rows["last"]].drop(columns="last")
        runs = facts.runs[facts.runs["run"].isin(last.index)]
        # Time or bytes are equal, so that no number of rounds is worth a remark.
        runs = runs.assign(rounds=runs["rounds"].max(), rounds_before=0)
        early = replace(facts, rows=rows, runs=runs)
        texts = " to ".join(dict.fromkeys(map(amount, (limits.min(), limits.max()))))
        shortest = ends.index[ends == ends_of_setting.transform("min")].unique("method")
        names = ", ".join(facts.methods[method] for method in shortest)
        remark = "Each run counts with its last evaluated round until the shortest one ends "
        remark += f"({names})."
        if len(late):
            missing = dict.fromkeys(facts.methods[str(method)] for method in late["method"])
            remark += f" Not evaluated until then in all runs, and left out: {', '.join(missing)}."
            remark += f" Try: more rounds for {names}, or a smaller evaluate_every."
        title = f"at equal {'simulated time' if name == 'time' else 'bytes of all clients'}"
        table = main_table(early)
        paired = claims_tables.paired_table(early, f"equal-{name}-paired", f"test {{}} {title}")
        claimed = " ".join(claims_tables.claims_made(early))
        caption = f"Test {unit(facts.metric)} {title} ({texts}): mean ± standard deviation over "
        tables.append(
            replace(
                table,
                name=f"equal-{name}",
                caption=f"{caption}{facts.replicates}.",
                note=f"{remark} {table.note} {claimed}".strip(),
                is_main=False,
            )
        )
        tables += [paired] if paired else []
    return tuple(tables)


def clock_figure(facts: Facts) -> Figure | None:
    """Return the figure of curves over simulated time; None if no run has devices."""
    frame = time_frame(facts)
    if frame.empty:
        return None
    series, metric = series_of(facts), facts.metric
    final = cache(lambda setting: rows_of_setting(facts.summary, setting))

    def draw(setting: StudySetting) -> Panel | None:
        own = rows_of_setting(frame, setting)
        if own.empty:
            return None
        means = final(setting).set_index("method")["mean"]
        named = "; ".join(f"{facts.methods[str(m)]} {number(v, metric)}" for m, v in means.items())
        alt = f"test {unit(metric)} over simulated time; final means {named}."
        picture = figures.curves(own, series, metric, None, TIME_LABEL)
        return Panel(facts.short_name(setting), alt, picture)

    panels = tuple(p for setting in facts.settings if (p := draw(setting)) is not None)
    caption = (
        f"Test {unit(metric)} over simulated time: mean over clients and {facts.replicates}; the "
        f"band is one standard deviation over {facts.replicates}. A curve ends with the first of "
        "the method's runs."
    )
    return Figure("clock-curves", caption, panels, note=series.note) if panels else None
