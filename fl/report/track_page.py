"""The page of all tracks: figure, sentences, advice, each track, every comparison, and a script."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fl.base.units import quantity
from fl.blocks.plotting import Picture
from fl.plan.track import NEWCOMERS, PARTICIPANTS
from fl.report import claims, page, track_claims, track_figures, track_sentences
from fl.report.cells import NOTHING, Cell, Row, Table, columns, multiple, number, probability
from fl.report.track_claims import CLAIMED, COST, COSTS, TrackClaims
from fl.report.track_verdicts import EQUAL, MISSING_RUN, NO_OP, UNSTABLE

PICTURES = "comparison"
"""Folder of the page's pictures, beside the page."""

TABLE_HEADS = (
    *("track", "family", "value", "clients", "difference", "p", "p, these\nmodels"),
    *("p,\nre-splits", "p,\nequal", "better / same\n/ worse", "verdict", "all\nfamilies"),
    *("points\ntried", "equal\noperations", "equal\nbytes", "bytes", "operations"),
)
"""Columns of `long_table` after the first."""

FILTERS = (
    '<div class="table-filters" data-choices="track family verdict" '
    'data-limits="bytes operations"></div>'
)
"""Columns of which readers choose rows (`docs/site/tables.js`)."""

SCRIPT = """\
import sys

import numpy as np
import pandas as pd
import yaml

from fl.report.client_tests import family_test

config, name = sys.argv[1:]
folder = f"{config}/published/tracks/{name}"
track = yaml.safe_load(open(f"{config}/tracks/{name}.yaml"))
values = pd.read_parquet(f"{folder}/values.parquet").query("budget == 1")
runs = pd.read_csv(f"{folder}/runs.csv").query("budget == 1")
block = pd.read_parquet(f"{folder}/clients.parquet").groupby("client")["block"].first()
sign = -1 if track.get("metric") == "rmse" else 1
for family, about in track["families"].items():
    own, rows = (t[t["clients"] == about.get("clients", "participants")] for t in (runs, values))
    table = rows.pivot(index="client", columns=["entry", "draw"], values="value").astype(float)
    lost = own[own["state"] == "diverged"]
    for entry, draw in zip(lost["entry"], lost["draw"]):
        table[entry, draw] = table["majority", draw]
    is_out = own["no_op"].notna() | ~own["state"].isin(["complete", "diverged"])
    left = {*own["entry"]} - {*own.loc[is_out, "entry"]}
    base = about["baseline"]
    tested = [entry for entry in about["entries"] if entry in left and base in left]
    if not tested:
        continue
    above = sign * (table.mean() - table["majority"].mean().reindex(table.columns, level=1))
    gains = np.stack([sign * (table[entry] - table[base]) for entry in tested])
    blocks = block[table.index].to_numpy() if (block >= 0).all() else None
    test = family_test(gains, margin=track["margin"], blocks=blocks)
    for entry, gain, p, p_same in zip(tested, test.difference, test.p, test.p_equal):
        claim = "open" if p > 0.05 else "ahead" if gain > 0 else "behind"
        claim = "equal" if p_same <= 0.05 else claim
        fails = entry in set(lost["entry"]) or ((above[entry] <= 0) & (above[base] > 0)).any()
        claim = "unstable" if fails and claim != "behind" else claim
        print(f"{family:9} {entry:16} {gain:+.4f}  p {p:.4f}  equal {p_same:.4f}  {claim}")
"""
"""What recomputes every verdict of a track from its kept files."""

READING = (
    "A point is the mean difference over clients who chose nothing, with its 95 % interval; right "
    "is better, and a triangle is beyond the axis. A verdict "
    "([how](../guide/analyse.md#claims-about-clients)) is corrected for all entries of a family on "
    "a track, and an interval is not: an interval without 0 may be *not told apart*. Grey is the "
    "margin. A point inside it is not yet *equal*: a test must exclude that the difference is "
    "larger. A cross is an entry that tuning switched off, so that it is the same as another "
    "one.\n\n"
    "A track has a figure of its own with the same points, where a bar is the difference from a "
    "baseline that is trained for as many operations, if it was trained for longer. Then come "
    "values against operations. A dot is an entry; a curve is one that was tuned and trained "
    "again for more rounds, and coloured are baselines: what is above their curve has more than "
    "a longer training of them."
)
"""How the figures are read."""

