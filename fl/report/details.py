"""The finer tables of a report: published numbers, grids, partitions, runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fl.base.schema import COMPLETE, SETTING, StudySetting
from fl.report import summaries
from fl.report.cells import DASH, NOTHING, Cell, Group, Row, Table, decimal, number, spread, unit
from fl.report.content import NAN, at, by_setting, grouped, remark
from fl.report.facts import Facts
from fl.report.partitions import Partition


def published_table(facts: Facts) -> Table | None:
    """Measured beside published; a published value above one is taken to be in percent."""
    rows = []
    for cell in facts.plan.get("published") or []:
        # A cell may name its data set, its partition, or (as its setting) either.
        named = {cell[key] for key in ("dataset", "partition", "setting") if cell.get(key)}
        kind = cell.get("modality")
        summary = facts.unseen_summary if cell.get("unseen") else facts.summary
        summary = summary if kind is None else facts.summary_of(kind["number"])
        found = [
            row
            for _, row in summary[summary["method"] == cell["method"]].iterrows()
            if named <= {row["dataset"], row["partition"]}
        ] or [None]
        source = cell["source"].removesuffix(".csv")
        where = f"{source}, Table {cell['table']}: {cell['row']}, {cell['column']}"
        rows += [_published_row(facts, cell, where, row) for row in found]
    if not rows:
        return None
    caption = (
        f"Measured beside published, {unit(facts.metric)}. Measured: mean ± standard deviation "
        "over seeds, of the uniform mean over clients, or over those named beside the "
        "setting. Published: as its source gives it. "
        "Difference: measured minus published."
    )
    columns = ("published in", "setting", "measured", "published", "difference", "note")
    return Table(
        "published",
        caption,
        "Method",
        columns,
        (Group("", tuple(rows)),),
        2,
        True,
        scope=facts.everywhere,
    )


def _published_row(facts: Facts, cell: dict[str, Any], where: str, row: pd.Series | None) -> Row:
    metric = facts.metric
    scale = 0.01 if metric.endswith("accuracy") and abs(cell["value"]) > 1 else 1
    value, sd = cell["value"] * scale, NAN if cell["sd"] is None else cell["sd"] * scale
    published = Cell(spread(value, sd, metric))
    name = Cell(facts.methods.get(cell["method"], cell["method"]))
    note = Cell(str(cell.get("note") or ""))
    if row is None:
        keys = ("dataset", "partition", "setting")
        setting = Cell(" · ".join(cell[key] for key in keys if cell.get(key)))
        absent = Cell(NOTHING, remark="not in this study")
        return Row(name, (Cell(where), setting, absent, published, Cell(NOTHING), note))
    key = (row["dataset"], row["partition"], row["model"])
    measured = Cell(
        spread(row["mean"], row["sd_seeds"], metric),
        f"#{facts.anchor(key, row['method'])}",
        remark=remark(row),
    )
    gap = Cell(number(row["mean"] - value, metric, signed=True))
    kind = cell.get("modality")
    whose = "unseen" if cell.get("unseen") else kind["name"] if kind else ""
    setting = Cell(facts.short(key) + (f" · {whose} clients" if whose else ""))
    return Row(name, (Cell(where), setting, measured, published, gap, note))


def grid_table(facts: Facts) -> Table | None:
    """Every point of every grid, with the one that validation chose."""
    frame = summaries.points(facts.rows, facts.runs, facts.metric)
    sizes = frame.groupby([*SETTING, "method"])["point"].transform("size")
    frame = frame[sizes > 1]
    if frame.empty:
        return None

    def cells(row: pd.Series, link: str) -> Sequence[Cell]:
        scores = [
            Cell(spread(row[s], row[f"{s}_sd_seeds"], facts.metric), link) for s in ("val", "test")
        ]
        return (
            Cell(row["point"] or "no grid values"),
            *scores,
            Cell(str(row["n_seeds"]), remark=remark(row)),
            Cell("selected" if row["selected"] else ""),
        )

    caption = (
        f"Hyper-parameter grids: {unit(facts.metric)}, mean ± standard deviation over the seeds "
        "that finished. The point with the best validation mean is selected; test values are "
        "shown for completeness and take no part in the choice. A point with a diverged run is "
        "passed over unless all have one."
    )
    columns = ("point", "validation", "test", "seeds", "selection")
    return by_setting(facts, "grids", caption, columns, grouped(facts, frame, cells), text=1)


def partition_table(facts: Facts) -> Table | None:
    """Sizes and label skew of every partition, in one line each; no skew where there are masks."""
    parts = list(facts.partitions.values())
    if not parts:
        return None
    by_class = any(part.by_class for part in parts)
    rows = []
    for part in parts:
        sizes = np.sum([counts.sum(axis=1) for counts in part.counts.values()], axis=0)
        train = part.statistics[part.statistics["split"] == "train"]
        texts = [str(len(part.clients)), str(sizes.sum()), f"{sizes.min()}{DASH}{sizes.max()}"]
        if by_class:
            texts.insert(1, str(len(part.classes)))
            texts += [decimal(train[c].mean()) for c in SKEW]
        rows.append(Row(Cell(part.title), tuple(Cell(text) for text in texts)))
    caption = "Partitions: samples of all splits together."
    columns = ["clients", "samples", "samples\nper client"]
    if by_class:
        caption += (
            " Of the clients' training splits, mean over clients: label entropy (nats), share of "
            "the most frequent class, and earth mover's distance (EMD) to the labels of all "
            "samples, 0 to 2."
        )
        columns.insert(1, "classes")
        columns += ["label\nentropy", "majority\nshare", "EMD"]
    return Table("partitions", caption, "Partition", tuple(columns), (Group("", tuple(rows)),))


def distances_table(part: Partition) -> Table | None:
    """How far apart the inputs of every two domains are."""
    found = part.distances
    if found is None or found.empty:
        return None
    names = list(dict.fromkeys([*found["domain"], *found["other"]]))
    values = {(a, b): d for a, b, d in found.itertuples(index=False)}
    values |= {(b, a): d for (a, b), d in values.items()}
    rows = [
        Row(Cell(a), tuple(Cell(decimal(values[a, b], 3) if a != b else "") for b in names))
        for a in names
    ]
    caption = (
        f"{part.title}: squared maximum mean discrepancy (MMD²) between the inputs of training "
        "samples of two domains, unbiased: about 0 where they are alike, 2 at most."
    )
    return Table("distances", caption, "Domain", tuple(names), (Group("", tuple(rows)),))


SKEW = {"label_entropy": "entropy", "majority_share": "majority share", "emd": "EMD"}
"""Of a client's labels, with what tables call it."""

