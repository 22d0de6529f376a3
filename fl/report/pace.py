"""How long methods take: rounds and time until a share of their final value."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fl.base.schema import SETTING
from fl.base.units import duration
from fl.report import derived
from fl.report.cells import NOTHING, Cell, Table, decimal
from fl.report.content import NAN, by_setting, grouped
from fl.report.facts import Facts

SHARES = (0.9, 0.95, 0.99)
TIMED = 0.95


def pace_table(facts: Facts) -> Table | None:
    """Rounds and time to shares of each method's final value, and of the best method's."""
    each = reached(facts)
    if each.empty:
        return None
    goals = [*(str(share) for share in SHARES), "best"]

    def cells(row: pd.Series, link: str) -> Sequence[Cell]:
        mine = each[(each[derived.KEY] == list(row[derived.KEY])).all(axis=1)]
        rounds = [_cell(mine[goal], link) for goal in goals]
        return *rounds[:-1], Cell(_time(mine["seconds"]), link), rounds[-1]

    timed = f"{100 * TIMED:g} %"
    caption = (
        f"Rounds until the mean over clients is {_percents()} of the method's own final value, the "
        f"time to {timed} of it, and rounds to {timed} of the best final value of the setting. "
        "First evaluated round, mean ± standard deviation over seeds; time is taken to pass evenly "
        "over a run's rounds. A method that starts from a stored model counts the rounds and the "
        "time of that model too."
    )
    columns = (
        *(f"rounds to\n{100 * share:g} %" for share in SHARES),
        f"time to\n{timed}",
        f"rounds to {timed}\nof the best",
    )
    order = list(facts.methods)
    rows = (
        each[derived.KEY].drop_duplicates().sort_values("method", key=lambda m: m.map(order.index))
    )
    return by_setting(facts, "pace", caption, columns, grouped(facts, rows, cells))


def reached(facts: Facts) -> pd.DataFrame:
    """A row for each run: rounds to each of `SHARES` and to `TIMED` of the ``best``, ``seconds``.

    NaN if a run never gets there, or if the training time of the runs it starts from is not known.
    """
    followed = derived.followed(facts.rows, facts.runs, facts.metric).rename("value").reset_index()
    spent, before = _spent(facts), earlier(facts)
    records = []
    for _, setting in followed.groupby(SETTING, sort=False):
        finals = setting.sort_values("round").groupby(["method", "run"])["value"].last()
        best = finals.groupby("method").mean().max()
        for key, run in setting.groupby([*derived.KEY, "run"], sort=False):
            name = str(key[-1])
            curve = run.set_index("round")["value"].sort_index()
            (passed, waited), (total, took) = before.get(name, (NAN, NAN)), spent[name]
            found = {str(s): _first(curve, s * curve.iloc[-1]) for s in SHARES}
            seconds = waited + (took * found[str(TIMED)] / total if total else NAN)
            found["best"] = _first(curve, TIMED * best)
            counted = {goal: passed + rounds for goal, rounds in found.items()}
            named = dict(zip([*derived.KEY, "run"], key, strict=True))
            records.append(named | counted | {"seconds": seconds})
    return pd.DataFrame(records)


def _first(curve: pd.Series, goal: float) -> float:
    """The first round of ``curve`` at ``goal`` or above."""
    there = curve.index[curve >= goal - 1e-12]
    return float(there[0]) if len(there) else NAN


def _spent(facts: Facts) -> dict[str, tuple[float, float]]:
    """The rounds and seconds of each run; NaN for one that is not there."""
    columns = facts.runs[["run", "rounds", "seconds"]].astype({"rounds": "float64"})
    return {run: (rounds, seconds) for run, rounds, seconds in columns.itertuples(index=False)}


def earlier(facts: Facts) -> dict[str, tuple[float, float]]:
    """By run, the rounds and seconds for which the models it starts from were trained."""
    starts = {run["run"]: run.get("start") for run in facts.plan["runs"]}
    spent, found = _spent(facts), {}
    for run in starts:
        rounds = seconds = 0.0
        start = starts[run]
        while start:
            there = spent.get(start, (NAN, NAN))
            rounds, seconds = rounds + there[0], seconds + there[1]
            start = starts.get(start)
        found[run] = (rounds, seconds)
    return found


def _cell(rounds: pd.Series, link: str) -> Cell:
    there = rounds.dropna()
    if there.empty:
        return Cell(NOTHING)
    text = decimal(there.mean(), 1)
    if len(there) > 1:
        text += f" ± {decimal(there.std(), 1)}"
    remark = f"{len(there)} of {len(rounds)} seeds" if len(there) < len(rounds) else ""
    return Cell(text, link, remark=remark)


def _time(seconds: pd.Series) -> str:
    return duration(seconds.mean()) if seconds.notna().any() else NOTHING


def _percents() -> str:
    *most, last = [f"{100 * share:g}" for share in SHARES]
    return f"{', '.join(most)} and {last} %"
