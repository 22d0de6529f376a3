"""The page of `fedloom watch`: what failed, and round, curve and time left of each run.

It is made of files that runs write anyway, so that training pays nothing for it: curves of
unfinished runs are those of their newest checkpoints.
"""

from __future__ import annotations

import math
import re
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fl.base.errors import ConfigError, DataError, FedloomError
from fl.base.hashes import change_stamp
from fl.base.schema import DIVERGED, PERSONAL, SETTING
from fl.base.units import duration, first_of, printable, quantity
from fl.plan import plan_files, study_files
from fl.plan.config import read_settings
from fl.report.cells import number, unit
from fl.runner import slurm
from fl.store.store import Progress, Store
from fl.workflow import status
from fl.workflow.estimate import LatestRates
from fl.workflow.status import RunStatus

STYLE_BY_STATE = {
    "failed": "bold red",
    "running": "bold cyan",
    "interrupted": "yellow",
    DIVERGED: "red",
    "done": "green",
    "waiting": "dim",
}
"""Styles of states, in the order of the page."""

BARS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 10
"""Most characters of a curve."""

MIN_NAME, LEFT_WIDTH = 10, 6
"""Fewest characters of names of runs, and of the time left, so that no column jumps."""

PAUSE = 2.0
"""Least seconds between two looks, which take at most a tenth of the time."""

PATIENCE = 10.0
"""Seconds for which a page waits for a new plan if no run of the written one is to be trained."""

PLANNING = 30.0
"""The same if config or code has changed since the written plan."""