COLUMN_TEXTS = {
    "Value": "mean over clients, in % or units of the error.",
    "Clients": "in brackets the number of their blocks, such as authorities of schools, which take "
    "the place of clients in tests.",
    "Difference": "from the baseline, with its 95 % interval. Of an entry that tuning switched off "
    "it is in brackets what its best point otherwise had more, on tuning clients.",
    "p": "for other clients like these, and models that are trained again; corrected for the "
    "family. It decides.",
    "p, these models": "for other clients like these, who get the same trained models.",
    "p, re-splits": "for these clients, if their samples are split and the models trained again.",
    "p, equal": "that the difference is not within the margin. If it is at most 5 %, the verdict "
    "is *equal*, whatever p is.",
    "Better / same / worse": "shares of clients.",
    "Verdict": "*unstable* is an entry that is not behind, but in some draw diverged, or was not "
    "better than the floor where the baseline was. The floor is a client's most frequent class, or "
    "the mean; clients of a run that diverged have it.",
    "All families": "whether the claim stays with one correction for all families of all tracks.",
    "Points tried": "in the entry's tuning, and in brackets in that of its baseline; each was "
    "trained in all tuning draws.",
    "Equal operations, equal bytes": "difference and verdict beside a baseline that is trained for "
    "as many.",
    "Bytes, operations": "as multiples of the baseline's.",
}
"""What the columns of `long_table` are."""

NOT_CLAIMED = (
    "That a method is better for clients of another kind: a claim is about clients like those of a "
    "track, who come from the same pool as those on whom points were chosen.",
    "That it is better in another federation: in all draws the same scored clients train together, "
    "but for newcomers. Where a track was divided a second time, its section says how many claims "
    "stay.",
    "That what is not told apart is equal: equal is only what two one-sided tests put within the "
    "margin.",
    "That a lead comes of the idea in a method's name, or that nobody knew the data: see [what is "
    "known beside the tests](../guide/tracks.md#what-is-known-beside-the-tests).",
    "That no claim is false: each family of each track has its own chances of a false difference "
    "and of a false equality, about 5 % each.",
    "That the best of many tries is as good as it looks: if you compare ten variants of your "
    "method, the scored clients choose among them, and the correction knows of one. `fedloom "
    "compare` says how many were scored.",
    "That a method at its best is seen: points are of grids, and of the budget.",
    "Anything of large models: a run of these takes seconds.",
)
"""What nobody may read out of the page."""


def pictures(tracks: Sequence[TrackClaims]) -> dict[str, Picture]:
    """Return the page's pictures by file name, without its ending."""
    by_name = {"overview": track_figures.overview(tracks)}
    for track in tracks:
        by_name[f"{track.name}-intervals"] = track_figures.intervals(track)
        for role in _roles(track):
            by_name[f"{track.name}-{role}"] = track_figures.costs(track, role)
    return by_name


def _roles(track: TrackClaims) -> list[str]:
    """Return the roles of clients with a figure of costs: all their baselines have a cost."""
    baselines: dict[str, list[float]] = {}
    for family in track.file.families.values():
        means = track.first_means(family.baseline, family.clients)
        prices = baselines.setdefault(family.clients, [])
        prices.append(float(means[COST].iloc[0]) if len(means) else math.nan)
    roles = [role for role in (PARTICIPANTS, NEWCOMERS) if role in baselines]
    return [role for role in roles if np.isfinite(baselines[role]).all()]


