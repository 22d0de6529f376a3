"""One's own method beside all that were compared: `compare`, or ``make compare METHOD=name``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fl.base.errors import ConfigError, FedloomError, unknown_name
from fl.base.schema import DIVERGED
from fl.base.units import quantity
from fl.notebook import classes
from fl.notebook.keys import CALL
from fl.notebook.plainly import plainly
from fl.notebook.run import FOLDER, run
from fl.plan.config import read_yaml
from fl.report import claims, result_files, tracks
from fl.report.cells import number, probability

SAID = {claims.AHEAD: "ahead of", claims.OPEN: "not told apart from"}
"""Verdicts, before the names of other methods."""
CLIENTS = {"dataset", "partition"}
BUDGET = {"rounds", "local_epochs", "local_steps", "batch_size", "train_on", "start"}
"""Keys of an entry that would compare other things than methods: refused, and remarked."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """What `fl.compare` gives; printed, it says everything in words.

    Attributes:
        method: What the method is called.
        lines: Its own lines and those of the methods that are kept, `fl.report.tracks.COLUMNS`.
        table: A row for each track and other method: ``difference`` of accuracy over draws with
            bounds ``low`` and ``high``, ``p``, ``p_holm`` (over all rows) and ``verdict``.
        remarks: What has to be known beside, such as a check that failed.
    """

    method: str
    lines: pd.DataFrame
    table: pd.DataFrame
    remarks: tuple[str, ...]

    def __repr__(self) -> str:
        said = [self._track(str(track)) for track in self.lines["track"].unique()]
        tests = int(self.table["p"].notna().sum())
        rule = f"exact sign-flip tests over draws, Holm's correction for {tests} comparisons "
        rule += f"of {quantity(self.lines['track'].nunique(), 'track')}, 5 %"
        return "\n".join([*said, f"({rule})", *self.remarks])

    def _track(self, track: str) -> str:
        scores = tracks.values(self.lines, track)
        if self.method not in scores:
            return (
                f"{track}: nothing of {self.method} to compare: no run of it scores a client here"
            )
        places = tracks.ranks(scores)
        lost = int(scores[self.method].isna().sum())
        draws = f"{len(scores)} draws, {lost} of them lost" if lost else f"{len(scores)} draws"
        place = int((places < places[self.method]).sum()) + 1
        mean = number(scores[self.method].mean(), "accuracy")
        head = (
            f"{track}: {self.method} has {mean} %, place {place} of {len(places)} by mean rank "
            f"{places[self.method]:.1f} over {draws}"
        )
        here = self.table[self.table["track"] == track]
        base = here[here["other"] == tracks.BASELINE]
        for row in base.to_dict("records"):
            gain, low, high = (
                number(row[key], "accuracy", signed=True) for key in ("difference", "low", "high")
            )
            holm = probability(row["p_holm"])
            head += (
                f"; from {row['other']} {gain} ({low} to {high}), Holm's p {holm}: {row['verdict']}"
            )
        for (verdict, reason), group in here.groupby(["verdict", "reason"], sort=False):
            why = f" ({reason})" if reason else ""
            head += f"\n  {SAID.get(str(verdict), verdict)}{why}: {', '.join(group['other'])}"
        return head


@plainly
def compare(
    method: str | type,
    *,
    only: str | None = None,
    config: str | Path | None = None,
    progress: bool = True,
    **keys: Any,
) -> Comparison:
    """Train one method on the tracks, and compare it with all methods whose results are kept.

    Beside it FedAvg is trained, as a check that this machine and this code give what is kept.

    Args:
        method: Its name, as a study says it, a class as in `run`, or an entry of the tracks.
        only: One track, by name; by default all.
        config: A config folder, by default ``config`` in the working directory.
        progress: Whether to show a progress bar.
        keys: Of the entry: hyper-parameters and training keys; a list is a grid, whose point is
            chosen on the validation data of each draw. The other methods have four points each. If
            there is no ``lr`` here, the method is tried at the track's two rates.

    Raises:
        FedloomError: If there is no kept table, for data or clients other than the track's, or as
            `run`.
    """
    folder = Path(config or FOLDER)
    for key in CLIENTS & keys.keys():
        raise ConfigError(CALL / key, "is set, and clients are the track's", "other keys")
    kept = tracks.kept(folder)
    named = {name.removeprefix(tracks.PREFIX): name for name in tracks.studies(folder)}
    if only is not None and only not in named:
        raise unknown_name(CALL / "only", "track", only, named)
    if only is not None and only not in set(kept["track"]):
        raise unknown_name(CALL / "only", "kept track", only, set(kept["track"]))
    label = method if isinstance(method, str) else classes.label(method)
    lines: list[pd.DataFrame] = []
    remarks: list[str] = []
    if budget := sorted(BUDGET & keys.keys()):
        given = f"{label} has its own {', '.join(budget)}"
        remarks.append(f"{given}; the others have the track's budget, so that this compares both")
    for track in [only] if only else [t for t in named if t in set(kept["track"])]:
        here, points, diverged = _trained(folder, named[track], label, method, keys, progress)
        there = kept[kept["track"] == track]
        here = here[here["draw"].isin(there["draw"])]
        lines += [there[there["method"] != label], here[here["method"] == label]]
        remarks += _checked(track, there, here)
        if points != 4:
            remarks.append(
                f"{track}: {label} had {points} grid points, the others four: "
                f"`fl.compare` takes lists, as alpha=[0.25, 0.75]"
            )
        if diverged:
            remarks.append(f"{track}: {diverged} runs of {label} diverged")
    joined = pd.concat(lines, ignore_index=True)
    return Comparison(label, joined, tracks.against(joined, label), tuple(remarks))


def _trained(
    folder: Path, name: str, label: str, method: str | type, keys: Mapping[str, Any], shown: bool
) -> tuple[pd.DataFrame, int, int]:
    """The lines of a method and of FedAvg on a track; the points of the method's grid, and how many
    of its runs diverged.
    """
    given = dict(read_yaml(folder / "studies" / f"{name}.yaml"))
    del given["baseline"]
    known = given["methods"]
    own_entry = known[label] if label in known and not keys else {"method": method, **keys}
    entries: dict[str, Any] = {tracks.CHECK: known[tracks.CHECK], label: own_entry}
    start = str((own_entry or {}).get("start"))
    while start in known:
        entries[start] = known[start]
        start = str((known[start] or {}).get("start"))
    given["methods"] = entries
    called = f"compare-{name}"
    result = run(name=called, config=folder, progress=shown, keep_weights=False, **given)
    rows, runs = result_files.read(
        result.study, Path(result.settings.store), Path(result.settings.results)
    )
    starts = {m: e["start"] for m, e in entries.items() if e and "start" in e}
    table = tracks.measured(name.removeprefix(tracks.PREFIX), starts, rows, runs)
    mine = runs[runs["method"] == label]
    return table, int(mine["point"].nunique()), int((mine["state"] == DIVERGED).sum())


def _checked(track: str, kept: pd.DataFrame, here: pd.DataFrame) -> list[str]:
    """Whether FedAvg came out as it is kept."""
    both = [t[t["method"] == tracks.CHECK].set_index("draw") for t in (kept, here)]
    before, now = both
    gap = 100 * (now["accuracy"] - before["accuracy"])
    if len(now) == len(before) and (gap.abs() < 1e-3).all():
        return [f"{track}: {tracks.CHECK} came out as kept in all {len(before)} draws"]
    versions = [", ".join(sorted(set(t["numbers"]))) for t in both]
    told = f"{track}: {tracks.CHECK} is not as kept: {len(now)} of {len(before)} draws, "
    told += f"{gap.mean():+.2f} points in the mean, up to {gap.abs().max():.2f} in a draw"
    if versions[0] != versions[1]:
        told += f"; kept are numbers of {versions[0]}, here are those of {versions[1]}"
    return [told]


def main(arguments: list[str] | None = None) -> int:
    """Compare a method from the command line."""
    parser = argparse.ArgumentParser(prog="python -m fl.notebook.compare", description=main.__doc__)
    parser.add_argument("method")
    parser.add_argument("--only", help="one track")
    parsed = parser.parse_args(arguments)
    try:
        print(compare(parsed.method, only=parsed.only))
    except FedloomError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
