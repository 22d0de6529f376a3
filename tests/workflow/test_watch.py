"""The page of `fedloom watch`, from files of runs that train, fail, wait and are done."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from notebooks import CALL
from planning import signalled, write_config, write_study
from rich.console import Console

import fl
from fl.base.errors import ConfigError, DataError
from fl.cli import main
from fl.plan import plan, plan_files
from fl.store.store import Store
from fl.store.workspace import Attempt
from fl.workflow import watch as watching
from fl.workflow.watch import Watch, curve_of, differences, shortened, sparkline


def size() -> tuple[int, int]:
    return 80, 23


class Place:
    """The tiny study, planned in a folder, and its page."""

    def __init__(self, root: Path, study: dict[str, Any]) -> None:
        self.root, self.store = root, Store(root / "runs")
        self.plan = plan.make(write_config(root, study), to_write=True)
        plan.write(self.plan)
        self.watch = Watch(root / "results", self.store, [])

    def train(self, method: str) -> int:
        [bundle] = {run.bundle for run in self.plan.runs.values() if run.method == method}
        path = plan_files.file_of(self.root / "results", "bundles", bundle)
        return main.main(["train", str(path), "--store", str(self.store.root)])

    def lines(self, width: int = 80, height: int = 23) -> list[str]:
        """The page as a terminal of this size has it, which it fits."""
        self.watch.read()
        console = Console(width=width, height=height)
        with console.capture() as capture:
            console.print(self.watch.page(width, height))
        shown = [line.rstrip() for line in capture.get().splitlines()]
        assert len(shown) <= height
        assert all(len(line) <= width for line in shown)
        return shown


@pytest.fixture
def placed(tmp_path: Path) -> Callable[..., Place]:
    return lambda **study: Place(tmp_path, study)


def test_a_run_waits_is_interrupted_trains_and_is_done(placed: Callable[..., Place]) -> None:
    place = placed()
    title, counts, _, row = place.lines()  # Nobody trains it, so that no time is left.
    assert title.startswith("tiny: synthetic(") and title.endswith("mlp(hidden=[5])")
    assert (counts, row.split()) == ("1 run: 1 waiting", ["waiting", "FedAvg,", "seed", "0", "0/6"])
    with signalled(after=4):
        place.train("fedavg")
    *_, head, row = place.lines()
    assert head.split() == ["run", "round", "val", "accuracy", "(%)", "left"]
    assert re.fullmatch(r"interrupted  FedAvg, seed 0 +4/6 +\d+\.\d  [▁-█]{4}", row)
    [run] = place.plan.runs
    with place.store.open(run):
        assert "unknown" in place.lines()[2]
        assert re.search(r"^running .* 4/6 +\d+\.\d  [▁-█]{4} +\d", place.lines()[-1])
    assert place.train("fedavg") == 0
    title, counts, head, row = place.lines()
    assert counts == "1 run: 1 done"
    assert re.fullmatch(r"done  FedAvg, seed 0 +6/6 +(\d+\.\d)  [▁-█]{6}", row)
    rows = place.store.metrics(run)
    scored = rows[(rows["split"] == "val") & (rows["metric"] == "accuracy") & (rows["round"] == 6)]
    assert f"{100 * scored['value'].mean():.1f}" in row


def fail(store: Store, run: str, error: str, log: str) -> None:
    with store.open(run) as workspace:
        assert workspace is not None
        workspace.begin(Attempt(log=log))
        workspace.note(ended="error", error=error)


def test_failures_come_first_with_error_and_log(placed: Callable[..., Place]) -> None:
    place = placed(seeds=[*range(20)])
    runs = sorted(place.plan.runs.values(), key=lambda run: run.seed)
    error = f"mine.py, line 3: ValueError: {'too long ' * 30}\nand a second line"
    for run in runs[:2]:
        fail(place.store, run.run, error, "results/logs/train/one.log")
    shown = place.lines()
    assert shown[1].startswith("20 runs: 2 failed, 18 waiting")
    assert shown[2] == "failed after round 0 of 6: FedAvg, seed 0 and 1 other run"
    assert shown[3].startswith("  mine.py, line 3: ValueError: too long")
    assert shown[4].endswith("…") and "second" not in shown[4]
    assert shown[5] == "  log results/logs/train/one.log"
    assert re.fullmatch(r"waiting  FedAvg, 18 seeds +0/6", shown[7])
    for run in runs[2:]:
        fail(place.store, run.run, f"[red]error {run.seed}\x1b[2J", "")
    shown = place.lines()
    assert "  [red]error 2\\x1b[2J" in shown, "what a terminal would obey is written out"
    assert shown[-1] == "and 16 other errors; `fedloom status` lists all"


def test_many_runs_are_grouped_and_the_rest_is_counted(placed: Callable[..., Place]) -> None:
    mu = [n / 100 for n in range(1, 31)]
    place = placed(methods={"fedprox": {"mu": mu}}, seeds=[0, 1])
    shown = place.lines()
    assert len(shown) == 23
    assert sum("2 seeds" in line for line in shown) == 19
    assert shown[-1] == "and 22 more runs: 22 waiting"
    assert sum("seed 1" in line for line in place.lines(height=70)) == 30


def test_a_new_plan_is_read_while_the_page_is_shown(placed: Callable[..., Place]) -> None:
    place = placed()
    assert "1 run: 1 waiting" in place.lines()
    write_study(place.root, {"seeds": [0, 1, 2]})
    plan.write(plan.make(place.root / "config", to_write=True))
    assert "3 runs: 3 waiting" in place.lines()


def test_a_page_of_finished_runs_waits_for_the_plan_of_a_changed_config(
    placed: Callable[..., Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`fedloom run` may have begun in the same second, and plans for some seconds."""
    monkeypatch.setattr(watching, "PATIENCE", -1.0)
    monkeypatch.setattr(watching, "PAUSE", 0.0)
    place = placed()
    config = place.root / "config"
    assert place.train("fedavg") == 0
    shown = watching.pages(Watch(place.root / "results", place.store, ["tiny"]), size, config)
    assert len([*shown]) == 1, "nothing is to be trained"
    write_study(place.root, {"seeds": [0, 1]})
    shown = watching.pages(Watch(place.root / "results", place.store, ["tiny"]), size, config)
    next(shown), next(shown)
    place.plan = plan.make(config, to_write=True)
    plan.write(place.plan)
    next(shown)
    assert place.train("fedavg") == 0
    assert len([*shown]) == 1
    (config / "studies" / "tiny.yaml").rename(config / "studies" / "new.yaml")
    names = ["new"]
    shown = watching.pages(Watch(place.root / "results", place.store, names), size, config)
    next(shown), next(shown)
    plan.write(plan.make(config, names, to_write=True))
    assert len([*shown]) == 1, "its run is stored"