def markdown(tracks: Sequence[TrackClaims]) -> str:
    """Return the page in Markdown; its pictures are in the folder `PICTURES` beside it.

    Args:
        tracks: The tracks, in the order of the page.
    """
    blocks = [
        f"# Which method helps clients, on {quantity(len(tracks), 'track')}",
        _picture("overview", "Difference of every entry from its baseline, on every track"),
        "A row is a method, a panel a [track](../guide/tracks.md), which is a pool of clients; a "
        "point is how much better it does than the baseline that heads the rows, and its colour "
        "is what a test says. Personal: each client has its own model. Shared: all have one. "
        "Newcomers: clients who come when training is over. -FT: each client fine-tunes the shared "
        "model. No-op: tuning switched the method off. Floor: always predicting a client's most "
        "frequent class, or its mean. More of these words, and of the entries, are in [the "
        "guide](../guide/tracks.md#what-happens).",
        "\n".join(f"{i}. {text}" for i, text in enumerate(track_sentences.sentences(tracks), 1)),
        "## What to do",
        "\n".join(f"- {step}" for step in track_sentences.advice(tracks)),
        "## How to read the figures",
        READING,
        "## The tracks",
        *(_section(track) for track in tracks),
        "## Every comparison",
        "\n".join(f"- **{name}**: {text}" for name, text in COLUMN_TEXTS.items()),
        FILTERS,
        page.to_markdown(long_table(tracks)).rstrip(),
        "## A method of yours beside them",
        "```sh\n"
        "fedloom new method mine     # writes a file with a method that already runs\n"
        "fedloom compare mine        # one track: --only TRACK; a grid: 'strength=[0.1, 1.0]'\n"
        "```",
        "The second chooses its point on the tuning clients of each track, trains it on the scored "
        "ones, and tests it in the family of its kind beside the kept values of all entries. The "
        "family's baseline is trained again, to check that it has its kept values.",
        "## What is not claimed",
        "\n".join(
            f"- {text}"
            for text in (
                *track_sentences.added_later(tracks),
                *NOT_CLAIMED,
                track_sentences.skewed(tracks),
                track_sentences.switched_off(tracks),
            )
        ),
        "## All verdicts from the kept values",
        "A value for every entry, draw and client is kept in `config/published/tracks`, with all "
        f"points that were tried. `python verdicts.py config {tracks[0].name}` prints the verdicts "
        "of a track:",
        f"```python\n{SCRIPT}```",
    ]
    return "\n\n".join(blocks) + "\n"


def _picture(name: str, text: str) -> str:
    return f"![{text}]({PICTURES}/{name}.svg)"


def _section(track: TrackClaims) -> str:
    """Return the section of a track: what was decided before, its intervals and its costs."""
    file, about = track.file, track.about.get("1", {})
    registration = (
        f"decided in [{file.path.name}](../../config/tracks/{file.path.name}) at "
        f"{about['commit'][:8]}, {about['date'][:10]}"
        if "commit" in about
        else "not registered: the file had no commit"
    )
    counts = track.verdicts.groupby("family").size()
    families = "; ".join(
        f"{name.capitalize()}: {quantity(int(counts.get(name, 0)), 'method')} beside "
        f"{track.title_of(family.baseline)}, {family.clients}"
        for name, family in file.families.items()
    )
    blocks_of = track.verdicts["blocks"].max()
    hashes = {
        "claims": ("Families, margin or floor", track_claims.comparison_hash(file)),
        "settings": ("Clients, draws, training or grids", track_claims.settings_hash(file)),
    }
    remarks = [
        f"**{what} were changed after training with budget {budget}.**"
        for budget, about_budget in track.about.items()
        for key, (what, known) in hashes.items()
        if about_budget.get(key, known) != known
    ]
    if track.second is not None:
        remarks.append(_second(track, track.second))
    if missing := [name for name in file.entries() if name not in track.titles]:
        remarks.append(f"Not trained yet: {', '.join(map(file.title_of, missing))}.")
    remarks += [_longer(track, times) for times in track.longer]
    blocks = [
        f"### {file.title or track.name}",
        f"{file.question} Learning rates and keys were chosen on a third of the clients (division "
        f"{file.clients.division}), and the others scored in "
        f"{quantity(len(file.draws.scored), 'draw')}. {families}. Equal: within "
        f"{track.unit * file.margin:g} {track.margin_unit}. A newcomer has at most "
        f"{quantity(file.clients.newcomer_samples, 'training sample')}. "
        + (
            f"Tests are over {int(blocks_of)} blocks of clients, as those of a block have "
            "something in common. "
            if blocks_of > 0
            else ""
        )
        + f"All this was {registration}.",
        _baselines(track),
        *remarks,
        _picture(f"{track.name}-intervals", f"Differences from the baselines on {track.name}"),
        *(
            _picture(f"{track.name}-{role}", f"Values and operations of {role} on {track.name}")
            for role in _roles(track)
        ),
    ]
    return "\n\n".join(block.strip() for block in blocks)


