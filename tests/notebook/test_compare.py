"""A method of one's own beside those that are kept."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import planning
import pytest
import yaml

import fl
from fl.api import BuildContext, Method, declare, recipe
from fl.base.errors import FedloomError
from fl.cli.main import main
from fl.notebook import compare, track_runs
from fl.report import tracks
from tools import comparison

TRACK: dict[str, Any] = {
    "datasets": [{"synthetic": {"clients": 4, "samples": 60, "alpha": 1.0}}],
    "partitions": [
        {"dirichlet": {"clients": 4, "alpha": 0.5, "min_samples": 8, "seed": [0, 1, 2]}}
    ],
    "models": [{"mlp": {"hidden": [5]}}],
    "seeds": [0],
    "training": {"rounds": 3, "local_steps": 2, "batch_size": 8, "lr": [0.05, 0.2]},
    "methods": {
        "local": None,
        "fedavg": None,
        "fedavg-start": {"method": "fedavg", "rounds": 2},
        "fedavg-ft": {
            "method": "finetune",
            "start": "fedavg-start",
            "rounds": 1,
            "lr": 0.1,
            "title": "FedAvg-FT",
        },
    },
    "baseline": "fedavg-ft",
}


@declare("global")
class PlainMean:
    """What FedAvg is."""

    def build(self, context: BuildContext) -> Method:
        return recipe(context)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config folder with one track, whose runs are there and kept, but no others."""
    root = tmp_path_factory.mktemp("trained")
    planning.write_config(root)
    (root / "config/published").mkdir()
    (root / "config/studies/track-tiny.yaml").write_text(yaml.safe_dump(TRACK, sort_keys=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        fl.run(name="whole", progress=False, **TRACK)
        tracks.write(Path("config"), comparison.collect(Path("config")))
    return root


@pytest.fixture
def lab(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a copy of that folder."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    settings = tmp_path / "config/config.yaml"
    settings.write_text(settings.read_text().replace(str(trained), str(tmp_path)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_method_is_compared_with_what_is_kept(lab: Path, capsys: pytest.CaptureFixture) -> None:
    kept = tracks.read_published(Path("config"))
    assert kept.groupby("method").size().to_dict() == {"local": 3, "fedavg": 3, "fedavg-ft": 3}
    measured = fl.compare("fedprox", mu=[0.1, 1.0], progress=False)
    assert measured.table[["method", "other"]].values.tolist() == [["fedprox", "fedavg"]]
    assert set(measured.table["n"]) == {3}
    said = repr(measured)
    assert "tiny: fedprox has" in said and "of 4 by mean rank" in said
    assert re.search("tiny: fedavg .*3 draws", said)
    assert "tiny: fedprox had 4 grid points" in said
    # An entry of the tracks brings what it starts from, and stands in place of its kept lines.
    assert main(["compare", "fedavg-ft"]) == 0
    told = capsys.readouterr().out
    assert "tiny: fedavg-ft has" in told and "of 3 by mean rank" in told
    assert "no significant difference to: local, fedavg" in told
    assert "2 comparisons with fedavg-ft" in told
    again = fl.compare("fedavg-ft", progress=False).lines
    own = again[again["method"] == "fedavg-ft"].reset_index(drop=True)
    before = kept[kept["method"] == "fedavg-ft"].reset_index(drop=True)
    assert own["accuracy"].tolist() == pytest.approx(before["accuracy"].tolist(), abs=1e-6)
    assert own["operations"].tolist() == pytest.approx(before["operations"].tolist())


def test_a_draw_of_which_a_run_is_missing_stays_as_kept(lab: Path) -> None:
    kept = tracks.read_published(Path("config"))
    shutil.rmtree(next(lab.rglob("run.json")).parent)
    again = comparison.collect(Path("config"))
    key = ["draw", "method"]
    pd.testing.assert_frame_equal(
        again.sort_values(key, ignore_index=True), kept.sort_values(key, ignore_index=True)
    )
    assert again["draw"].is_monotonic_increasing


def test_rounding_is_measured_and_stays_with_lines_that_stay(lab: Path) -> None:
    kept = tracks.read_published(Path("config"))
    assert kept["rounding"].isna().all()
    measured = comparison.collect(Path("config"), 1)
    assert (measured["rounding"] >= 0).all() and (measured["rounding"] < 0.2).all()
    moved = measured.assign(rounding=0.01)
    moved.loc[0, "accuracy"] -= 0.1
    tracks.write(Path("config"), moved)
    again = comparison.collect(Path("config"))["rounding"]
    assert again.isna().tolist() == [True] + [False] * (len(again) - 1)
    assert (again[1:] == 0.01).all()


def test_a_class_that_does_nothing_new_is_uninformative(lab: Path) -> None:
    measured = fl.compare(PlainMean, only="tiny", progress=False)
    [row] = measured.table.to_dict("records")
    assert (row["other"], row["difference"]) == ("fedavg", 0)
    assert row["reason"] == "plain-mean equals fedavg"
    assert "uninformative (plain-mean equals fedavg)" in repr(measured)


def test_a_method_is_tested_in_the_family_of_the_page(lab: Path) -> None:
    """A kept entry has the page's p; another one is corrected with the page's."""
    page = tracks.compare_with_baselines(tracks.read_published(Path("config"))).set_index("method")
    again = fl.compare("local", progress=False).table.set_index("method")
    assert again.loc["local", "family"] == "fedavg-ft"
    assert again.loc["local", "p_corrected"] == page.loc["local", "p_corrected"]
    lines = fl.compare("ditto", lam=0.1, progress=False).lines
    assert (lines["floor"] > 0).all(), "counted for tables that are made anew"
    assert (lines["errors"] % 1 == 0).all(), "of the chosen point alone"
    assert dict(zip(lines["method"], lines["stage"], strict=True)) == {
        "local": "personal",
        "fedavg": "global",
        "fedavg-ft": "personal",
        "ditto": "personal",
    }


def test_the_page_and_its_pictures_are_written(lab: Path) -> None:
    (lab / "docs" / "results").mkdir(parents=True)
    (lab / "docs" / "reference").mkdir()
    page = lab / "docs" / "results" / "comparison.md"
    page.write_text("Tracks:\n\n<!-- fedloom tracks tiny -->\n<!-- end -->\n\nThe end.\n")
    long = lab / "docs" / "reference" / "comparison-table.md"
    assert comparison.main() == 0
    shown = [row.split(" | ")[:3] for row in long.read_text().splitlines() if "| tiny |" in row]
    assert len(shown) == 3 and ["| Local (control)", "tiny", "FedAvg-FT"] in shown
    head, table, end = re.split(r"<!-- .*? -->\n", page.read_text())
    assert (head, end) == ("Tracks:\n\n", "\nThe end.\n")
    rows = [line.split(" | ")[0] for line in table.splitlines()[4:] if line.startswith("|")]
    assert sorted(rows) == ["| FedAvg (control)", "| FedAvg-FT (control)", "| Local (control)"]
    names = {path.stem for path in (lab / "docs" / "results" / "comparison").glob("*.svg")}
    assert names == {"overview", "tiny-ranks", "tiny-bytes", "tiny-operations"}


def test_a_fedavg_that_is_not_as_kept_is_told_of(lab: Path) -> None:
    kept = tracks.read_published(Path("config"))
    off = kept["method"].eq("fedavg") & kept["draw"].eq(1)
    kept.loc[off, ["accuracy", "numbers"]] = [kept.loc[off, "accuracy"].item() - 0.3, "core 0"]
    tracks.write(Path("config"), kept)
    said = repr(fl.compare("fedprox", mu=0.1, progress=False))
    assert re.search(r"over 3 draws differs by \+10\.00 points .* at most 30\.00 \(how far", said)
    tracks.write(Path("config"), kept.assign(rounding=0.013))
    said = repr(fl.compare("fedprox", mu=0.1, progress=False))
    assert "at most 30.00 (rounding alone moves a draw by up to 1.30)" in said
    assert "published numbers are of core 0" in said
    assert "with the fedavg trained here, no verdict changes" in said


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        (None, "this is a fault"),
        ("", "published results are of an unknown environment, these of portable, python "),
        ("native, torch 2.0", "published results are of native, torch 2.0, these of portable, "),
    ],
)
def test_a_difference_of_fedavg_is_a_fault_where_bits_must_be_equal(
    lab: Path, environment: str | None, told: str
) -> None:
    kept = tracks.read_published(Path("config"))
    assert kept["environment"].str.startswith("portable, python ").all()
    said = repr(fl.compare("local", progress=False))
    assert "fedavg has its published results" in said and "verdict changes" not in said
    kept.loc[kept["method"].eq("fedavg") & kept["draw"].eq(1), "accuracy"] -= 0.004
    if environment is not None:
        kept["environment"] = environment
    tracks.write(Path("config"), kept)
    assert told in repr(fl.compare("local", progress=False))
    said = repr(fl.compare("fedavg", progress=False))
    assert told in said and "with the fedavg published, no verdict changes" in said
    assert "published one" not in repr(fl.compare("fedavg", lr=0.1, progress=False))


def test_a_verdict_that_hangs_on_the_published_fedavg_is_named() -> None:
    draws = range(12)
    scores = {"fedavg-ft": 0.8, "fedavg": 0.5, "mine": 0.52}
    records = [
        {"track": "one", "method": method, "draw": draw, "accuracy": mean + 0.001 * draw}
        | {"stage": "personal" if method == "fedavg-ft" else "global"}
        | {"errors": 40.0, "floor": 60.0, "worst_tenth": 0.5, "bytes": 1.0, "operations": 1.0}
        | {"title": method, "point": "", "numbers": "core 1", "environment": "", "rounding": 0.0}
        for method, mean in scores.items()
        for draw in draws
    ]
    lines = pd.DataFrame(records).astype(tracks.COLUMNS)
    lines["accuracy"] += [0.0001 * (i * i % 7) for i in range(len(lines))]
    tests = tracks.compare_with_baselines(lines)
    check = lines[lines["method"] == "fedavg"].copy()

    def remarks(gain: float) -> list[str]:
        again = check.assign(accuracy=check["accuracy"] + gain)
        return compare._verdict_remarks("mine", lines, tests, [again])

    assert remarks(0.0) == []
    assert remarks(0.001) == ["with the fedavg trained here, no verdict changes"]
    [remark] = remarks(0.1)
    assert "these verdicts change: mine from fedavg: behind, not ahead" in remark


def test_what_is_wrong_is_said_before_training(lab: Path) -> None:
    with pytest.raises(FedloomError, match="track 'labels'"):
        fl.compare("fedprox", only="labels")
    said = r"the method to compare: unknown method 'fedproxx' \(did you mean 'fedprox'\?\)"
    with pytest.raises(FedloomError, match=said):
        fl.compare("fedproxx")
    (lab / "config" / tracks.FILE).unlink()
    with pytest.raises(FedloomError, match="make compare"):
        fl.compare("fedprox")


def test_the_command_takes_hyper_parameters(lab: Path, capsys: pytest.CaptureFixture) -> None:
    """The call and the command train the same runs; values are YAML."""
    words = ["compare", "fedprox", "mu=[0.1, 1e+0]", "lr=0.1", "--only", "tiny"]
    assert main(words) == 0
    called = fl.compare("fedprox", only="tiny", mu=[0.1, 1.0], lr=0.1, progress=False)
    assert repr(called).splitlines() == capsys.readouterr().out.splitlines()
    assert "tiny: fedprox had 2 grid points" in repr(called)


def test_given_keys_and_the_published_entry_that_they_replace_are_told(lab: Path) -> None:
    kept = tracks.read_published(Path("config"))
    mean = 100 * kept[kept["method"] == "local"]["accuracy"].mean()
    told = repr(fl.compare("local", lr=0.1, weight_decay=0.01, progress=False)).splitlines()
    assert "local was given lr=0.1, weight_decay=0.01" in told
    assert f"tiny: the published local has {mean:.1f} %; this one stands in its place" in told
    plain = repr(fl.compare("local", progress=False))
    assert "was given" not in plain and "the published local" not in plain


def test_the_command_tells_a_warning_in_one_line(lab: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["compare", "fedprox", "mu=0.1", "lr=1e+30", "--only", "tiny"]) == 0
    warned = [line for line in capsys.readouterr().err.splitlines() if "diverged" in line]
    assert warned and all(line.startswith("warning: diverged: ") for line in warned)


@pytest.mark.parametrize(
    "words, said",
    [
        (["muu=1"], "unknown key 'muu' (did you mean 'mu'?)"),
        (["mu=much"], "mu: is 'much'"),
        (["mu=010"], "mu: line 1: 010 starts with 0"),
        (["0.1"], "the command line: '0.1' is not KEY=VALUE. Try: mu=0.1"),
        (["mu=1", "mu=2"], "mu: occurs twice. Try: a grid: 'mu=[0.1, 1]'"),
        (["only=tiny"], "only: is no key of a method. Try: --only TRACK"),
        (["partition=iid"], "partition: would change the track"),
    ],
)
def test_a_wrong_key_of_the_command_is_told(
    lab: Path, capsys: pytest.CaptureFixture, words: list[str], said: str
) -> None:
    assert main(["compare", "fedprox", *words]) == 1
    assert said in capsys.readouterr().err


def test_a_comparison_is_a_table_and_a_figure(lab: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["compare", "local", "--only", "tiny", "--latex", "--figure", "local.png"]) == 0
    text = capsys.readouterr().out
    [row] = [line for line in text.splitlines() if line.startswith("tiny & ")]
    assert row.count("&") == 6 and "& FedAvg-FT &" in row
    assert (lab / "local.png").read_bytes().startswith(b"\x89PNG")
    measured = fl.compare("local", progress=False)
    own = measured.lines[measured.lines["method"] == "local"]
    assert row.split(" & ")[1] == f"{100 * own['accuracy'].mean():.1f}"
    ranking = measured.to_latex("tiny")
    assert r"Local (ours)" in ranking and "FedAvg (control)" in ranking
    assert "<table" in measured._repr_html_()
    axes = measured.plot()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["tiny"]
    assert axes.get_xlabel() == "difference of accuracy from FedAvg-FT (points)"
    with pytest.raises(FedloomError, match="unknown track 'large'"):
        measured.to_latex("large")


def test_a_workspace_without_tracks_has_those_of_the_package(
    tmp_path: Path, lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `fedloom init` writes it."""
    monkeypatch.setattr(tracks, "CONFIG", lab / "config")
    monkeypatch.chdir(tmp_path / "..")
    assert main(["init", "plain"]) == 0
    monkeypatch.chdir("plain")
    assert "tiny: local has" in repr(fl.compare("local", progress=False))


def test_a_point_is_chosen_where_those_of_the_others_were(lab: Path) -> None:
    """By the rates and draws of the tuning study; what remains of a grid is chosen in each draw."""
    study = {**TRACK, "training": {**TRACK["training"], "lr": [1e-6, 0.4]}}
    study["partitions"] = [{"dirichlet": {**TRACK["partitions"][0]["dirichlet"], "seed": [7, 8]}}]
    del study["baseline"]
    (lab / "config/studies/tuning-tiny.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    measured = fl.compare("fedprox", mu=[0.0, 1e-7], progress=False)
    said = repr(measured)
    assert "tiny: fedprox has lr=0.4, mu=" in said
    assert "the best of 4 grid points on the draws of tuning-tiny" in said
    assert "it is the highest rate: try `lr`" in said and "chosen in each draw" not in said
    own = measured.lines[measured.lines["method"] == "fedprox"]
    assert len(own) == 3 and (own["point"] == "").all()
    said = repr(fl.compare("fedprox", mu=0.1, lr=0.3, progress=False))
    assert "tuning-tiny" not in said and "grid point" not in said
    with pytest.warns(UserWarning, match="diverged"):
        said = repr(fl.compare("fedprox", lr=[0.3, 1e30], progress=False))
    assert "tiny: fedprox has lr=0.3, the best of 2 grid points" in said
    terms = {"cosine": {"layers": ["0"], "mu": [0.1, 0.2]}}
    said = repr(fl.compare("fedavg", terms=terms, lr=0.3, progress=False))
    assert "tuning-tiny" not in said and "fedavg had 2 grid points" in said


def test_what_would_compare_other_things_is_refused_or_remarked(lab: Path) -> None:
    with pytest.raises(FedloomError, match="dataset: would change the track"):
        fl.compare("fedprox", dataset="digits", progress=False)
    (lab / "config/studies/track-none.yaml").write_text(yaml.safe_dump(TRACK))
    with pytest.raises(FedloomError, match="only: unknown published track 'none'"):
        fl.compare("fedprox", only="none", progress=False)
    said = repr(fl.compare("fedprox", only="tiny", rounds=2, progress=False))
    assert "fedprox has its own rounds" in said
    said = repr(fl.compare("fedprox", only="tiny", lr=1e30, progress=False))
    assert "tiny: fedprox cannot be compared" in said
    assert "tiny: 3 of 3 runs of fedprox diverged" in said
    assert "nan" not in said


def test_a_shared_model_has_the_rounds_of_fedavg() -> None:
    assert track_runs.budget("fedprox", {"rounds": 2}) == {"rounds": 2}
    assert track_runs.budget(PlainMean, {"rounds": 2, "lr": 0.1}) == {"rounds": 2}
    assert track_runs.budget("ditto", {"rounds": 2}) == {}
    assert track_runs.budget("fedprox", None) == {}


@declare("global")
class Failing:
    """FedAvg whose server fails, which no plan can see."""

    def build(self, context: BuildContext) -> Method:
        def aggregate(*trees: Any) -> Any:
            raise RuntimeError("the server is out of order")

        return replace(recipe(context), aggregate=aggregate)


def test_a_method_whose_runs_all_fail_is_told_of_once(lab: Path) -> None:
    with pytest.warns(UserWarning) as warned:
        said = repr(fl.compare(Failing, only="tiny", lr=[0.1, 0.2], progress=False))
    [message] = [str(w.message) for w in warned if "failed" in str(w.message)]
    assert re.match(r"failed: \w+ \(failing.*seed 0\) and 5 other runs: .*out of order", message)
    assert "tiny: failing cannot be compared" in said
    assert "tiny: 6 of 6 runs of failing failed" in said
    assert re.search("tiny: fedavg .*3 draws", said)
    assert "nan" not in said
