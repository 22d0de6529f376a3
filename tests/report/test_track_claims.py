"""The page of claims about clients, on tracks whose kept results are drawn and not trained."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import drawn_tracks
import numpy as np
import pandas as pd
import pytest
from make_results import clients, entry, plan, planned, write_run

from fl.base.errors import DataError
from fl.plan.track import Family, Track
from fl.report import (
    claims,
    kept_tracks,
    track_claims,
    track_page,
    track_sentences,
    track_verdicts,
)
from fl.report.cells import MINUS, NOTHING
from fl.report.tables import collect
from fl.report.track_claims import TrackClaims
from fl.report.track_figures import costs, intervals, overview
from fl.report.track_verdicts import EQUAL, MISSING_RUN, NO_OP, UNSTABLE

NAMES = ("letters", "crashes", "schools")
"""One with a run that diverged, one with entries at their no-ops, one with errors and blocks."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("config")
    drawn_tracks.write(folder, NAMES, most=60)
    return folder


@pytest.fixture(scope="module")
def tracks(config: Path) -> list[TrackClaims]:
    by_name = {track.name: track for track in track_claims.read(config)}
    return [by_name[name] for name in NAMES]


@pytest.fixture(scope="module")
def page(tracks: list[TrackClaims]) -> str:
    return track_page.markdown(tracks)


