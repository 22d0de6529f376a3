"""Remarks of `fl.compare`: what was chosen, what failed, and what a verdict hangs on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pandas as pd

from fl.base.arithmetic import PORTABLE
from fl.base.errors import DataError
from fl.base.files import write_bytes
from fl.base.schema import DIVERGED, MISSING
from fl.base.units import quantity
from fl.notebook.track_training import Tuned
from fl.plan import track as track_file
from fl.plan.config import Values
from fl.plan.track import Track
from fl.report import claims, kept_tracks, track_verdicts
from fl.report.kept_tracks import TrackResults
from fl.report.track_claims import TrackClaims
from fl.store.import_export import EXACT

BUDGET_KEYS = {"rounds", "local_epochs", "local_steps", "batch_size"}
"""Keys of an entry that change its budget; a remark tells that the budget is compared too."""

DECIDES_BITS = ("arithmetic", "torch", "numpy", "mkl", "onednn")
"""Columns of runs that decide bits, where arithmetic is portable."""

VARIANTS = "compared.csv"
"""File of the results folder with the variants that were scored, a row each, `VARIANT_COLUMNS`."""

VARIANT_COLUMNS = ["track", "method", "run"]
"""Columns of `VARIANTS`. run: the run of the first scored draw, whose name tells variants apart."""


def on_keys(name: str, keys: Values) -> list[str]:
    """Return remarks on the keys that a method was given."""
    remarks: list[str] = []
    if keys:
        texts = ", ".join(f"{key}={value}" for key, value in keys.items())
        remarks.append(f"{name} was given {texts}")
    if budget := sorted(BUDGET_KEYS & keys.keys()):
        remarks.append(
            f"{name} has its own {', '.join(budget)}; the other entries have the track's budget, "
            "so the comparison is of methods and budgets"
        )
    return remarks


def on_tuning(file: Track, name: str, title: str, tuned: Tuned) -> Iterable[str]:
    """Yield a remark on the point that was chosen for each role of clients."""
    for role in file.roles(name):
        trial, edges = tuned.chosen[name, role], ", ".join(tuned.at_edge[name, role])
        point, start = track_file.point_text(trial.point), track_file.point_text(trial.start)
        tried = tuned.tried[(tuned.tried["entry"] == name) & (tuned.tried["start"] == start)]
        count = quantity(len(tried) // len(file.draws.tuning), "point")
        if failed := int((tried["state"] == MISSING).sum()):
            yield f"{file.name}, {role}: {quantity(failed, 'run')} of tuning {title} failed"
        if tried.loc[kept_tracks.is_chosen(tried, role), role].isna().any():
            yield f"{file.name}, {role}: no point of {title} is trained in all draws of tuning"
        elif point:
            remark = f"{file.name}, {role}: {title} has {point}, the best of {count} on tuning "
            yield f"{remark}clients{f', at an edge of the grid: {edges}' if edges else ''}"


def on_runs(track: str, title: str, scored: TrackResults) -> Iterable[str]:
    """Yield remarks on runs that diverged or failed."""
    ends = {
        DIVERGED: "diverged: its clients have the values of the floor",
        MISSING: "failed, so that there is no verdict",
    }
    states = scored.runs["state"]
    for state, end in ends.items():
        if count := int((states == state).sum()):
            yield f"{track}: {count} of {quantity(len(states), 'run')} of {title} {end}"


def on_variants(path: Path, track: str, name: str, run: str) -> Iterable[str]:
    """Keep that a variant was scored on a track; yield a remark if it is not the first one.

    Whoever reports the best of several lets the scored clients choose it.

    Args:
        path: The file `VARIANTS`.
        track: Name of the track.
        name: Name of the method.
        run: Its run of the first scored draw.

    Raises:
        DataError: If the file cannot be read.
    """
    earlier = pd.DataFrame(columns=VARIANT_COLUMNS)
    if path.exists():
        try:
            earlier = pd.read_csv(path, dtype=str)[VARIANT_COLUMNS]
        except (ValueError, KeyError) as error:
            advice = "delete it; variants are then counted anew"
            raise DataError(f"{path}: cannot be read: {error}", advice=advice) from error
    new = pd.DataFrame([[track, name, run]], columns=VARIANT_COLUMNS)
    variants = pd.concat([earlier, new]).drop_duplicates(["track", "run"])
    write_bytes(path, variants.to_csv(index=False, lineterminator="\n").encode())
    count = int((variants["track"] == track).sum())
    if count > 1:
        yield (
            f"{track}: {count} variants have been scored on its clients ({path}), and the "
            f"correction knows of one: whoever reports the best multiplies its p by {count}"
        )


def on_verdicts(
    file: Track, joined: Track, name: str, published: TrackResults, claims_of: TrackClaims
) -> Iterable[str]:
    """Yield a remark on the kept verdicts on other entries that change in an entry's families.

    Args:
        file: The track.
        joined: The track with the entry.
        name: Name of the entry.
        published: The kept results of the track.
        claims_of: The claims with the entry.
    """
    families = {k: f for k, f in file.families.items() if name in joined.families[k].entries}
    if not families:
        return
    before = track_verdicts.verdicts(published, replace(file, families=families))
    after = claims_of.verdicts[claims_of.verdicts["entry"] != name]
    changed = _changed(before, after)
    if changed != claims.NO_CHANGE:
        yield f"{file.name}: with {claims_of.title_of(name)} in its families, {changed}"


def on_baselines(
    claims_of: TrackClaims, joined: Track, name: str, results: TrackResults, retrained: TrackResults
) -> Iterable[str]:
    """Yield a remark on each baseline that was trained again, and on verdicts that hang on them.

    Args:
        claims_of: The claims with the entry.
        joined: The track with the entry.
        name: Name of the entry.
        results: The kept results with the entry.
        retrained: The results of the baselines.
    """
    baselines = list(dict.fromkeys(retrained.runs["entry"]))
    yield from (on_kept_values(claims_of, entry, results, retrained) for entry in baselines)
    is_missing = (retrained.runs["state"] == MISSING).any()
    if is_missing or not any(_gaps(results, retrained, entry).any() for entry in baselines):
        return
    verdicts = claims_of.verdicts[claims_of.verdicts["entry"] == name]
    after = track_verdicts.verdicts(kept_tracks.with_entries(results, retrained), joined)
    yield f"{claims_of.name}: with the baselines trained here, {_changed(verdicts, after)}"


def _changed(first: pd.DataFrame, second: pd.DataFrame) -> str:
    """Return which verdicts of a first table are others in a second one."""
    old, new = (table.rename(columns={"entry": "method"}) for table in (first, second))
    return claims.changed_verdicts(old, new, ["family"])


def _gaps(published: TrackResults, retrained: TrackResults, entry: str) -> pd.Series:
    """Return by how much values of an entry differ from the kept ones, by client and draw.

    It is infinite where only one of both has a value.
    """
    key = ["clients", "draw", "client"]
    first, second = (
        results.values[(results.values["budget"] == 1) & (results.values["entry"] == entry)]
        .set_index(key)["value"]
        .astype("float64")
        for results in (published, retrained)
    )
    gaps: pd.Series = first.sub(second).abs().fillna(float("inf"))
    return gaps


def on_kept_values(
    claims_of: TrackClaims, entry: str, published: TrackResults, retrained: TrackResults
) -> str:
    """Return a remark on whether an entry that was trained again has its kept values."""
    gaps, title = _gaps(published, retrained, entry), claims_of.title_of(entry)
    if (retrained.runs.loc[retrained.runs["entry"] == entry, "state"] == MISSING).any():
        return f"{claims_of.name}: {title} failed here, so that its kept values are not checked"
    if not gaps.any():
        return f"{claims_of.name}: {title} has its kept values, of every client in every draw"
    remark = f"{claims_of.name}: {int((gaps > 0).sum())} of {len(gaps)} values of {title} differ "
    remark += f"from the kept ones, by up to {gaps.max():.2g}"
    first, second = (
        results.runs[(results.runs["entry"] == entry) & (results.runs["budget"] == 1)]
        for results in (published, retrained)
    )
    numbers = ["; ".join(sorted({*map(str, runs["numbers"])})) for runs in (first, second)]
    environments = [_environment(runs) for runs in (first, second)]
    if numbers[0] != numbers[1]:
        return f"{remark}; kept numbers are of {numbers[0]}, these of {numbers[1]}"
    if environments[0] == environments[1] and environments[0].startswith(f"arithmetic {PORTABLE}"):
        return f"{remark}, although {EXACT}: this is a fault, please report it"
    return (
        f"{remark}, as they may by rounding: kept values are of {environments[0]}, these of "
        f"{environments[1]}"
    )


def _environment(runs: pd.DataFrame) -> str:
    """Return what computed runs, ``arithmetic portable, torch 2.11.0``."""
    texts = {
        ", ".join(f"{key} {row[key]}" for key in DECIDES_BITS if isinstance(row[key], str))
        for row in runs.to_dict("records")
    }
    return "; ".join(sorted(texts))
