"""The page of all tracks: figure, sentences, advice, each track, every comparison, and a script."""

from __future__ import annotations

from collections.abc import Sequence

from fl.base.units import quantity
from fl.blocks.plotting import Picture
from fl.plan.track import NEWCOMERS, PARTICIPANTS
from fl.report import client_claims, client_claims_figures, client_claims_tables, page
from fl.report.cells import number
from fl.report.client_claims import TrackClaims

PICTURES = "comparison"
"""Folder of the page's pictures, beside the page."""

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
track = yaml.safe_load(open(f"{config}/tracks/{name}.yaml"))
folder = f"{config}/published/tracks/{name}"
values = pd.read_parquet(f"{folder}/values.parquet").query("budget == 1")
runs = pd.read_csv(f"{folder}/runs.csv").query("budget == 1")
sign = -1 if track.get("metric") == "rmse" else 1
for family, about in track["families"].items():
    role = about.get("clients", "participants")
    own, rows = runs[runs["clients"] == role], values[values["clients"] == role]
    table = rows.pivot(index="client", columns=["entry", "draw"], values="value").astype(float)
    for entry, draw in own.loc[own["state"] == "diverged", ["entry", "draw"]].to_numpy():
        table[entry, draw] = table["majority", draw]
    is_out = own["no_op"].notna() | ~own["state"].isin(["complete", "diverged"])
    tested = [entry for entry in about["entries"] if entry not in set(own.loc[is_out, "entry"])]
    gains = np.stack([sign * (table[entry] - table[about["baseline"]]) for entry in tested])
    test = family_test(gains, margin=track["margin"])
    for entry, gain, p, p_equal in zip(tested, test.difference, test.p, test.p_equal):
        claim = "ahead" if gain > 0 else "behind"
        print(family, entry, claim if p <= 0.05 else "equal" if p_equal <= 0.05 else "open")
"""
"""What recomputes every verdict of a track from its kept files."""

NOT_CLAIMED = (
    "That a method is better for clients of another kind: a claim is about clients like those of a "
    "track, who come from the same pool as those on whom points were chosen.",
    "That it is better in another federation: scored clients train together in eight draws of four "
    "fifths of them. Where a track was divided a second time, its section says how many claims "
    "stay.",
    "That what is not told apart is equal: equal is only what two one-sided tests put within the "
    "margin.",
    "That no claim is false: each family of each track has its own chance of one, at most 5 %.",
    "That a method at its best is seen: points are of grids, and of the budget.",
    "Anything of large models: these train on two cores in minutes.",
)
"""What nobody may read out of the page."""


def pictures(tracks: Sequence[TrackClaims]) -> dict[str, Picture]:
    """Return the page's pictures by file name, without its ending."""
    drawn = {"overview": client_claims_figures.overview(tracks)}
    for one in tracks:
        drawn[f"{one.name}-intervals"] = client_claims_figures.intervals(one)
        for role in _roles(one):
            drawn[f"{one.name}-{role}"] = client_claims_figures.costs(one, role)
    return drawn


def _roles(one: TrackClaims) -> list[str]:
    found = {family.clients for family in one.track.families.values()}
    return [role for role in (PARTICIPANTS, NEWCOMERS) if role in found]


def markdown(tracks: Sequence[TrackClaims]) -> str:
    """Return the page in Markdown; its pictures are in the folder `PICTURES` beside it.

    Args:
        tracks: The tracks, in the order of the page.
    """
    parts = [
        f"# Which method helps clients, on {quantity(len(tracks), 'track')}",
        _picture("overview", "Difference of every entry from its baseline, on every track"),
        "A row is an entry, a panel a track: the mean difference over clients who chose nothing, "
        "with its 95 % interval; right is better. A verdict is corrected for all entries of a "
        "family on a track, an interval is not; within the grey band two entries are equal. A "
        "triangle is beyond the axis.",
        "\n".join(f"{i}. {text}" for i, text in enumerate(client_claims.sentences(tracks), 1)),
        "## What to do",
        "\n".join(f"- {step}" for step in client_claims.advice(tracks)),
        "## The tracks",
        *(_track(one) for one in tracks),
        "## Every comparison",
        FILTERS,
        page.to_markdown(client_claims_tables.long_table(tracks)).rstrip(),
        "## A method of yours beside them",
        "```sh\n"
        "fedloom new method mine     # writes a file with a method that already runs\n"
        f"fedloom compare mine 'strength=[0, 0.1, 1]' --only {tracks[0].name}\n"
        "```",
        "The second command chooses its point on the tuning clients, trains it on the scored ones, "
        "and sets it into its family. Nothing but it and FedAvg is trained: what others have is "
        "kept.",
        "## What is not claimed",
        "\n".join(f"- {text}" for text in NOT_CLAIMED),
        "## All verdicts again",
        "A value for every entry, draw and client is kept in `config/published/tracks`, with all "
        f"points that were tried. `python verdicts.py config {tracks[0].name}` prints the verdicts "
        "of a track:",
        f"```python\n{SCRIPT}```",
    ]
    return "\n\n".join(parts) + "\n"


def _picture(name: str, text: str) -> str:
    return f"![{text}]({PICTURES}/{name}.svg)"


def _track(one: TrackClaims) -> str:
    """Return the section of a track: what was decided before, its intervals and its costs."""
    track = one.track
    about = one.about.get("1", {})
    decided = (
        f"decided in [{track.path.name}](../../config/tracks/{track.path.name}) at "
        f"{about['commit'][:8]}, {about['date'][:10]}"
        if "commit" in about
        else "not registered: the file had no commit"
    )
    families = "; ".join(
        f"{name.capitalize()}: {len(family.entries)} entries beside "
        f"{one.title_of(family.baseline)}, {family.clients}"
        for name, family in track.families.items()
    )
    margin = number(track.margin, track.metric)
    remarks = [
        f"**Families, margin or floor were changed after training with budget {budget}.**"
        for budget, known in one.about.items()
        if known.get("claims", client_claims.decided(track)) != client_claims.decided(track)
    ]
    if one.second is not None:
        same, count = client_claims.share_kept(one.verdicts, one.second)
        remarks.append(
            f"With other tuning and scored clients of the pool {same} of {count} claims stay."
        )
    parts = [
        f"### {track.title or one.name}",
        f"{track.question} A third of the clients chose points (division "
        f"{track.clients.division}); {quantity(len(track.draws.scored), 'draw')} of the others. "
        f"{families}. Equal: within {margin} {one.margin_unit}. A run that diverged has the values "
        f"of the most frequent class or the mean. All this was {decided}.",
        *remarks,
        _picture(f"{one.name}-intervals", f"Differences from the baselines on {one.name}"),
    ]
    parts += [
        _picture(f"{one.name}-{role}", f"Values and operations of {role} on {one.name}")
        for role in _roles(one)
    ]
    return "\n\n".join(part.strip() for part in parts)