def _baselines(track: TrackClaims) -> str:
    """Return sentences on values of baselines and floor, and how small a difference is seen."""
    texts = []
    for name, family in track.file.families.items():
        value = track.value_of(family.baseline, family.clients)
        if math.isnan(value):
            continue  # A run is missing.
        shown = [number(x, track.file.metric) for x in (value, track.floors[name])]
        draws = track.above_floor[name]
        text = f"{name.capitalize()}: {track.title_of(family.baseline)} has {shown[0]}, the floor "
        text += shown[1]
        if draws < len(track.file.draws.scored):
            text += f" (**better than it in {draws} of {len(track.file.draws.scored)} draws**)"
        rows = track.verdicts[track.verdicts["family"] == name]
        width = ((rows["high"] - rows["low"]) / 2).median()
        if not math.isnan(width):
            text += f"; half of the intervals are wider than ±{track.shown(width).lstrip('+')}"
        texts.append(f"{text}.")
    return " ".join(texts)


def _second(track: TrackClaims, second: pd.DataFrame) -> str:
    """Return which claims stay with other tuning and scored clients, and which do not."""
    same, count = track_claims.count_kept(track.verdicts, second)
    pairs = track_claims.claims_again(track.verdicts, second)
    is_tried = pairs["verdict_second"].notna()
    text = f"With other tuning and scored clients of the pool {same} of {count} claims stay"
    changed = [
        f"{track.title_of(row['entry'])} ({row['family']}: {row['verdict']}, then "
        f"{'at its no-op' if row['verdict_second'] == NO_OP else row['verdict_second']})"
        for row in pairs[is_tried].to_dict("records")
        if row["verdict"] != row["verdict_second"]
    ]
    text += f"; not {', '.join(changed)}" if changed else ""
    untried = [track.title_of(entry) for entry in pairs.loc[~is_tried, "entry"]]
    return f"{text}. Not tried: {', '.join(untried)}." if untried else f"{text}."


def _longer(track: TrackClaims, times: int) -> str:
    """Return sentences on the entries that are ahead at a larger budget, and who was left out."""
    table = track.longer[times]
    ahead = [
        f"{track.title_of(row['entry'])} ({row['family']}, {track.shown(row['difference'])})"
        for row in table[table["verdict"] == claims.AHEAD].to_dict("records")
    ]
    text = f"With {times} times the rounds, tuned again, beside baselines with as many: "
    text += f"{len(ahead)} of {quantity(len(table), 'comparison')} ahead"
    text += f"{': ' if ahead else ''}{', '.join(ahead)}."
    pair = ["family", "entry"]
    leads = track.verdicts[track.verdicts["verdict"] == claims.AHEAD][pair]
    there = {*table[pair].itertuples(index=False, name=None)}
    left = [
        f"{track.title_of(entry)} ({family})"
        for family, entry in leads.itertuples(index=False, name=None)
        if (family, entry) not in there
    ]
    return f"{text} Ahead before, and not trained for so long: {', '.join(left)}." if left else text


def overview_tables(tracks: Sequence[TrackClaims]) -> list[Table]:
    """Return a table for each family: differences and verdicts of entries on all tracks.

    Args:
        tracks: The tracks.
    """
    titles, tables = track_claims.titles_of(tracks), []
    for family, baseline in track_claims.families_of(tracks).items():
        cells: dict[str, list[Cell]] = {}
        for entry in track_claims.sorted_entries(tracks, family):
            cells[entry] = [_overview_cell(track, family, entry) for track in tracks]
        rows = tuple(Row(titles[entry], tuple(row)) for entry, row in cells.items())
        caption = f"{family.capitalize()}: difference from {baseline}, and verdict"
        heads = columns("Method", *(f"{track.name}\n({track.unit_text})" for track in tracks))
        tables.append(Table(family, caption, heads, rows))
    return tables