def run_script(page: str, folder: Path, config: Path, name: str) -> dict[tuple[str, ...], str]:
    """The verdicts that the script of a page prints of a track."""
    [script] = re.findall(r"```python\n(.*?)```", page, re.S)
    code = [line for line in script.splitlines() if line and "import" not in line]
    assert len(code) <= 29
    (folder / "verdicts.py").write_text(script)
    done = subprocess.run(
        [sys.executable, str(folder / "verdicts.py"), str(config), name],
        capture_output=True,
        text=True,
        check=True,
    )
    return {tuple(line.split()[:2]): line.split()[-1] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("i", range(3), ids=NAMES)
def test_the_script_of_the_page_gives_all_verdicts(i, config, tracks, page, tmp_path):
    found = run_script(page, tmp_path, config, NAMES[i])
    table = tracks[i].verdicts
    tested = table[~table["verdict"].isin([NO_OP, MISSING_RUN])]
    assert found == {
        (row["family"], row["entry"]): row["verdict"].replace(claims.OPEN, "open")
        for row in tested.to_dict("records")
    }
    assert len(found) == len(table) - (2 if NAMES[i] == "crashes" else 0)


def test_a_run_that_diverged_has_the_values_of_the_floor(config, tracks):
    """Of eight draws one is at the floor, far below, so that its mean falls and is no lead."""
    kept = kept_tracks.read(kept_tracks.folder_of(config, "letters"))
    values = kept_tracks.entry_values(kept, "feddyn", "participants")
    assert values is not None
    means = values.mean()
    assert means[2] < means.drop(2).min() - 0.15
    shown = tracks[0].means.set_index(["budget", "entry", "clients"])["value"]
    assert shown[1, "feddyn", "participants"] == pytest.approx(values.mean(axis=1).mean())


def test_the_page_has_all_that_it_shows(page, tracks):
    shown = re.findall(r"!\[.+?\]\(comparison/(.+?)\.svg\)", page)
    assert shown == [*track_page.pictures(tracks)] and shown[0] == "overview"
    # The figure is first, then five sentences, then what to do.
    order = [page.index(text) for text in ("overview.svg", "\n1. ", "\n5. ", "## What to do")]
    assert order == sorted(order) and "\n6. " not in page
    for track in tracks:
        assert track.file.title in page and track.file.path.name in page
    assert "01234567, 2026-11-28" in page, "the commit before training"
    assert page.count("fedloom new method") == page.count("fedloom compare mine") == 1


def test_a_track_that_was_not_registered_says_so(tracks):
    page = track_page.markdown([replace(tracks[0], about={})])
    assert "not registered" in page


def test_an_entry_that_is_not_trained_yet_is_named(config, tmp_path):
    """Entries can be added to a track's file; the script of the page leaves them out, too."""
    shutil.copytree(config, tmp_path / "config")
    place = kept_tracks.folder_of(tmp_path / "config", "crashes")
    kept = kept_tracks.read(place)
    tables = {name: getattr(kept, name) for name in ("values", "runs", "tried")}
    left = {name: table[table["entry"] != "fedsam"] for name, table in tables.items()}
    shutil.rmtree(place)
    kept_tracks.write(place, replace(kept, about={}, **left))
    [track] = track_claims.read(tmp_path / "config", ["crashes"])
    assert "fedsam" in track.file.entries() and "fedsam" not in set(track.verdicts["entry"])
    page = track_page.markdown([track])
    assert "Not trained yet: FedSAM" in page and "Shared: 9 methods" in page
    assert all(picture.svg for picture in track_page.pictures([track]).values())
    found = run_script(page, tmp_path, tmp_path / "config", "crashes")
    assert len(found) == (~track.verdicts["verdict"].isin([NO_OP])).sum()


def test_a_track_whose_file_changed_after_training_says_so(tracks):
    track, words = tracks[0], "changed after training with budget 4"

    def known_of(file: Track) -> dict[str, str]:
        hashes = track_claims.comparison_hash(file), track_claims.settings_hash(file)
        return dict(zip(("claims", "settings"), hashes, strict=True))

    known = known_of(track.file)
    same = replace(track, about={"1": known, "4": known})
    assert words not in track_page.markdown([same])
    for changed, what in (
        (replace(track.file, margin=0.02), "Families"),
        (replace(track.file, families={"shared": track.file.families["shared"]}), "Families"),
        (replace(track.file, lr=[0.3]), "Clients, draws, training or grids"),
        (track.file.of_division(7), "Clients, draws, training or grids"),
    ):
        about = {"1": known, "4": known_of(changed)}
        page = track_page.markdown([replace(track, about=about)])
        assert page.count(words) == 1 and f"**{what}" in page
    marked = replace(track.file, added=["fedprox"], title="Another title")
    assert known_of(marked) == known


def test_a_second_division_has_its_verdicts_and_the_page_says_what_stays(config, tmp_path):
    shutil.copytree(config, tmp_path / "config")
    place = kept_tracks.folder_of(tmp_path / "config", "crashes")
    shutil.copytree(place, place / "second")
    [track] = [track for track in track_claims.read(tmp_path / "config") if track.name == "crashes"]
    assert track.second is not None
    claimed = int(track.verdicts["verdict"].isin([claims.AHEAD, claims.BEHIND, EQUAL]).sum())
    assert track_claims.count_kept(track.verdicts, track.second) == (claimed, claimed)
    assert f"{claimed} of {claimed} claims stay" in track_page.markdown([track])
    other = track.second.assign(verdict=claims.OPEN)
    assert track_claims.count_kept(track.verdicts, other) == (0, claimed)


def test_every_picture_is_drawn(tracks):
    for name, picture in track_page.pictures(tracks[:1]).items():
        for title in ("FedAvg", "FedProx-FT"):
            assert title in picture.svg, name
    first, second = (overview(tracks).svg for _ in range(2))
    assert first == second
    assert "Personal, from FedAvg-FT" in first and "Newcomers, from FedAvg-FT" in first


def test_a_picture_is_drawn_of_few_results(tracks):
    """One budget, no interval, a missing run."""
    track = tracks[1]
    verdicts = track.verdicts.assign(
        verdict=MISSING_RUN, difference=np.nan, low=np.nan, high=np.nan
    )
    means = track.means[track.means["budget"] == 1].copy()
    means.loc[means["entry"] == "ditto", "value"] = np.nan
    bare = replace(
        track,
        verdicts=verdicts,
        at_equal_cost=priced(track.at_equal_cost["bytes"][:0]),
        means=means,
    )
    for picture in (overview([bare]), intervals(bare), costs(bare, "participants")):
        assert picture.svg
    assert "without a verdict" in " ".join(track_sentences.sentences([bare]))


def test_an_entry_far_below_the_others_is_named_below_the_axis(tracks):
    """So is one whose curve over budgets stays there."""
    means = tracks[0].means.copy()
    means.loc[means["entry"] == "local", "value"] = 0.01
    assert "below the axis: Local 1.0" in costs(replace(tracks[0], means=means), "newcomers").svg


def test_the_table_has_a_row_for_each_comparison(tracks):
    table = track_page.long_table(tracks)
    assert len(table.rows) == sum(len(track.verdicts) for track in tracks)
    heads = [column.name for column in table.columns]
    assert all(len(row.cells) + 1 == len(heads) for row in table.rows)
    texts = [dict(zip(heads[1:], (c.text for c in row.cells), strict=True)) for row in table.rows]
    assert {text["track"] for text in texts} == {*NAMES}
    [noop, *_] = [text for text in texts if "no-op" in text["verdict"]]
    assert noop["verdict"] == "is FedAvg (no-op)" and noop["p"] == NOTHING
    assert noop["difference"] == f"({MINUS}1.0 when on, tuning clients)"
    # Entries of a track are beside a baseline at their own operations too.
    assert any(text["equal\noperations"] != NOTHING for text in texts)


def test_the_overview_has_difference_and_verdict_on_every_track(tracks):
    personal, shared, newcomers = track_page.overview_tables(tracks)
    assert [len(table.rows) for table in (personal, shared, newcomers)] == [13, 10, 6]
    [row] = [row for row in shared.rows if row.head == "FedProx"]
    [verdict] = (
        tracks[0].verdicts.query("family == 'shared' and entry == 'fedprox'").to_dict("records")
    )
    shown = f"{tracks[0].shown(verdict['difference'])} {verdict['verdict']}"
    assert row.cells[0].text == shown and row.cells[1].text == "is FedAvg (no-op)"
    two = small(tracks, {"fedexp": "ahead"}, {"moon": EQUAL})
    [alone] = track_page.overview_tables(two)
    assert [[cell.text for cell in row.cells] for row in alone.rows] == [
        ["+5.0 ahead", NOTHING],
        [NOTHING, "+5.0 equal"],
    ]


@pytest.mark.usefixtures("any_name")
def test_costs_are_those_of_the_rounds_that_a_run_had(tmp_path: Path) -> None:
    """Two clients; FedAvg stopped after 2 of 4 planned rounds."""
    costs = {"participants": 2, "flops": 100.0, "flops_server": 3.0, "traffic": [[4, 10, 5]]}
    costs |= {"bytes_down": 10, "bytes_up": 5, "state_client": 0, "state_server": 0}
    write_run(tmp_path, "a", clients([0.5], round=2), costs=costs)
    _, runs = collect(planned(plan([entry("a", "fedavg")])), tmp_path)
    found = kept_tracks.costs(runs.iloc[0].to_dict())
    assert (found.bytes, found.operations) == (2 * 2 * 15, 2 * 203.0)


def judged(track: TrackClaims, **changes: Any) -> dict[str, Any]:
    row = track.verdicts[track.verdicts["verdict"] == claims.BEHIND].iloc[0].to_dict()
    return {str(key): value for key, value in row.items()} | changes


def test_blocks_decide_where_there_are_some(config, tracks):
    """Schools of an authority are no independent clients: the test is over authorities."""
    letters, schools = tracks[0].verdicts, tracks[2].verdicts
    assert letters["blocks"].isna().all()
    tested = schools[schools["p"].notna()]
    assert (tested["blocks"] < tested["n"]).all()
    kept = kept_tracks.read(kept_tracks.folder_of(config, "schools"))
    kept.clients["block"] = -1
    alone = track_verdicts.verdicts(kept, tracks[2].file)
    assert (alone["difference"] - schools["difference"]).abs().max() < 1e-12
    assert not alone["p"].equals(schools["p"]) and alone["p_draws"].equals(schools["p_draws"])


def test_verdicts_in_words(tracks):
    track, text = tracks[2], track_page.verdict_text
    assert text(track, judged(track)) == "behind"
    assert text(track, judged(track, p=0.2, verdict=EQUAL)) == EQUAL
    assert text(track, judged(track, p=0.01, verdict=EQUAL)) == "equal (slightly behind)"
    assert text(track, judged(track, failed=2, verdict=UNSTABLE)) == "unstable (2 draws)"


def priced(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The same comparisons at equal cost for all costs."""
    return dict.fromkeys(track_claims.COSTS, table)


def small(tracks: list[TrackClaims], *tables: dict[str, str]) -> list[TrackClaims]:
    """Tracks with one family, and the verdict of each entry."""
    made = []
    for verdicts in tables:
        rows = [
            {
                "family": "shared",
                "entry": entry,
                "other": "fedavg",
                "verdict": verdict,
                "no_op": "fedavg" if verdict == NO_OP else "",
                "n": 50,
                "difference": gain,
                "p": 0.2 if verdict == EQUAL else 0.002,
                "p_equal": 0.02,
                "clients": "participants",
                "operations": 1.0 if entry == "fedexp" else 2.0,
                "bytes": 1.0,
                "without_no_op": -0.02 if verdict == NO_OP else np.nan,
            }
            for gain, (entry, verdict) in zip(
                np.linspace(0.05, -0.05, len(verdicts)), verdicts.items(), strict=True
            )
        ]
        family = {"shared": tracks[0].file.families["shared"]}
        file = replace(tracks[0].file, families=family)
        table = pd.DataFrame(rows)
        costs = priced(table)
        made.append(replace(tracks[0], file=file, verdicts=table, at_equal_cost=costs, longer={}))
    return [replace(track, families=len(made)) for track in made]


def test_sentences_count_verdicts_by_hand(tracks):
    first = {"fedexp": "ahead", "pooled": "ahead", "moon": "no-op", "fedfm": "behind"}
    second = {"fedexp": "ahead", "pooled": "ahead", "moon": EQUAL, "fedfm": claims.OPEN}
    two = small(tracks, first, second)
    counts = track_claims.tally(two, "shared")
    assert counts.loc["fedexp", [claims.AHEAD, "tracks"]].tolist() == [2, 2]
    assert counts.loc["moon", [NO_OP, EQUAL]].tolist() == [1, 1]
    total, leads, at_cost = track_sentences.sentences(two)
    assert total.startswith(
        "8 comparisons of a method with a baseline on 2 tracks, over 100 clients"
    )
    for words in ("4 ahead", "1 behind", "1 equal", "1 not told apart", "1 not tested"):
        assert words in total
    # Of two families, each tested twice, the limit is .0125.
    assert track_claims.claims_of_all(two) == (5, 6) and "5 of 6 claims stay" in total
    assert re.search(r"FedExP \(\w+ \+5\.0, \w+ \+5\.0\), Pooled.* \(\w+ \+1\.7", leads)
    # FedExP takes as much as its baseline, the other lead twice the operations.
    assert "There are 4 leads there. 2 take no more operations than the baseline; of" in at_cost
    assert "of the other 2, 2 are ahead of a baseline with as many. 4 take no more" in at_cost
    assert "other tuning" not in total
    divided = [replace(two[0], second=two[1].verdicts), two[1]]
    assert f"2 of 3 stay ({two[0].name} 2 of 3)." in track_sentences.sentences(divided)[0]
    dear = [replace(track, at_equal_cost=priced(track.verdicts[:1])) for track in two]
    said = track_sentences.sentences(dear)[2]
    assert "none is ahead of a baseline with as many, and 2 have more than the longest." in said
    half = [replace(two[0], at_equal_cost=priced(two[0].verdicts[:0])), two[1]]
    [*_, at_cost] = track_sentences.sentences(half)
    assert "2 leads there. 1 takes no more" in at_cost and " Not trained for longer" in at_cost
    short = [replace(track, at_equal_cost=priced(track.verdicts[:0])) for track in two]
    assert track_sentences.sentences(short)[2].startswith("No baseline is trained for more rounds")
    assert track_sentences.advice(two) == ["2 tracks: too few for advice."]
    longer = [replace(two[0], longer={4: two[0].verdicts, 16: two[1].verdicts[2:]}), two[1]]
    assert track_sentences.sentences(longer)[-1].endswith(
        f" With 4 times the rounds for all, tuned again, 2 of 4 comparisons are ahead "
        f"({two[0].name} 2). With 16 times the rounds for all, tuned again, 0 of 2 comparisons are "
        "ahead."
    )


def test_entries_that_were_added_later_are_marked(tracks):
    two = small(tracks, {"fedexp": "ahead"}, {"fedexp": "ahead", "moon": EQUAL})
    files = [replace(track.file, added=["fedexp"]) for track in two]
    marked = [replace(track, file=file) for track, file in zip(two, files, strict=True)]
    assert "FedExP* (" in track_sentences.sentences(marked)[1]
    assert "FedExP (" in track_sentences.sentences(two)[1]
    file = replace(tracks[0].file, added=["fedexp"])
    heads = {row.head for row in track_page.long_table([replace(tracks[0], file=file)]).rows}
    assert "FedExP*" in heads and "MOON" in heads and "FedExP" not in heads


def test_claims_with_other_clients_by_hand():
    names = {"family": "shared", "other": "fedavg"}
    first = pd.DataFrame(
        [
            {**names, "entry": "kept", "verdict": claims.AHEAD},
            {**names, "entry": "gone", "verdict": claims.BEHIND},
            {**names, "entry": "untried", "verdict": EQUAL},
            {**names, "entry": "none", "verdict": claims.OPEN},
        ]
    )
    second = pd.DataFrame(
        [
            {**names, "entry": "kept", "verdict": claims.AHEAD},
            {**names, "entry": "gone", "verdict": claims.OPEN},
            {**names, "entry": "none", "verdict": claims.AHEAD},
        ]
    )
    pairs = track_claims.claims_again(first, second).set_index("entry")["verdict_second"]
    assert pairs.dropna().to_dict() == {"kept": claims.AHEAD, "gone": claims.OPEN}
    assert set(pairs.index) == {"kept", "gone", "untried"}
    assert track_claims.count_kept(first, second) == (1, 2)


def test_leads_that_were_not_trained_for_longer_are_named(tracks):
    track = tracks[0]
    table = track.verdicts.assign(verdict=claims.OPEN)
    is_lead = (table["family"] == "shared") & table["entry"].isin(["fedexp", "moon"])
    table["verdict"] = table["verdict"].mask(is_lead, claims.AHEAD)
    longer = {4: table[is_lead & (table["entry"] == "fedexp")]}
    page = track_page.markdown([replace(track, verdicts=table, longer=longer)])
    assert "1 of 1 comparison ahead: FedExP (shared, " in page
    assert "Ahead before, and not trained for so long: MOON (shared)." in page


def test_claims_in_the_direction_of_a_skew_are_counted(tracks):
    """A lead by the many while few lose much, and the contrary; not a lead of few who gain much."""
    [track] = small(tracks, {"fedexp": "ahead", "moon": "ahead", "fedfm": "behind"})
    table = track.verdicts.assign(skew=[-1.5, 1.5, 1.5])
    said = track_sentences.skewed([replace(track, verdicts=table)])
    assert "Of 3 claims 2 have that direction" in said


def test_an_entry_is_unstable_only_where_its_baseline_is_not(config, tracks):
    """Of a baseline at the floor in all draws no entry can be unstable, unless it diverged."""
    kept = kept_tracks.read(kept_tracks.folder_of(config, "letters"))
    file = tracks[0].file
    is_lost = (kept.runs["entry"] == "feddyn") & (kept.runs["state"] == "diverged")
    assert is_lost.any()
    before = track_verdicts.verdicts(kept, file).set_index(["family", "entry"])["failed"]
    values = kept.values
    floor = values[values["entry"] == kept_tracks.FLOOR].set_index(
        ["budget", "clients", "draw", "client"]
    )
    low = values[values["entry"].isin(["fedavg", "fedexp"])].copy()
    keys = pd.MultiIndex.from_frame(low[["budget", "clients", "draw", "client"]])
    low["value"] = floor["value"].reindex(keys).to_numpy() - np.float32(0.01)
    others = values[~values["entry"].isin(["fedavg", "fedexp"])]

    def failed(changed: pd.DataFrame) -> dict:
        results = replace(kept, values=pd.concat([others, changed], ignore_index=True))
        table = track_verdicts.verdicts(results, file).set_index(["family", "entry"])
        return table["failed"]["shared"].to_dict()

    both = failed(low)
    assert both["fedexp"] == 0 and both["feddyn"] == before["shared", "feddyn"] > 0
    alone = failed(pd.concat([low[low["entry"] == "fedexp"], values[values["entry"] == "fedavg"]]))
    assert alone["fedexp"] == len(file.draws.scored)


def test_what_tuning_switched_off_is_said(tracks):
    """Of FedProx on crashes the best other point has a point less on tuning clients."""
    by_entry = tracks[1].verdicts.set_index(["family", "entry"])
    assert by_entry["without_no_op"]["shared", "fedprox"] == pytest.approx(-0.01)
    assert np.isnan(by_entry["without_no_op"]["shared", "fedavgm"]), "it is on"
    assert by_entry["points"]["shared", "fedprox"] == 8
    assert by_entry["points_of_other"]["shared", "fedprox"] == 2
    said = track_sentences.switched_off(small(tracks, {"moon": NO_OP, "fedfm": NO_OP}))
    assert "0 of 2 such entries would" in said
    assert said.endswith("more would lose MOON on letters, FedFM on letters.")
    assert "tuning clients" not in track_sentences.switched_off(small(tracks, {"moon": EQUAL}))


def test_clients_do_better_equally_well_or_worse(tracks):
    """Shares of clients by their means over draws, of 22 samples each, so that some are equal."""
    table = tracks[0].verdicts.query("family == 'shared' and entry == 'moon'").iloc[0]
    assert 0 < table["better"] + table["worse"] < 1
    [cell] = [
        row.cells[9].text
        for row in track_page.long_table(tracks[:1]).rows
        if (row.head, row.cells[1].text) == ("MOON", "shared")
    ]
    shares = [float(text) for text in cell.removesuffix(" %").split(" / ")]
    assert sum(shares) == pytest.approx(100, abs=1.5) and shares[1] > 0


def test_advice_names_what_is_ahead_twice_and_behind_nowhere(tracks):
    first = {"fedexp": "ahead", "feddyn": "ahead", "fedadam": "ahead", "fedfm": "behind"}
    second = {"fedexp": "ahead", "feddyn": "ahead", "fedadam": EQUAL, "fedfm": "behind"}
    third = {"fedexp": EQUAL, "feddyn": "behind", "fedadam": EQUAL, "moon": "no-op"}
    three = small(tracks, first, second, third)
    [step] = track_sentences.advice(three)
    assert "try FedExP" in step and "FedDyn" not in step and "FedAdam" not in step
    assert "behind on most tracks: FedFM" in step and "by tuning on most: MOON" in step
    # A lead that is only speed is no advice.
    slow = [
        replace(track, at_equal_cost=priced(track.verdicts.assign(verdict=claims.OPEN)))
        for track in three
    ]
    assert "FedExP" not in track_sentences.advice(slow)[0]
    # Where no baseline was trained for longer, one counts that costs as much as its baseline.
    short = [replace(track, at_equal_cost=priced(track.verdicts[:0])) for track in three]
    assert "try FedExP;" in track_sentences.advice(short)[0]
    dear = [replace(track, verdicts=track.verdicts.assign(operations=2.0)) for track in short]
    assert "no federated method" in track_sentences.advice(dear)[0]
    added = [replace(t, file=replace(t.file, added=["fedexp"])) for t in short]
    [step] = track_sentences.advice(added)
    assert "try FedExP*;" in step and step.endswith("*: added after first results were seen.")


def test_all_families_are_those_of_all_tracks(config, tracks):
    [alone] = track_claims.read(config, [NAMES[0]])
    assert alone.families == tracks[0].families == sum(len(t.file.families) for t in tracks)
    assert alone.stays.equals(tracks[0].stays)


def test_a_page_is_written_without_a_baseline(config, tmp_path):
    """Neither figures of costs nor the script fail where a baseline has no run."""
    shutil.copytree(config, tmp_path / "config")
    place = kept_tracks.folder_of(tmp_path / "config", NAMES[0])
    kept = kept_tracks.read(place)
    runs = kept.runs[kept.runs["entry"] != "fedavg"]
    shutil.rmtree(place)
    kept_tracks.write(place, replace(kept, runs=runs))
    [track] = track_claims.read(tmp_path / "config", [NAMES[0]])
    assert f"{NAMES[0]}-participants" not in track_page.pictures([track])
    found = run_script(track_page.markdown([track]), tmp_path, tmp_path / "config", NAMES[0])
    shared = track.verdicts[track.verdicts["family"] == "shared"]
    assert not {family for family, _ in found} & {"shared"}
    assert set(shared["verdict"]) <= {MISSING_RUN, NO_OP}


def test_results_of_other_clients_are_not_mixed(config, tmp_path):
    shutil.copytree(config, tmp_path / "config")
    place = kept_tracks.folder_of(tmp_path / "config", NAMES[0])
    kept = kept_tracks.read(place)
    other = replace(kept, clients=kept.clients.assign(origin=kept.clients["origin"] + 1))
    with pytest.raises(DataError, match="results of other clients"):
        kept_tracks.write(place, other)
    pd.testing.assert_frame_equal(kept_tracks.read(place).clients, kept.clients)


def test_a_baseline_at_the_cost_of_an_entry_by_hand(tracks):
    """Between budgets a baseline's value is linear in the logarithm of the cost."""
    file = replace(tracks[0].file, families={"shared": Family("fedavg", ["fedexp", "moon"])})
    clients, draws = range(4), (0, 1)
    level = {("fedavg", 1): 0.5, ("fedavg", 4): 0.7, ("fedexp", 1): 0.65, ("moon", 1): 0.9}
    level[kept_tracks.FLOOR, 1] = level[kept_tracks.FLOOR, 4] = 0.1
    cost = {("fedavg", 1): 100.0, ("fedavg", 4): 400.0, ("fedexp", 1): 200.0, ("moon", 1): 404.0}
    values = pd.DataFrame(
        [
            (b, e, "participants", d, c, v)
            for (e, b), v in level.items()
            for d in draws
            for c in clients
        ],
        columns=[*kept_tracks.VALUES],
    )
    runs = pd.DataFrame(
        [
            {"budget": b, "entry": e, "clients": "participants", "draw": d, "state": "complete"}
            | {"operations": price, "no_op": "", "start": ""}
            for (e, b), price in cost.items()
            for d in draws
        ]
    )
    rows = [
        dict.fromkeys(kept_tracks.CLIENTS, 0) | {"draw": d, "client": c, "block": -1}
        for d in draws
        for c in clients
    ]
    table = pd.DataFrame(rows).assign(name="", clients="participants")
    tried = pd.DataFrame(columns=[*kept_tracks.TRIED])
    kept = kept_tracks.track_results(values, table, runs, tried)

    def gains(results):
        found = track_verdicts.at_equal_cost(results, file, "operations")
        return found.set_index("entry")["difference"].to_dict()

    # FedExP costs twice as much, half of the way from 1 to 4; MOON no more than the dearest.
    assert gains(kept) == pytest.approx({"fedexp": 0.65 - 0.6, "moon": 0.9 - 0.7})
    dear = runs.assign(operations=runs["operations"].replace(404.0, 408.0))
    assert gains(replace(kept, runs=dear)) == pytest.approx({"fedexp": 0.05})
    cheap = runs.assign(operations=runs["operations"].replace(200.0, 50.0))
    assert gains(replace(kept, runs=cheap))["fedexp"] == pytest.approx(0.65 - 0.5)
    # Costs that fall with the budget are put in order; with one budget nothing is compared.
    swapped = runs.assign(operations=runs["operations"].replace({100.0: 400.0, 400.0: 100.0}))
    assert gains(replace(kept, runs=swapped))["fedexp"] == pytest.approx(0.65 - 0.6)
    assert gains(replace(kept, runs=runs[runs["budget"] == 1])) == {}


def test_entries_are_sorted_by_their_mean_place_over_tracks(tracks):
    two = small(
        tracks, {"fedexp": "ahead", "moon": EQUAL, "fedfm": EQUAL}, {"fedfm": EQUAL, "moon": EQUAL}
    )
    assert track_claims.sorted_entries(two, "shared") == ["fedexp", "fedfm", "moon"]
    # MOON is FedFM where tuning switched it off, and has its place.
    [off] = small(tracks, {"pooled": "ahead", "moon": NO_OP, "feddyn": EQUAL, "fedfm": EQUAL})
    off.verdicts.loc[off.verdicts["entry"] == "moon", ["no_op", "difference"]] = "fedfm", np.nan
    order = track_claims.sorted_entries([off], "shared")
    assert order == ["pooled", "feddyn", "moon", "fedfm"]


def test_differences_of_errors_have_the_digits_of_the_margin(tracks):
    assert tracks[2].shown(0.04178) == "+0.042"
    assert tracks[2].shown(-0.00049) == "0.000"
    assert tracks[2].shown(-0.0208) == f"{MINUS}0.021"
    assert tracks[0].shown(0.04178) == "+4.2"