def test_a_page_without_any_plan_waits_for_some_seconds_and_ends(
    placed: Callable[..., Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "PAUSE", 0.0)
    monkeypatch.setattr(watching, "PLANNING", 0.2)
    place = placed()
    results = place.root / "results"
    shown = watching.pages(Watch(results, place.store, []), size)
    next(shown)
    plan_files.index_file(results).rename(place.root / "index")
    next(shown)
    (place.root / "index").rename(plan_files.index_file(results))
    next(shown)
    with pytest.raises(DataError, match="there is no plan"):
        [*watching.pages(Watch(place.root, place.store, []), size)]


def test_a_call_of_a_notebook_is_watched_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It writes no index of the plan, and there is no config."""
    monkeypatch.chdir(tmp_path)
    fl.run(methods={"local": None}, **CALL)
    capsys.readouterr()
    assert main.main(["watch", "notebook", "--once"]) == 0
    assert re.search(r"done  Local, seed 0 +6/6", capsys.readouterr().out)
    updates: list[str] = []

    class Display:
        def update(self, page: str) -> None:
            updates.append(page)

    shown = types.ModuleType("IPython.display")
    vars(shown).update(HTML=str, display=lambda page, display_id: Display())
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    monkeypatch.setattr(watching, "PATIENCE", -1.0)
    fl.watch("notebook")
    [page] = updates
    assert page.startswith("<pre") and "Local, seed 0" in page


def test_what_is_not_planned_is_refused(tmp_path: Path) -> None:
    results, store = tmp_path / "results", Store(tmp_path / "runs")
    with pytest.raises(DataError, match="there is no plan"):
        Watch(results, store, []).read()
    plan.read_index(write_config(tmp_path))
    with pytest.raises(ConfigError, match=r"tini.*did you mean 'tiny'"):
        Watch(results, store, ["tini"]).read()


def test_without_rich_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert main.main(["watch", "--config", str(config)]) == 1
    assert "Try: python -m pip install 'fedloom[watch]'" in capsys.readouterr().err


def rows(*values: tuple[int, str, str, str, float]) -> pd.DataFrame:
    return pd.DataFrame(values, columns=["round", "split", "stage", "metric", "value"])


def test_a_curve_is_of_validation_data_and_of_the_clients_own_models() -> None:
    loss, test = (1, "train", "global", "loss", 2.0), (1, "test", "global", "accuracy", 0.9)
    shared = (1, "val", "global", "accuracy", 0.5)
    own = [(1, "val", "personal", name, value) for name in ("loss", "accuracy") for value in (0, 1)]
    curve = curve_of(rows(loss, test, shared, *own))
    assert (curve.label, [*curve.values]) == ("accuracy (%)", [0.5])
    curve = curve_of(rows(loss, test))
    assert (curve.label, curve.values.to_dict()) == ("training loss", {1: 2.0})
    assert curve_of(rows()) is None


def test_texts_are_short() -> None:
    assert sparkline([1, float("nan"), 2, 3]) == "▁▅█"
    assert sparkline([5.0] * 40) == "▁" * watching.CURVE_WIDTH
    assert sparkline([float("inf")]) == ""
    assert shortened("abcdefgh", 5) == "ab…gh"
    assert differences(["a(b=1, c=2)", "a(b=1, c=3)"]) == {
        "a(b=1, c=2)": "c=2",
        "a(b=1, c=3)": "c=3",
    }
    assert differences(["digits", "digits(size=8)"])["digits"] == "digits"