def _overview_cell(track: TrackClaims, family: str, entry: str) -> Cell:
    """Return difference and verdict of an entry in a family of a track."""
    rows = track.verdicts[track.verdicts["family"] == family].set_index("entry")
    if entry not in rows.index:
        return Cell(NOTHING)
    record = rows.loc[entry].to_dict()
    text = verdict_text(track, record)
    if record["verdict"] not in (NO_OP, MISSING_RUN):
        text = f"{track.shown(record['difference'])} {text}"
    return Cell(text, best=record["verdict"] == claims.AHEAD)


def long_table(tracks: Sequence[TrackClaims]) -> Table:
    """Return a row for each comparison of each track, for pages on which readers sort and filter.

    Args:
        tracks: The tracks.
    """
    rows = []
    for track in tracks:
        table = track.verdicts.assign(stays=track.stays)
        for record in table.to_dict("records"):
            cells = tuple(map(Cell, _cells(track, record)))
            mark = "*" if record["entry"] in track.file.added else ""
            rows.append(Row(track.title_of(str(record["entry"])) + mark, cells))
    caption = (
        "Value on scored clients, and difference from the family's baseline with its 95 % "
        "interval, where more is better; costs as multiples of the baseline's."
    )
    note = (
        "p: for other clients like these, with models trained again; corrected for the family. "
        "Equal: within the margin. *: added after first results were seen."
    )
    texts = ("track", "family", "verdict", "all\nfamilies", "equal\noperations", "equal\nbytes")
    heads = columns("Method", *TABLE_HEADS, text=texts)
    return Table("clients", caption, heads, tuple(rows), note=note)


def _cells(track: TrackClaims, record: Mapping[Any, Any]) -> list[str]:
    """Return the texts of a comparison after the name of its entry."""
    value = track.value_of(record["entry"], record["clients"])
    start = [track.name, str(record["family"]), number(value, track.file.metric)]
    points = f"{int(record['points'])} ({int(record['points_of_other'])})"
    costs = [multiple(record["bytes"]), multiple(record["operations"])]
    if record["verdict"] in (NO_OP, MISSING_RUN):
        loss = record["without_no_op"]
        difference = (
            NOTHING if math.isnan(loss) else f"({track.shown(loss)} when on, tuning clients)"
        )
        words = [difference, *[NOTHING] * 5, verdict_text(track, record), NOTHING]
        return [*start, NOTHING, *words, points, *[NOTHING] * len(COSTS), *costs]
    shown = [track.shown(record[key]) for key in ("difference", "low", "high")]
    blocks = "" if math.isnan(record["blocks"]) else f" ({int(record['blocks'])})"
    shares = (record["better"], 1 - record["better"] - record["worse"], record["worse"])
    return [
        *start,
        f"{int(record['n'])}{blocks}",
        "{} ({} to {})".format(*shown),
        *(probability(record[key]) for key in ("p", "p_models", "p_draws", "p_equal")),
        f"{' / '.join(f'{abs(100 * share):.0f}' for share in shares)} %",
        verdict_text(track, record),
        ("stays" if record["stays"] else "no") if record["verdict"] in CLAIMED else NOTHING,
        points,
        *(_at_equal_cost(track.at_equal_cost[cost], track, record) for cost in COSTS),
        *costs,
    ]


def verdict_text(track: TrackClaims, record: Mapping[Any, Any]) -> str:
    """Return the verdict of a comparison in words.

    Args:
        track: The track.
        record: Its row of `fl.report.track_verdicts.verdicts`.
    """
    if record["verdict"] == NO_OP:
        return f"is {track.title_of(record['no_op'])} (no-op)"
    if record["verdict"] == UNSTABLE:
        return f"{UNSTABLE} ({quantity(int(record['failed']), 'draw')})"
    if record["verdict"] == EQUAL and record["p"] <= claims.LEVEL:
        return f"{EQUAL} (slightly {'ahead' if record['difference'] > 0 else 'behind'})"
    return str(record["verdict"])


def _at_equal_cost(table: pd.DataFrame, track: TrackClaims, record: Mapping[Any, Any]) -> str:
    """Return difference and verdict of an entry beside a baseline of equal cost, by a table."""
    table = table[(table["family"] == record["family"]) & (table["entry"] == record["entry"])]
    if table.empty:
        return NOTHING
    return f"{track.shown(table['difference'].iloc[0])}, {table['verdict'].iloc[0]}"
