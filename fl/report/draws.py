"""The table over draws: settings whose data set or partition differs in its seed only."""

from __future__ import annotations

import pandas as pd

from fl.base.schema import SETTING, StudySetting
from fl.report import derived
from fl.report.cells import Cell, Group, Row, Table, number, spread, unit
from fl.report.content import at, by_setting, majority
from fl.report.facts import Facts


def draws_table(facts: Facts) -> Table | None:
    """Methods over the draws of each setting, and against the baseline; None where nothing is drawn
    more than once.
    """
    baseline = facts.plan.get("baseline")
    frame = derived.over_draws(facts.summary, facts.metric, baseline)
    if frame.empty:
        return None
    groups = []
    for setting in frame[SETTING].drop_duplicates().itertuples(index=False, name=None):
        rows = [_row(facts, row) for _, row in at(frame, setting).iterrows()]
        groups.append(Group(facts.short(setting), (*rows, *_majority_row(facts, setting))))
    caption = (
        "Over data sets or partitions that are drawn anew with a seed of their own: final test "
        f"{unit(facts.metric)}, mean ± standard deviation over draws, each by its mean over "
        "clients and training seeds. Draws with a missing or diverged run of the method, or with "
        "a point of its grid missing, are left out."
    )
    columns: tuple[str, ...] = ("mean", "worst draw", "draws")
    if baseline is not None:
        caption += f" Difference: from {facts.methods[baseline]} on the same draw."
        columns = ("mean", "worst draw", "difference", "draws")
    return by_setting(facts, "draws", caption, columns, groups)


def _row(facts: Facts, row: pd.Series) -> Row:
    metric = facts.metric
    cells = [spread(row["mean"], row["sd_draws"], metric), number(row["worst"], metric)]
    if facts.plan.get("baseline") is not None:
        cells.append(spread(row["difference"], row["difference_sd_draws"], metric, signed=True))
    cells.append(str(row["n_draws"]))
    return Row(Cell(facts.methods[row["method"]]), tuple(map(Cell, cells)))


def _majority_row(facts: Facts, setting: StudySetting) -> list[Row]:
    drawn = [own for own in facts.settings if derived.undrawn(own) == setting]
    shares = pd.Series([majority(facts, own).mean() for own in drawn], dtype=float).dropna()
    if facts.metric != "accuracy" or shares.empty:
        return []
    cells = [spread(shares.mean(), shares.std(), facts.metric), number(shares.min(), facts.metric)]
    cells += [""] * (facts.plan.get("baseline") is not None) + [str(len(shares))]
    name = Cell("Majority class of each client")
    return [Row(name, tuple(map(Cell, cells)), reference=True)]