LISTED = 200
"""Clients that are listed one by one; of more, a table says how they are spread."""


def holdings_table(part: Partition) -> Table:
    """Every client of a partition, or quantiles over them: its sizes and its label skew."""
    train = part.statistics[part.statistics["split"] == "train"].set_index("client")
    skew = train[list(SKEW) if part.by_class else []].reindex(part.clients)
    sizes = {split: part.counts[split].sum(axis=1) for split in ("train", "val", "test")}
    frame = pd.DataFrame(sizes, index=skew.index).join(skew)
    columns = ("train", "val", "test", *(SKEW.values() if part.by_class else ()))
    caption = f"{part.title}: samples per client"
    caption += ", and label skew of its training split" if part.by_class else ""
    if len(frame) <= LISTED:
        rows = [
            _holding(str(client), row)
            for client, row in zip(frame.index, frame.to_numpy(), strict=True)
        ]
        return Table("holdings", f"{caption}.", "Client", columns, (Group("", tuple(rows)),))
    rows = [_holding(name, frame.quantile(q).to_numpy()) for name, q in SPREAD.items()]
    caption += f"; how the {len(frame):,} clients are spread, each column by itself. Every client: "
    caption += f"partitions/{part.id}/statistics.parquet among the results."
    return Table("spread", caption, "Over clients", columns, (Group("", tuple(rows)),))


SPREAD = {
    "least": 0.0,
    "1st percentile": 0.01,
    "5th percentile": 0.05,
    "lower quartile": 0.25,
    "median": 0.5,
    "upper quartile": 0.75,
    "95th percentile": 0.95,
    "99th percentile": 0.99,
    "most": 1.0,
}


def _holding(name: str, values: Iterable[float]) -> Row:
    """Three numbers of samples, and three of skew where there are classes."""
    digits = (0, 0, 0, 2, 2, 2)
    cells = (Cell(decimal(float(v), d)) for v, d in zip(values, digits, strict=False))
    return Row(Cell(name), tuple(cells))


def runs_behind(
    facts: Facts,
) -> list[tuple[StudySetting, list[tuple[str, str, str, list[dict[str, Any]]]]]]:
    """Per setting and method: anchor, name, label and its runs, for the section of runs."""
    last = summaries.final(facts.rows, facts.metric)
    scores = last.groupby(["method", "run"])["value"].mean().to_dict()
    found = []
    for setting in facts.settings:
        blocks = []
        for method, group in at(facts.runs, setting).groupby("method", sort=False):
            runs = [_run(facts, row, scores) for row in group.to_dict("records")]
            label = str(method)
            blocks.append((facts.anchor(setting, label), facts.methods[label], label, runs))
        found.append((setting, blocks))
    return found


def _run(facts: Facts, row: dict[Any, Any], scores: Mapping[Any, float]) -> dict[str, object]:
    score = scores.get((row["method"], row["run"]), NAN)
    stacked = 0 if pd.isna(row["stack"]) else len(row["stack"].split(", "))
    share = f" (a share of 1/{stacked})" if stacked > 1 else ""
    return {
        "id": row["run"],
        "seed": row["seed"],
        "point": row["point"],
        "selected": bool(row["selected"]),
        "state": row["state"],
        "value": number(score, facts.metric),
        "rounds": NOTHING if pd.isna(row["rounds"]) else str(row["rounds"]),
        "seconds": decimal(row["seconds"], 1) + share,
        "backend": NOTHING if pd.isna(row["backend"]) else f"{row['backend']}, {row['device']}",
        "folder": f"{facts.store}/{row['run']}",
        "finished": row["state"] == COMPLETE,
    }