class Curve(NamedTuple):
    """A metric of a run: its mean over clients by evaluated round."""

    metric: str
    split: str
    values: pd.Series

    @property
    def label(self) -> str:
        """The metric with its unit; of the training loss, that it is one."""
        return f"{'training ' if self.split == 'train' else ''}{unit(self.metric)}"


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run, as its line shows it.

    Attributes:
        state: A state of `STYLE_BY_STATE`.
        round: Number of completed rounds.
        curve: Its curve; None before the first one is stored.
        seconds: Expected seconds until its end; None if unknown.
    """

    state: str
    round: int
    curve: Curve | None = None
    seconds: float | None = None


class Watch:
    """The page of some studies, which is read again and again.

    Args:
        results: Folder of the results.
        store: The store.
        names: Studies of the plan, and names of calls of `fl.run`; by default all of the plan.
    """

    def __init__(self, results: Path, store: Store, names: Sequence[str]) -> None:
        self._results, self._store, self._names = results, store, names
        self._rates, self._minute = LatestRates(store), -1
        self._stamp: str | None = None
        self._finished: dict[str, RunProgress] = {}
        self._saved: dict[str, Progress] = {}

    def _read_plan(self) -> None:
        """Read the plan, if it has changed."""
        paths = [plan_files.file_of(self._results, "studies", name) for name in self._names]
        stamp = change_stamp([plan_files.index_file(self._results), *paths])
        if stamp == self._stamp:
            return
        self._bundles = status.bundles(self._results, self._names)
        self._stamp = stamp
        self._runs = {run.run: run for bundle in self._bundles for run in bundle.runs}
        self._members = {b.bundle: [run.run for run in b.runs] for b in self._bundles}
        runs = [*self._runs.values()]
        texts = {key: dict.fromkeys(getattr(run, key) for run in runs) for key in SETTING}
        self._varied = {key: differences(texts[key]) for key in SETTING if len(texts[key]) > 1}
        shared = [text for key in SETTING if key not in self._varied for text in texts[key]]
        names = ", ".join(self._names or status.studies(self._results))
        self._title = f"{names}: {' / '.join(shared)}" if shared else names

    def read(self) -> bool:
        """Read the state of all runs; return whether all are done.

        Slurm is asked once a minute why runs wait or ended, where files do not tell it.

        Raises:
            ConfigError: If the plan lacks one of the studies.
            DataError: If there is no plan, or it cannot be read, as it is being written.
        """
        self._read_plan()
        minute = int(time.monotonic() // 60)
        is_new_minute = minute != self._minute
        if is_new_minute:
            self._minute, self._find_reason = minute, cache(slurm.end_reason)
        results = self._results if is_new_minute else None
        statuses = status.run_statuses(self._bundles, self._store, results, self._find_reason)
        if is_new_minute:
            self._unbegun = {
                run_status.run: run_status for run_status in statuses if run_status.is_unbegun
            }
        self._statuses = [
            self._unbegun.get(run_status.run, run_status)
            if run_status.state == "waiting"
            else run_status
            for run_status in statuses
        ]
        return all(run_status.state == "done" for run_status in self._statuses)

    def is_outdated(self, config: Path) -> bool:
        """Whether config or code has changed since the plan was made, so that it is made anew."""
        try:
            settings = read_settings(config)
            index = plan_files.read_index(self._results)
            is_planned = index is not None and {*self._names} <= {*index.studies}
            return is_planned and plan_files.read_current_index(config, settings) is None
        except FedloomError:
            return False  # `fedloom run` says what is wrong, and trains nothing.

    def is_in(self, config: Path) -> bool:
        """Whether all its studies are in a config folder."""
        return all(study_files.file(config, name).exists() for name in self._names)

    def page(self, width: int, height: int) -> Group:
        """Return the page.

        Args:
            width: Its columns.
            height: Its lines.
        """
        counts = Counter(run_status.state for run_status in self._statuses)
        words = [f"{counts[state]} {state}" for state in STYLE_BY_STATE if counts[state]]
        head = [self._title, f"{quantity(len(self._statuses), 'run')}: {', '.join(words)}"]
        if counts["running"]:
            head.append(status.remaining_time(self._statuses, self._rates.read()))
        failures = [*self._failure_lines(width, (height - len(head)) // 2)]
        unfailed = [run_status for run_status in self._statuses if run_status.state != "failed"]
        rows = height - len(head) - len(failures) - 1
        page: list[RenderableType] = [_line(text, width, "bold") for text in head]
        page += failures
        if unfailed and rows > 0:
            page += self._table(unfailed, width, rows)
        return Group(*page)

    def _failure_lines(self, width: int, limit: int) -> Iterator[Text]:
        """Yield the lines of failures, with one entry for all runs that ended alike."""
        groups: dict[tuple[str, str], list[RunStatus]] = {}
        for run_status in self._statuses:
            if run_status.state == "failed":
                error = run_status.attempt.error if run_status.attempt else run_status.note
                log = run_status.attempt.log if run_status.attempt else run_status.details
                groups.setdefault((error, log), []).append(run_status)
        entries = [self._failure(group, *key, width) for key, group in groups.items()]
        shown = 1
        while shown < len(entries) and sum(map(len, entries[: shown + 1])) < limit:
            shown += 1
        yield from (line for entry in entries[:shown] for line in entry)
        if len(entries) > shown:
            text = f"and {len(entries) - shown} other errors; `fedloom status` lists all"
            yield _line(text, width, STYLE_BY_STATE["failed"])

    def _failure(self, group: Sequence[RunStatus], error: str, log: str, width: int) -> list[Text]:
        """Return the lines of runs that ended alike: which, the error, the log."""
        names = first_of([self._name([run_status.run]) for run_status in group], "run")
        rounds = f"after round {group[0].round} of {group[0].spec['training']['rounds']}"
        text, place = error.partition("\n")[0], f"log {log.strip(' ()')}" if log else ""
        room = width - 2
        errors = textwrap.wrap(printable(text), room, max_lines=2, placeholder=" …")
        # A path is not shortened, so that it can be copied.
        logs = textwrap.wrap(printable(place), room, break_on_hyphens=False)
        return [
            _line(f"failed {rounds}: {names}", width, STYLE_BY_STATE["failed"]),
            *(_line(f"  {line}", width) for line in errors),
            *(_line(f"  {line}", width, "dim") for line in logs),
        ]

    def _name(self, runs: Sequence[str]) -> str:
        """Return the name of runs of a bundle, by what differs in the plan."""
        members = [self._runs[run] for run in runs]
        varied = [texts[getattr(members[0], key)] for key, texts in self._varied.items()]
        where = f", {' / '.join(varied)}" if varied else ""
        seeds = f"{len(runs)} seeds" if len(runs) > 1 else f"seed {members[0].seed}"
        return f"{members[0].entry_title}{where}, {seeds}"

    def _table(
        self, statuses: Sequence[RunStatus], width: int, limit: int
    ) -> Iterator[RenderableType]:
        """Yield a table of at most ``limit`` lines, and what it leaves out."""
        order = [*STYLE_BY_STATE]
        by_name = sorted(statuses, key=lambda run_status: self._name([run_status.run]))
        ordered = sorted(by_name, key=lambda run_status: order.index(run_status.state))
        groups = [[run_status] for run_status in ordered]
        if len(groups) > limit:
            by_bundle: dict[tuple[str, str], list[RunStatus]] = {}
            for run_status in ordered:
                by_bundle.setdefault(
                    (run_status.state, self._runs[run_status.run].bundle), []
                ).append(run_status)
            groups = [*by_bundle.values()]
        shown = groups if len(groups) <= limit else groups[: limit - 1]
        lines = [self._cells(group) for group in shown]
        [label, *further] = {label for label, _ in lines if label} or {""}
        header = label if label.startswith("training") else f"val {label}"
        rows = [("", "run", "round", "metric" if further or not label else header, "left")]
        for label, (state, name, round_, curve, duration_left) in lines:
            rows.append(
                (state, name, round_, f"{label} {curve}" if further else curve, duration_left)
            )
        widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        widths[3:] = [max(widths[3], 7 + CURVE_WIDTH), max(widths[4], LEFT_WIDTH)]
        widths[1] = max(MIN_NAME, width - sum(widths) + widths[1] - 2 * (len(widths) - 1))
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for title, columns in zip(rows[0], widths, strict=True):
            justify: Any = "right" if title in ("round", "left") else "left"
            table.add_column(Text(title, "dim"), justify=justify, width=columns, no_wrap=True)
        for state, name, *cells in rows[1:]:
            texts = [Text(state, STYLE_BY_STATE[state]), _line(name, widths[1])]
            table.add_row(*texts, *map(Text, cells))
        yield table
        omitted = Counter(
            run_status.state for group in groups[len(shown) :] for run_status in group
        )
        if omitted:
            counts = ", ".join(f"{n} {state}" for state, n in omitted.items())
            yield _line(f"and {quantity(omitted.total(), 'more run')}: {counts}", width, "dim")

    def _cells(self, group: Sequence[RunStatus]) -> tuple[str, tuple[str, str, str, str, str]]:
        """Return the label of the metric and the cells of runs of a bundle in the same state.

        Their curve is the mean over them, and their round that of the slowest.
        """
        progresses = [self._progress(run_status) for run_status in group]
        state = min((p.state for p in progresses), key=[*STYLE_BY_STATE].index)
        round_ = min(p.round for p in progresses)
        seconds = max((p.seconds for p in progresses if p.seconds is not None), default=None)
        label = curve = ""
        if curves := [p.curve for p in progresses if p.curve is not None]:
            mean = pd.concat([curve.values for curve in curves], axis=1).mean(axis=1).sort_index()
            label = curves[0].label
            curve = f"{number(mean.iloc[-1], curves[0].metric):>5}  {sparkline(mean.to_numpy())}"
        return label, (
            state,
            self._name([run_status.run for run_status in group]),
            f"{round_}/{group[0].spec['training']['rounds']}",
            curve,
            "" if seconds is None else duration(seconds),
        )

    def _progress(self, run_status: RunStatus) -> RunProgress:
        """Return what the files say of a run."""
        if run_status.state == "done":
            if run_status.run not in self._finished:
                self._finished[run_status.run] = self._finished_progress(run_status.run)
            return self._finished[run_status.run]
        # Runs of a stack have one checkpoint, in the folder of one of them.
        members = [run_status.run, *self._members[self._runs[run_status.run].bundle]]
        checkpoints = (saved for saved in map(self._read_saved, members) if saved is not None)
        saved = next(
            (saved for saved in checkpoints if (saved.rows["run"] == run_status.run).any()), None
        )
        if saved is None:
            return RunProgress(run_status.state, 0)
        rows, seconds = saved.rows[saved.rows["run"] == run_status.run], None
        if run_status.state == "running" and saved.round:
            remaining = run_status.spec["training"]["rounds"] - saved.round
            past = max(0.0, time.time() - saved.time)
            seconds = max(0.0, remaining * saved.seconds / saved.round - past)
        return RunProgress(run_status.state, saved.round, curve_of(rows), seconds)

    def _finished_progress(self, run: str) -> RunProgress:
        try:
            record, rows = self._store.record(run), self._store.metrics(run)
        except FedloomError:  # `fedloom status` says what is damaged.
            return RunProgress("done", 0)
        state = DIVERGED if record["state"] == DIVERGED else "done"
        return RunProgress(state, record["rounds"], curve_of(rows))

    def _read_saved(self, run: str) -> Progress | None:
        """Return a run's newest checkpoint, which is read once."""
        round_ = self._store.round(run)
        if round_ is None:
            return None
        progress = self._saved.get(run)
        if progress is None or progress.round < round_:
            progress = self._store.progress(run) or progress
            if progress is not None:
                self._saved[run] = progress
        return progress


