"""A method of one's own beside those that are kept."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import planning
import pytest
import toy_track

import fl
from fl.api import BuildContext, Method, declare, recipe
from fl.base.errors import ConfigError, DataError, FedloomError
from fl.cli.main import main
from fl.notebook.compare_remarks import VARIANTS
from fl.notebook.comparison import Comparison
from fl.notebook.track_training import TrackTraining, Tuned
from fl.plan import track
from fl.plan.track import Track
from fl.report import kept_tracks, track_verdicts
from fl.report.kept_tracks import FLOOR, TrackResults
from fl.report.track_verdicts import EQUAL, NO_OP, UNSTABLE
from tools import comparison

KEYS = toy_track.changed(
    lr=[0.1],
    methods={
        "fedavg": None,
        "fedprox": {"mu": [0, 0.1]},
        "fedavg-ft": {"method": "finetune", "start": "fedavg", "rounds": 1},
        "fedprox-ft": {"method": "finetune", "start": "fedprox", "rounds": 1},
    },
    families={
        "personal": {"baseline": "fedavg-ft", "entries": ["fedavg", "fedprox-ft"]},
        "shared": {"baseline": "fedavg", "entries": ["fedprox"]},
        "newcomers": {"baseline": "fedavg-ft", "clients": "newcomers", "entries": ["fedavg"]},
    },
    budgets=None,
)


@declare("global")
class PlainMean:
    """What FedAvg is."""

    def build(self, context: BuildContext) -> Method:
        return recipe(context)


@declare("global")
class Failing:
    """FedAvg whose server fails, which no plan can see."""

    def build(self, context: BuildContext) -> Method:
        def aggregate(*trees: Any) -> Any:
            raise RuntimeError("the server is out of order")

        return replace(recipe(context), aggregate=aggregate)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config folder with a track, whose results are kept."""
    root = tmp_path_factory.mktemp("trained")
    toy_track.write(planning.write_config(root), KEYS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        assert comparison.main(["toy", "--trial", "config"]) == 0
    return root


@pytest.fixture
def lab(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a copy of that folder."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    settings = tmp_path / "config/config.yaml"
    settings.write_text(settings.read_text().replace(str(trained), str(tmp_path)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pairs(measured: Comparison) -> list[tuple[str, str, str]]:
    return [*measured.table[["family", "entry", "other"]].itertuples(index=False, name=None)]


def change(entry: str, by: float, **columns: str) -> None:
    """Change the kept values of an entry in draw 1, and columns of its runs."""
    place = kept_tracks.folder_of(Path("config"), "toy")
    kept = kept_tracks.read(place)
    is_off = kept.values["entry"].eq(entry) & kept.values["draw"].eq(1)
    kept.values["value"] += np.float32(by) * is_off.astype("float32")
    for column, text in columns.items():
        kept.runs.loc[kept.runs["entry"] == entry, column] = text
    kept_tracks.write(place, kept)


def test_a_class_stands_in_the_families_of_its_kind(lab: Path) -> None:
    shutil.rmtree(lab / "runs")  # All is trained anew, FedAvg and FedAvg-FT too.
    measured = fl.compare(PlainMean, progress=False)
    assert pairs(measured) == [
        ("shared", "plain-mean", "fedavg"),
        ("newcomers", "plain-mean", "fedavg-ft"),
    ]
    first = measured.table.iloc[0]
    assert (first["difference"], first["better"]) == (0, 0)
    assert first["verdict"] == EQUAL, "no better than the floor, as its baseline"
    checks = [remark for remark in measured.remarks if "has its kept values" in remark]
    assert len(checks) == 2 and {text.split()[1] for text in checks} == {"FedAvg", "FedAvg-FT"}
    # It is corrected with what is kept, and the verdicts on the others are there.
    [claims_of] = measured.tracks
    assert {"fedprox", "plain-mean"} <= set(claims_of.verdicts["entry"])
    said = repr(measured).splitlines()
    assert said[0].startswith("toy, shared: PlainMean has ")
    assert "equal, as all values are equal; place 1 of 1 in its family" in said[0]
    assert "<table" in measured._repr_html_()
    assert measured.to_latex().count("PlainMean") >= 2
    # With all kept entries of its families it is a paper's table.
    shared, newcomers = measured.tables(others=True)
    assert {row.head for row in shared.rows} == {"PlainMean", "FedProx"}
    assert {row.head for row in newcomers.rows} == {"PlainMean", "FedAvg"}
    assert measured.to_latex(others=True).count("FedProx") == 1
    # Remarks go with the table.
    assert all(f"% {text}\n" in measured.to_latex() for text in measured.remarks)
    assert "<p>toy: FedAvg has its kept values" in measured._repr_html_()


def test_a_personal_method_and_an_entry_of_the_track(lab: Path) -> None:
    measured = fl.compare("ditto", lam=[0.1, 1.0], lr=0.1, progress=False)
    assert pairs(measured) == [("personal", "ditto", "fedavg-ft")]
    chosen = [text for text in measured.remarks if text.startswith("toy, participants: Ditto has")]
    assert len(chosen) == 1 and "lam=" in chosen[0]
    # An entry takes its own place, in its own families, and has its kept values.
    before = kept_tracks.read(kept_tracks.folder_of(Path("config"), "toy"))
    kept = track_verdicts.verdicts(before, track.read(Path("config"), "toy"))
    again = fl.compare("fedprox-ft", progress=False)
    assert pairs(again) == [("personal", "fedprox-ft", "fedavg-ft")]
    pd.testing.assert_frame_equal(again.tracks[0].verdicts, kept)
    # As it is the same, its results at other budgets stay.
    longer = replace(
        before, runs=before.runs.assign(budget=4), values=before.values.assign(budget=4)
    )
    both = kept_tracks.with_entries(longer, before, are_same=True)
    assert both.runs["budget"].value_counts().to_dict() == {
        4: len(before.runs),
        1: len(before.runs),
    }
    assert set(kept_tracks.with_entries(longer, before).runs["budget"]) == {1}
    assert sum("has its kept values" in remark for remark in again.remarks) == 2
    # The baseline stands in all comparisons with it.
    assert pairs(fl.compare("fedavg", lr=0.2, progress=False)) == [
        ("personal", "fedavg", "fedavg-ft"),
        ("shared", "fedprox", "fedavg"),
        ("newcomers", "fedavg", "fedavg-ft"),
    ]


def test_a_no_op_is_what_the_track_calls_it_only_at_the_keys_of_the_track(lab: Path) -> None:
    [kept] = fl.compare("fedprox", progress=False).table.to_dict("records")
    [other] = fl.compare("fedprox", mu=[0, 0.1], lr=0.3, progress=False).table.to_dict("records")
    assert kept["verdict"] == NO_OP and other["verdict"] != NO_OP


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({}, "this is a fault"),
        ({"numbers": "core 0"}, "kept numbers are of core 0"),
        ({"arithmetic": "native"}, "kept values are of arithmetic native"),
    ],
)
def test_a_baseline_that_is_not_as_kept_is_told_of(
    lab: Path, columns: dict[str, str], told: str
) -> None:
    change("fedavg", 0.25, **columns)
    measured = fl.compare("fedprox", lr=0.1, progress=False)
    [check] = [remark for remark in measured.remarks if told in remark]
    differing, count = map(int, re.findall(r"(\d+) of (\d+) values of FedAvg", check)[0])
    assert 0 < differing < count and re.search(r"by up to 0\.25\b", check)
    # It is told whether a verdict hangs on it: with the FedAvg trained here both are one.
    [hangs] = [remark for remark in measured.remarks if "trained here" in remark]
    assert "verdict" in hangs


def test_what_equals_a_kept_entry_does_not_equal_another_one_of_its_name(lab: Path) -> None:
    """FedProx at mu 0 is the kept FedAvg, and is compared with FedAvg at another rate."""
    kept = kept_tracks.read(kept_tracks.folder_of(Path("config"), "toy"))
    place = kept_tracks.folder_of(Path("config"), "toy")
    is_off = kept.runs["entry"] == "fedprox"
    kept.runs.loc[is_off, "no_op"] = "fedavg"
    kept_tracks.write(place, kept)
    [row] = (
        fl.compare("fedavg", progress=False).table.query("entry == 'fedprox'").to_dict("records")
    )
    assert row["verdict"] == NO_OP
    other = fl.compare("fedavg", lr=0.01, progress=False).table
    [row] = other.query("entry == 'fedprox'").to_dict("records")
    assert row["verdict"] != NO_OP and row["difference"] != 0


def test_a_baseline_that_fails_here_is_not_called_rounding(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = TrackTraining.score

    def failing(self: TrackTraining, tuned: Tuned, entries: Sequence[str]) -> TrackResults:
        results = score(self, tuned, entries)
        is_lost = results.runs["entry"].isin(["fedavg-ft"])
        return replace(
            results, runs=results.runs.assign(state=results.runs["state"].mask(is_lost, "missing"))
        )

    monkeypatch.setattr(TrackTraining, "score", failing)
    remarks = fl.compare("ditto", lam=0.1, lr=0.1, progress=False).remarks
    [remark] = [text for text in remarks if "FedAvg-FT" in text]
    assert remark == "toy: FedAvg-FT failed here, so that its kept values are not checked"


def test_kept_results_of_other_clients_are_refused(lab: Path) -> None:
    place = kept_tracks.folder_of(Path("config"), "toy")
    kept = kept_tracks.read(place)
    kept.clients.loc[0, "n_train"] += 1
    shutil.rmtree(place)
    kept_tracks.write(place, kept)
    with pytest.raises(DataError, match="toy: the kept results are of other clients"):
        fl.compare("fedprox", lr=0.1, progress=False)


def test_a_method_that_diverges_is_at_the_floor(lab: Path) -> None:
    measured = fl.compare("fedprox", mu=0.1, lr=1e30, progress=False)
    [claims_of] = measured.tracks
    kept = kept_tracks.read(kept_tracks.folder_of(Path("config"), "toy")).values
    floor = kept[(kept["entry"] == FLOOR) & (kept["clients"] == "participants")]
    means = claims_of.means.set_index(["entry", "clients"])["value"]
    of_clients = floor.groupby("client")["value"].mean()
    assert means["fedprox", "participants"] == pytest.approx(of_clients.mean())
    assert measured.table[["verdict", "failed"]].to_numpy().tolist() == [[UNSTABLE, 3]]
    told = "\n".join(measured.remarks)
    assert "3 of 3 runs of FedProx diverged" in told and "no point of FedProx" in told


def test_a_method_whose_runs_all_fail_ends_with_their_error(lab: Path) -> None:
    with pytest.raises(FedloomError, match="out of order"):
        fl.compare(Failing, progress=False)


def test_what_is_wrong_is_said_before_training(lab: Path) -> None:
    for arguments, key in [
        ({"muu": 1}, "muu"),
        ({"mu": "much"}, "mu"),
        ({"dataset": "digits"}, "dataset"),
        ({"only": "letters"}, "only"),
    ]:
        with pytest.raises(ConfigError) as caught:
            fl.compare("fedprox", progress=False, **arguments)
        assert caught.value.location.key == key
    with pytest.raises(ConfigError, match="fedproxx"):
        fl.compare("fedproxx")
    # A track for regression, of which no entry has the name and whose task is not the method's.
    numbers = {**KEYS, "metric": "rmse", "dataset": "diabetes"}
    toy_track.write(Path("config"), numbers, "numbers")
    shutil.copytree("config/published/tracks/toy", "config/published/tracks/numbers")
    with pytest.raises(DataError, match="regression"):
        fl.compare(PlainMean, only="numbers", progress=False)
    shutil.rmtree("config/published")
    assert kept_tracks.source(Path("config")) == kept_tracks.CONFIG, "those of the package"


def test_a_list_for_a_key_of_a_term_is_refused(lab: Path) -> None:
    terms = {"cosine": {"layers": ["0"], "mu": [0.1, 0.2]}}
    with pytest.raises(ConfigError, match="term"):
        fl.compare("fedavg", terms=terms, progress=False)


def test_a_grid_may_have_a_no_op_of_its_own(lab: Path) -> None:
    """One that was chosen is not tested, and not called equal."""
    no_op = {"mu": 0, "is": "fedavg"}
    measured = fl.compare("fedprox", mu=[0, 1e9], lr=0.1, no_op=no_op, progress=False)
    assert measured.table["verdict"].tolist() == [NO_OP]
    assert "is FedAvg (no-op)" in repr(measured)


def test_a_no_op_at_another_rate_is_refused(lab: Path) -> None:
    """FedProx at mu 0 and rate .3 is not the FedAvg of the track."""
    no_op = {"mu": 0.0, "is": "fedavg"}
    with pytest.raises(ConfigError, match=r"no_op: says fedavg, which has lr=\[0.1\], and not 0.3"):
        fl.compare("fedprox", mu=[0.0, 0.1], lr=0.3, no_op=no_op, progress=False)
    with pytest.raises(ConfigError, match=r"which has momentum=0\.0, and not 0\.9"):
        fl.compare("fedprox", mu=[0.0, 0.1], momentum=0.9, no_op=no_op, progress=False)


def test_verdicts_that_change_with_the_entry_are_told(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The correction is for one entry more, here as if FedProx had been ahead without it."""
    verdicts = track_verdicts.verdicts

    def before(results: TrackResults, file: Track, *rest: Any, **keys: Any) -> pd.DataFrame:
        table = verdicts(results, file, *rest, **keys)
        is_other = (table["entry"] == "fedprox") & ("plain-mean" not in file.methods)
        return table.assign(verdict=table["verdict"].mask(is_other, "ahead"))

    monkeypatch.setattr(track_verdicts, "verdicts", before)
    told = "\n".join(fl.compare(PlainMean, progress=False).remarks)
    assert "with PlainMean in its families, these verdicts change" in told
    assert "fedprox from fedavg: " in told and "not ahead" in told


def test_variants_that_were_scored_are_counted(lab: Path) -> None:
    """A kept entry is none; the same variant is one, however often it is compared."""

    def told(method: str, **keys: Any) -> list[str]:
        remarks = fl.compare(method, progress=False, **keys).remarks
        return [remark for remark in remarks if "variants" in remark]

    assert told("fedavg") == told("ditto", lam=0.1, lr=0.1) == told("ditto", lam=0.1, lr=0.1) == []
    [remark] = told("ditto", lam=0.5, lr=0.1)
    assert remark.startswith("toy: 2 variants have been scored") and remark.endswith("p by 2")
    file = next(lab.rglob(VARIANTS))
    assert len(pd.read_csv(file)) == 2
    file.write_text("track,method\n")
    with pytest.raises(DataError, match=f"{VARIANTS}: cannot be read"):
        told("ditto", lam=0.5, lr=0.1)


def test_own_rounds_are_remarked(lab: Path) -> None:
    told = fl.compare("fedprox", mu=0.1, rounds=2, progress=False).remarks
    assert "fedprox was given mu=0.1, rounds=2" in told
    assert any("own rounds" in remark for remark in told)


def test_the_command_is_the_call(lab: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["compare", "ditto", "--only", "toy", "lam=[0.1, 1e+0]", "lr=0.1", "--figure", "a.svg"]
    assert main(words) == 0
    called = fl.compare("ditto", only="toy", lam=[0.1, 1.0], lr=0.1, progress=False)
    assert capsys.readouterr().out.splitlines() == [*repr(called).splitlines(), "wrote a.svg"]
    assert "Ditto" in (lab / "a.svg").read_text()
    assert main([*words[:-2], "--latex"]) == 0
    assert "Ditto & toy & personal" in capsys.readouterr().out
    assert main([*words[:-2], "--others"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(repr(called)) and "Personal: difference from FedAvg-FT" in said
    assert re.search(r"^FedAvg +\S+ ", said, re.M)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["muu=1"], "muu"),
        (["mu=010"], "mu"),
        (["mu=1", "mu=2"], "mu"),
        (["only=toy"], "only"),
        (["0.1"], "2 methods: fedprox, 0.1"),
        (["--figure", "nowhere/a.svg"], "nowhere is no folder"),
        (["mu=[0, 1]", "--no-op", "fedavg"], "fedavg is no KEY=VALUE"),
        (["mu=[0, 1]", "--no-op", "mu=0"], "is: is missing"),
        (["mu=[0, 1]", "--no-op", "mu=2,is=fedavg"], "which is not in the grid"),
        (["mu", "=", "1"], "mu=1"),
    ],
)
def test_a_wrong_word_of_the_command_is_told(
    lab: Path, capsys: pytest.CaptureFixture, words: list[str], key: str
) -> None:
    assert main(["compare", "fedprox", *words]) == 1
    assert key in capsys.readouterr().err


def test_a_workspace_without_tracks_has_those_of_the_package(
    tmp_path: Path, lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `fedloom init` writes it."""
    monkeypatch.setattr(kept_tracks, "CONFIG", lab / "config")
    monkeypatch.chdir(tmp_path / "..")
    assert main(["init", "plain"]) == 0
    monkeypatch.chdir("plain")
    assert pairs(fl.compare("fedprox", progress=False)) == [("shared", "fedprox", "fedavg")]


def test_kept_tracks_are_printed_and_their_page_is_written(
    lab: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["tracks"]) == 0
    shown = capsys.readouterr().out
    assert "FedProx-FT" in shown and "is FedAvg (no-op)" in shown
    assert main(["tracks", "toy", "--long"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "  toy  " in line]
    assert len(rows) == 4
    assert main(["tracks", "letters"]) == 1
    assert "toy" in capsys.readouterr().err
    monkeypatch.setattr(comparison, "PAGE", lab / "docs/comparison.md")
    old = lab / "docs/comparison/old.svg"
    old.parent.mkdir(parents=True)
    old.write_text("of a track that is gone")
    assert comparison.main() == 0
    assert "fedloom compare mine" in (lab / "docs/comparison.md").read_text()
    names = {path.stem for path in old.parent.glob("*.svg")}
    assert names == {"overview", "toy-intervals", "toy-participants", "toy-newcomers"}
