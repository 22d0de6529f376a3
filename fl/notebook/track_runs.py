"""Runs of a method on a track: on the draws where its point is chosen, then on the track's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fl.base import registry
from fl.base.declaration import declaration_of
from fl.base.schema import DIVERGED, GLOBAL, MISSING
from fl.base.units import quantity
from fl.notebook.keys import CALL
from fl.notebook.result import Result
from fl.notebook.run import run
from fl.plan import study_files
from fl.plan.config import Values, read_yaml
from fl.report import result_files, tracks, tuning
from fl.report.facts import read_partitions
from fl.report.tables import HYPER


@dataclass(frozen=True)
class TrackRuns:
    """Runs of a method on a track.

    Attributes:
        folder: Config folder of the user.
        tracks_folder: Config folder of the tracks.
        name: Name of the track.
        study: The track's study, as its file has it.
        progress: Whether to show a progress bar.
    """

    folder: Path
    tracks_folder: Path
    name: str
    study: Values
    progress: bool

    def results(
        self, name: str, method: str | type, keys: Values
    ) -> tuple[pd.DataFrame, list[str]]:
        """Train a method and FedAvg; return their results, and remarks on grid and runs."""
        track_entries = self.study["methods"]
        remarks: list[str] = []
        if name in track_entries and not keys:
            entry = track_entries[name]
        else:
            entry = {"method": method, **budget(method, track_entries[tracks.CHECK]), **keys}
            entry, remarks = self._tuned(name, entry)
        chain: dict[str, Any] = {name: entry}
        start = str((entry or {}).get("start"))
        while start in track_entries:
            chain[start] = track_entries[start]
            start = str((track_entries[start] or {}).get("start"))
        check = {tracks.CHECK: track_entries[tracks.CHECK]}
        entries = check | chain
        result, rows, runs = self._run(
            f"{study_files.TRACK_PREFIX}{self.name}", self.study, entries
        )
        partitions = read_partitions(Path(result.settings.results), runs, {})
        starts = {m: e["start"] for m, e in entries.items() if e and "start" in e}
        tables = []
        # Each from its own runs, so that failures of the method hide no result of FedAvg.
        for method_name, used in {tracks.CHECK: check, name: chain}.items():
            used_rows, used_runs = (table[table["method"].isin(used)] for table in (rows, runs))
            table = tracks.measured_lines(self.name, starts, used_rows, used_runs, partitions)
            tables.append(table[table["method"] == method_name])
        method_runs = runs[runs["method"] == name]
        points = int(method_runs["point"].nunique())
        if points > 1:
            remarks.append(
                f"{self.name}: {name} had {quantity(points, 'grid point')}, chosen in each draw"
            )
        counts = method_runs["state"].value_counts()
        remarks += [
            f"{self.name}: {counts[state]} of {quantity(len(method_runs), 'run')} of {name} {verb}"
            for state, verb in ((MISSING, "failed"), (DIVERGED, "diverged"))
            if state in counts
        ]
        return pd.concat(tables), remarks

    def _tuned(self, name: str, entry: Values) -> tuple[Values, list[str]]:
        """Choose the point of an entry on the draws on which the others were tuned.

        Returns:
            The entry at its best point, and a remark on it; the entry as it is if it has one point,
            if the track has no such draws, or if no point is trained in all of them. Keys of terms
            and alterations keep their grids, of which each draw of the track chooses.
        """
        tuning_name = f"{tuning.PREFIX}{tracks.TUNED_AS.get(self.name, self.name)}"
        path = study_files.file(self.tracks_folder, tuning_name)
        has_grid = "lr" not in entry or any(isinstance(value, list) for value in entry.values())
        if not path.exists() or not has_grid:
            return dict(entry), []
        study = read_yaml(path)
        _, rows, runs = self._run(tuning_name, study, {name: entry})
        table = tuning.points(rows, runs)
        if table.empty:
            remark = f"{self.name}: no point of {name} is trained in all draws of {tuning_name}"
            return dict(entry), [f"{remark}, so that each draw chooses its own"]
        chosen = tuning.best(table, {})[name]
        tuned, shown = dict(entry), []
        for key, value in chosen.filter(like=HYPER).items():
            key = str(key).removeprefix(HYPER)
            grid = entry.get(key, study["training"].get(key))
            if isinstance(grid, list) and value in grid:
                tuned[key] = grid[grid.index(value)]
                shown.append(f"{key}={tuned[key]}")
        if not shown:  # The only list is the value of a key, as names of layers are.
            return dict(entry), []
        count = quantity(int(runs["point"].nunique()), "grid point")
        remark = f"{self.name}: {name} has {', '.join(shown)}, the best of {count} on the draws of "
        remark += f"{tuning_name}, where the others were tuned"
        rates = entry.get("lr", study["training"]["lr"])
        if isinstance(rates, list) and tuned.get("lr") in (min(rates), max(rates)):
            edge = "highest" if tuned["lr"] == max(rates) else "lowest"
            remark += f"; it is the {edge} rate: try `lr` with others beyond, as the others had"
        return tuned, [remark]

    def _run(
        self, study_name: str, study: Values, entries: Mapping[str, Values | None]
    ) -> tuple[Result, pd.DataFrame, pd.DataFrame]:
        """Train entries in the place of a study's; return the result, its rows and its runs."""
        changed = {**study, "methods": entries}
        changed.pop("baseline", None)
        result = run(
            name=f"compare-{study_name}",
            config=self.folder if (self.folder / "config.yaml").exists() else None,
            progress=self.progress,
            keep_weights=False,
            **changed,
        )
        store, results = Path(result.settings.store), Path(result.settings.results)
        return result, *result_files.read(result.study, store, results)


def budget(method: str | type, check: Values | None) -> Values:
    """Return the rounds of FedAvg for a method without personal models, if the track has these.

    A track may train shared models for fewer rounds, so that fine-tuning ends with equal budgets.
    """
    if not check or "rounds" not in check:
        return {}
    if isinstance(method, str) and method not in registry.names("method"):
        return {}  # It is an entry of another track, which `fl.run` refuses.
    target = registry.find("method", method, CALL).target if isinstance(method, str) else method
    return {"rounds": check["rounds"]} if declaration_of(target).stages == (GLOBAL,) else {}