def pages(
    watch: Watch, size: Callable[[], tuple[int, int]], config: Path | None = None
) -> Iterator[Group]:
    """Yield the page every few seconds until all runs are done.

    What trains may have begun at the same time, so that its plan is not written yet. So a plan
    without unfinished runs is shown for `PATIENCE`, and, if the config has changed since, for
    `PLANNING`, in which another one is likely to come; as long a plan may be missing.

    Args:
        watch: What is shown.
        size: Function that returns columns and lines of the page.
        config: The config folder; None for a call of `fl.run` without one.

    Raises:
        ConfigError: If the plan lacks one of the studies, and none with them is written in time.
        DataError: If there is no plan that can be read for `PLANNING`.
    """
    begin, was_unfinished, is_done = time.monotonic(), False, False
    last_read = begin
    while not is_done:
        start = time.monotonic()
        is_late = start - begin > PATIENCE
        try:
            is_done = watch.read()
            last_read = start
            was_unfinished |= not is_done
            note = ""
            if is_done and not was_unfinished:
                is_old = config is not None and watch.is_outdated(config)
                is_done = time.monotonic() - begin > (PLANNING if is_old else PATIENCE)
                reason = "config or code has changed since this plan; " if is_old else ""
                note = "" if is_done else f"{reason}waits for a new plan"
            columns, rows = size()
            notes = [Text(note, "yellow")] if note else []
            yield Group(watch.page(columns, rows - len(notes)), *notes)
        except ConfigError as error:
            if is_late if config is None else not watch.is_in(config):
                raise
            yield Group(Text(f"{printable(error)}\nwaits for its plan", "yellow"))
        except DataError as error:  # The plan is not written yet, or just now.
            if start - last_read > PLANNING:
                raise
            yield Group(Text(f"{printable(error)}\nwaits for a plan", "yellow"))
        if not is_done:
            time.sleep(max(PAUSE, 9 * (time.monotonic() - start)))


def curve_of(rows: pd.DataFrame) -> Curve | None:
    """Return the curve of a run's first metric on validation data, as early stopping has it.

    Without validation data it is that of the training loss. Test data are not looked at.

    Args:
        rows: Metrics of the run, in the columns of `fl.base.schema.METRIC_COLUMNS`.
    """
    chosen = rows[rows["split"] == "val"]
    if chosen.empty:
        chosen = rows[rows["split"] == "train"]
    if (chosen["metric"] != "loss").any():
        chosen = chosen[chosen["metric"] != "loss"]
    if chosen.empty:
        return None
    metric, split = str(chosen["metric"].iloc[0]), str(chosen["split"].iloc[0])
    chosen = chosen[chosen["metric"] == metric]
    if (chosen["stage"] == PERSONAL).any():
        chosen = chosen[chosen["stage"] == PERSONAL]
    return Curve(metric, split, chosen.groupby("round")["value"].mean())


def differences(texts: Iterable[str]) -> dict[str, str]:
    """Return of each text the words that not all of them have: ``alpha=0.3``; else the text."""
    words = {text: re.findall(r"[\w.=+-]+", text) for text in texts}
    shared = set.intersection(*map(set, words.values()))
    return {
        text: " ".join(word for word in of_text if word not in shared) or text
        for text, of_text in words.items()
    }


def sparkline(values: Sequence[float] | np.ndarray) -> str:
    """Return a curve of up to `CURVE_WIDTH` blocks, from its lowest to its highest value."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    pieces = np.array_split(finite, min(CURVE_WIDTH, len(finite)))
    heights = [float(piece.mean()) for piece in pieces]
    low, height = min(heights), max(heights) - min(heights) or 1.0
    return "".join(BARS[round((value - low) / height * (len(BARS) - 1))] for value in heights)


def shortened(text: str, width: int) -> str:
    """Return a text of at most ``width`` characters, without its middle if it is longer."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def _line(text: str, width: int, style: str = "") -> Text:
    return Text(shortened(printable(text), width), style, no_wrap=True, overflow="ellipsis")
