"""The parts of a report beside its main table: names, settings of training, pace, other means."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from make_results import clients, entry, plan, told, write_partition, write_plan, write_run

from fl import report
from fl.report import cost_tables, method_tables, result_lines, summaries, training_tables
from fl.report.cells import NOTHING, Table, number, transposed
from fl.report.facts import Facts, gather
from fl.report.outline import Fold, Section, blocks, outline


def facts_of(results: Path, *runs: dict, **choices) -> Facts:
    write_plan(results, plan(runs, **choices))
    return gather("small", results, results / "runs")


SKEWED = "dirichlet(clients=8, alpha=0.1)"


def shown(table: Table) -> dict[str, list[str]]:
    return {row.head: [cell.text for cell in row.cells] for row in table.rows}


def test_tables_are_numbered_as_they_are_shown(tmp_path):
    both = [*clients([0.5, 0.7]), *clients([1.0, 2.0], metric="loss")]
    write_run(tmp_path / "runs", "a", both)
    facts = facts_of(tmp_path, entry("a", "fedavg"))
    sections = outline(facts)
    numbers = {b.name: b.number for b in blocks(sections)}
    place = [b.number for s in sections for b in s.blocks if isinstance(b, Table)]
    assert place == [str(i + 1) for i in range(len(place))] and len(place) >= 3
    folded = [b.number for b in _folded(sections)]
    assert folded == ["1.1"]
    texts = report.texts(facts, sections)
    assert f"**Table {numbers['clients']}.** Final" in texts[".md"]
    assert f"% Table {numbers['clients']} of the page" in texts[".tex"]
    at = [texts[".html"].index(f">Table {n}.</b>") for n in ("1", "1.1", "2", "3")]
    assert at == sorted(at)


@pytest.mark.parametrize(("n", "corner"), [(6, "Method"), (7, "Setting")])
def test_many_settings_stand_below_each_other(n, corner, tmp_path):
    runs = [entry(f"a{i}", "fedavg", partition=f"iid(clients={i})") for i in range(n)]
    for run in runs:
        write_run(tmp_path / "runs", run["run"], clients([0.5]))
    facts = facts_of(tmp_path, *runs)
    table = transposed(method_tables.main_table(facts))
    assert table.columns[0].name == corner
    rows = shown(table)
    assert rows["iid(clients=3)"] == ["50.0"] if n > 6 else rows["fedavg"] == ["50.0"] * 6


def test_runs_that_stopped_early_are_named_and_their_curve_ends_with_the_first(tmp_path):
    """Seed 0 stops after round 2, seed 1 after 3; the final values are 0.5 and 0.7."""
    given = told(["digits"])
    given["entries"]["fedavg"]["training"] |= {"rounds": [5], "early_stopping": [1]}
    values = {0: [0.4, 0.5], 1: [0.6, 0.9, 0.7]}
    for seed, each in values.items():
        rows = [row for t, v in enumerate(each, 1) for row in clients([v], round=t)]
        write_run(tmp_path / "runs", f"a{seed}", rows)
    runs = [entry(f"a{seed}", "fedavg", seed=seed) for seed in values]
    facts = facts_of(tmp_path, *runs, **given)
    table = method_tables.main_table(facts)
    early = "Stopped early on validation data: fedavg after 2 to 3 of 5 rounds."
    assert table.note == early
    assert shown(table)["fedavg"][0].startswith("60.0")
    line = summaries.mean_curves(facts.rows, facts.runs, "accuracy")
    assert line["round"].tolist() == [1, 2]
    assert line["mean"].tolist() == pytest.approx([0.5, 0.7])


def test_tables_say_which_runs_had_another_backend(tmp_path):
    """A method's own runs may differ, too: stored ones come from any machine."""
    names = ("avg0", "avg1", "prox0", "prox1", "local0")
    for run in names:
        backend = {"prox0": "loop", "local0": "loop"}.get(run, "stacked")
        execution = {"backend": backend, "device": "cpu", "threads": 1}
        write_run(tmp_path / "runs", run, clients([0.5]), execution=execution)
    runs = [entry(run, run[:-1], seed=int(run[-1])) for run in names]
    facts = facts_of(tmp_path, *runs)
    said = (
        "Backends: stacked on cpu; but prox loop on cpu and stacked on cpu; local loop on cpu. "
        "Results of two backends or devices differ by rounding."
    )
    assert facts.backend_note == said
    assert said in method_tables.main_table(facts).full_note
    assert [*result_lines.results(facts)][-1] == said
    same = tmp_path / "same"
    for run in names[:2]:
        write_run(same / "runs", run, clients([0.5]))
    assert facts_of(same, *runs[:2]).backend_note == ""


def test_tables_say_which_methods_had_more_rounds(tmp_path):
    """Fine-tuning trains for 2 rounds more than the 5 of the model that it starts from."""
    store = tmp_path / "runs"
    for run in ("avg", "prox"):
        write_run(store, run, clients([0.5], round=5))
    write_run(store, "ft", clients([0.7], round=2, stage="personal"), start="avg")
    runs = [entry("avg", "avg"), entry("prox", "prox"), entry("ft", "ft", title="FedAvg-FT")]
    facts = facts_of(tmp_path, *runs)
    said = "Rounds of training: 5, but FedAvg-FT 5 + 2 (a stored model's, then its own)."
    assert facts.budget_note == said
    sections = outline(facts)
    bold = [t for t in blocks(sections) if isinstance(t, Table) if _has_bold(t)]
    assert bold and all(said in table.full_note for table in bold)
    assert said in sections[0].lead
    assert (
        facts_of(tmp_path / "equal", entry("avg", "avg"), entry("prox", "prox")).budget_note == ""
    )


def _has_bold(table: Table) -> bool:
    return any(cell.best for row in table.rows for cell in row.cells)


def test_curves_over_draws_end_with_the_first_draw_that_stopped(tmp_path):
    """Four draws, of which one goes on to round 3 and is by then far above the others."""
    given = told(["digits"])
    given["entries"]["fedavg"]["training"] |= {"rounds": [5], "early_stopping": [1]}
    runs = []
    for draw, values in enumerate([[0.5, 0.8], [0.5, 0.8], [0.5, 0.8], [0.5, 0.8, 1.0]]):
        rows = [row for t, v in enumerate(values, 1) for row in clients([v], round=t)]
        write_run(tmp_path / "runs", f"a{draw}", rows)
        place = f"dirichlet(clients=1, seed={draw})"
        runs.append(entry(f"a{draw}", "fedavg", partition=place, partition_id=f"p{draw}"))
    facts = facts_of(tmp_path, *runs, **given).merged_draws
    assert facts is not None
    line = summaries.mean_curves(facts.rows, facts.runs, "accuracy", facts.with_settings)
    assert set(line["round"]) == {1, 2} and len(line) == 8
    [curves] = [block for block in blocks(outline(facts)) if block.name == "rounds"]
    assert "stopped early" in curves.note
    assert curves.panels[0].alt.endswith("over rounds; final means fedavg 85.0.")
    with_all = summaries.mean_curves(facts.rows, facts.runs, "accuracy")
    assert set(with_all["round"]) == {1, 2, 3}, "in one draw by itself it is the mean of its runs"


def test_runs_without_a_common_round_have_no_mean_curve(tmp_path):
    """FedAvg stops after round 2 and after 4, so that no round of fine-tuning is common."""
    runs = []
    for seed, last in enumerate((2, 4)):
        store = tmp_path / "runs"
        write_run(store, f"a{seed}", clients([0.5], round=last))
        write_run(store, f"b{seed}", clients([0.7], round=1, stage="personal"), start=f"a{seed}")
        runs += [entry(f"{run}{seed}", run, seed=seed) for run in "ab"]
    facts = facts_of(tmp_path, *runs)
    line = summaries.mean_curves(facts.rows, facts.runs, "accuracy")
    assert line.empty


def _folded(sections: list[Section]) -> list[Table]:
    folds = [b for s in sections for b in s.blocks if isinstance(b, Fold)]
    return [b for fold in folds for b in fold.blocks if isinstance(b, Table)]


def test_clients_smaller_than_a_batch_are_told(tmp_path):
    """Batches have 32 samples: those of the second client repeat, the third trains on nothing."""
    facts = facts_of(tmp_path, entry("a", "fedavg"), **told(["digits"]))
    partition = SimpleNamespace(counts={"train": np.array([[20, 12], [3, 2], [0, 0]])})
    small = replace(facts, partitions={"p": partition})
    lines = {
        head: text for head, (text,) in shown(training_tables.training_tables(small)[0]).items()
    }
    assert lines["Small clients"].startswith("1 of 3 clients ")
    assert "Small clients" not in shown(training_tables.training_tables(facts)[0])


def test_training_is_told_once_where_shared_and_by_method_where_not(tmp_path):
    given = told(["digits"])
    fedprox = given["entries"]["fedprox"]["training"]
    fedprox |= {"schedule": ["step"], "lr_decay": [0.5], "weighting": ["uniform"]}
    runs = [entry(m, m) for m in ("fedavg", "fedprox", "fedavg-ft")]
    called = {"model": {"mlp": "A small network"}, "partition": {SKEWED: "Skewed"}}
    facts = facts_of(tmp_path, *runs, titles=called, heads={"mlp": "classifier"}, **given)
    shared, by_method = training_tables.training_tables(facts)
    lines = {head: text for head, (text,) in shown(shared).items()}
    assert lines["local epochs"] == "1"
    assert lines["optimizer"] == "sgd"
    assert lines["Model: A small network"] == "mlp, 12,000 parameters, head: classifier"
    assert lines["Partition: Skewed"] == SKEWED
    assert lines["Training seeds"] == "0, 1, 2"
    assert not {"rounds", "schedule", "precision", "local steps"} & set(lines)
    names = [column.name for column in by_method.columns]
    assert names[:3] == ["Method", "hyper-parameters", "starts from"]
    assert names[3:] == ["rounds", "schedule", "lr decay", "weighting"]
    assert shown(by_method) == {
        "fedavg": [NOTHING, NOTHING, "30", "constant", "1", "samples"],
        "fedprox": ["mu = 0.001, 0.01, 0.1", NOTHING, "30", "step", "0.5", "uniform"],
        "fedavg-ft": [NOTHING, "fedavg", "5", "constant", "1", "samples"],
    }
    assert (
        r"A small network & mlp, 12,000 parameters" in report.texts(facts, outline(facts))[".tex"]
    )


def test_notes_of_the_plan_stand_where_training_is_told_without_their_advice(tmp_path):
    notes = ["mine has 2 outputs more than digits has classes. Try: leave them out"]
    facts = facts_of(tmp_path, entry("fedavg", "fedavg"), notes=notes, **told(["digits"]))
    [training] = [section for section in outline(facts) if section.id == "training"]
    assert training.remarks == ("mine has 2 outputs more than digits has classes.",)


def test_rounds_to_a_share_count_those_of_the_start(tmp_path):
    def curve(*values: float, stage: str = "global", first: int = 1) -> list:
        each = enumerate(values, first)
        return [row for r, v in each for row in clients([v, v], round=r, stage=stage)]

    store = tmp_path / "runs"
    write_run(store, "avg", curve(0.2, 0.46, 0.48, 0.5), rounds=4, seconds=40.0)
    fine = [*clients([0.5, 0.5], round=0), *curve(0.7, 0.77, 0.8, stage="personal")]
    write_run(store, "ft", fine, rounds=3, seconds=6.0, start="avg")
    facts = facts_of(tmp_path, entry("avg", "avg"), entry("ft", "ft"))
    pace = summaries.pace(facts.rows, facts.runs, "accuracy").set_index("method")
    # 90, 95, 99 % of 0.5 are 0.45, 0.475, 0.495; of 0.8: 0.72, 0.76, 0.792.
    assert pace.loc["avg", ["0.9", "0.95", "0.99"]].tolist() == [2, 3, 4]
    assert pace.loc["ft", ["0.9", "0.95", "0.99"]].tolist() == [4 + 2, 4 + 2, 4 + 3]
    assert pace.loc["avg", "seconds"] == 30 and pace.loc["ft", "seconds"] == 40 + 4
    assert math.isnan(pace.loc["avg", "best"]) and pace.loc["ft", "best"] == 6
    table = cost_tables.pace_table(facts)
    assert table is not None
    assert shown(table)["ft"] == ["6.0", "6.0", "7.0", "44 s", "6.0"]
    assert shown(table)["avg"][-1] == "–"  # noqa: RUF001


def test_other_means_are_those_worked_out_by_hand(tmp_path):
    values = [0.1, 0.9, 0.5, 0.3, *[0.6] * 11]
    rows = [(1, c, "test", "global", "accuracy", v, 10 * (c + 1)) for c, v in enumerate(values)]
    write_run(tmp_path / "runs", "a", rows)
    facts = facts_of(tmp_path, entry("a", "fedavg"))
    [row] = facts.summary.to_dict("records")
    weights = range(1, 16)
    expected = sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
    assert row["weighted"] == pytest.approx(expected)
    assert row["worst_tenth"] == pytest.approx((0.1 + 0.3) / 2)  # two of fifteen
    losses = summaries.summarise(facts.rows.assign(metric="loss"), facts.runs, "loss")
    assert losses["worst_tenth"].iloc[0] == pytest.approx((0.9 + 0.6) / 2)


def test_a_page_of_twenty_thousand_clients_is_small(tmp_path):
    n = 20_000
    # Sizes that no two clients near each other share.
    counts = [[i * 7 % 13, i * 11 % 17, 1] for i in range(n)]
    write_partition(tmp_path, "part", {"train": counts, "test": [[1, 0, 0]] * n}, ["a", "b", "c"])
    values = [(i % 1000) / 1000 for i in range(n)]
    moved = [min(1.0, v + 0.1) for v in values]
    rows = [*clients(values, round=0), *clients(moved, round=1, stage="personal")]
    write_run(tmp_path / "runs", "a", rows)
    facts = facts_of(tmp_path, entry("a", "ft"))
    sections = outline(facts)
    page = report.texts(facts, sections)[".html"]
    assert len(page.encode()) < 300_000


def test_figures_are_files_without_dates_and_old_ones_go(tmp_path):
    write_run(tmp_path / "runs", "a", clients([0.5, 0.7]))
    runs = [entry("a", "fedavg", title="FedAvg & co")]
    write_plan(tmp_path, plan(runs))
    *_, folder = report.build("small", tmp_path, tmp_path / "runs")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    pictures = {f"{n}.{end}" for n in ("rounds", "spread") for end in ("pdf", "svg")}
    assert pictures < set(before)
    assert {name for name in before if name not in pictures} == {
        "settings.tex",
        "clients.tex",
        "pace.tex",
    }
    assert before["rounds.pdf"].startswith(b"%PDF") and b"Date" not in before["rounds.pdf"]
    drawn = before["rounds.svg"].decode()
    assert "FedAvg &amp; co" in drawn and "#0072b2" in drawn and "var(--" not in drawn
    (folder / "gone.pdf").write_bytes(b"old")
    report.build("small", tmp_path, tmp_path / "runs")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("value", "signed", "text"),
    [
        (11191.0, False, "11,191"),
        (-12345.6, True, "\N{MINUS SIGN}12,346"),
        (-0.0002, True, "0.000"),
    ],
)
def test_numbers_have_commas_from_a_thousand_on_and_a_sign_unless_they_are_zero(
    value, signed, text
):
    assert number(value, "bytes_up", signed) == text


def test_costs_count_the_bytes_of_all_participants_and_of_the_start(tmp_path):
    def costing(traffic: list, **more: float) -> dict:
        plain = {"bytes_down": 1500.0, "bytes_up": 10.0, "flops": 2.5e9}
        kept = {"memory_client": 3000, "state_client": 0, "state_server": 40_000_000}
        return {"costs": plain | kept | {"participants": 3, "traffic": traffic} | more}

    store = tmp_path / "runs"
    curve = [row for r, v in enumerate((0.2, 0.46, 0.48, 0.5), 1) for row in clients([v], round=r)]
    write_run(store, "avg", curve, rounds=4, **costing([[2, 100, 10], [2, 200, 20]]))
    fine = [*clients([0.5], round=0), *clients([0.8], round=1, stage="personal")]
    write_run(store, "ft", fine, rounds=1, start="avg", **costing([[1, 7, 0]]))
    write_run(store, "old", curve, rounds=4)
    planned = [entry("avg", "avg"), entry("ft", "ft"), entry("old", "old")]
    facts = facts_of(tmp_path, *planned)
    reached = summaries.pace(facts.rows, facts.runs, "accuracy")
    sent = reached.set_index("run")["bytes"].dropna().to_dict()
    # The third round is the first at 95 % of 0.5; fine-tuning needs all four rounds behind it.
    assert sent == {"avg": 3 * (2 * 110 + 220), "ft": 3 * (2 * 110 + 2 * 220) + 3 * 7}
    assert facts.runs.set_index("run").loc["old", ["traffic", "flops"]].isna().all()
    table = cost_tables.costs_table(facts)
    assert table is not None and set(shown(table)) == {"avg", "ft"}
    assert shown(table)["avg"] == [
        "1.50 kB",
        "10 B",
        "1.32 kB",
        "2.50 G",
        "3.00 kB",
        "0 B",
        "40.0 MB",
    ]
    everything = report.texts(facts, outline(facts))
    assert all("40.0 MB" in everything[end] for end in (".html", ".md", ".tex"))
    busy = facts.runs.assign(flops_server=[None, 4e12, None])
    table = cost_tables.costs_table(replace(facts, runs=busy))
    assert table is not None and len(shown(table)["avg"]) == 8
    assert "4.00 T" in shown(table)[busy["title"][1]]


def test_costs_of_a_run_that_stopped_early_are_of_its_rounds(tmp_path):
    """Three rounds of four planned ones, of which the record tells."""
    costs = {"bytes_down": 150.0, "bytes_up": 15.0, "flops": 1.0, "participants": 3}
    costs |= {"state_client": 0, "state_server": 0, "traffic": [[2, 100, 10], [2, 200, 20]]}
    store = tmp_path / "runs"
    write_run(store, "avg", clients([0.5], round=3), costs=costs)
    fine = [*clients([0.5], round=0), *clients([0.8], round=1, stage="personal")]
    write_run(store, "ft", fine, start="avg")
    runs = facts_of(tmp_path, entry("avg", "avg"), entry("ft", "ft")).runs.set_index("run")
    assert runs.loc["avg", "traffic"] == "[[2, 100, 10], [1, 200, 20]]"
    assert runs.loc["avg", ["bytes_down", "bytes_up"]].tolist() == [400 / 3, 40 / 3]
    assert runs.loc["ft", "bytes_before"] == 3 * (2 * 110 + 220)


def test_tables_say_that_a_sample_of_the_clients_is_scored(tmp_path):
    write_partition(
        tmp_path, "part", {"train": [[3, 1]] * 6, "val": [], "test": [[1, 1]] * 6}, "ab"
    )
    for run in ("a", "b"):
        write_run(tmp_path / "runs", run, clients([0.5, 0.7]))
    given = told(["digits"])
    entries = {m: dict(given["entries"]["fedavg"]) for m in ("fedavg", "ditto")}
    runs = [entry("a", "fedavg"), entry("b", "ditto")]

    def sentence(**counts: list[int | None]) -> str:
        for method, values in counts.items():
            training = {**entries[method]["training"], "evaluate_clients": values}
            entries[method] = {**entries[method], "training": training}
        facts = facts_of(tmp_path, *runs, **{**given, "entries": entries})
        scopes = {t.scope for t in blocks(outline(facts)) if isinstance(t, Table) and t.scope}
        assert all(facts.sample_note in scope for scope in scopes)
        return facts.sample_note

    assert sentence(fedavg=[None]) == ""
    both = "Scores are over a sample of 2 of 6 clients."
    assert sentence(fedavg=[2], ditto=[2]) == both
    only = "Scores are over samples of clients: fedavg 2 of 6; ditto all."
    assert sentence(ditto=[None]) == only
    assert sentence(ditto=[6]) == only
    assert sentence(fedavg=[6]) == ""


def test_tables_count_the_clients_on_which_a_metric_is_not_defined(tmp_path):
    """One client has equal targets, so no R2, and its own RMSE."""
    rmse, r2 = clients([1.0, 2.0, 3.0, 4.0], metric="rmse"), clients([0.1, 0.2], metric="r2")
    write_run(tmp_path / "runs", "a", [*rmse, *r2])
    facts = facts_of(tmp_path, entry("a", "fedavg"), metric="rmse")
    [table] = method_tables.other_metrics(facts)
    assert "R2: mean over 2 of 4 clients" in table.note
    assert "clients, as" not in method_tables.main_table(facts).note
    facts = facts_of(tmp_path, entry("a", "fedavg"), metric="r2")
    assert "over 2 of 4 clients" in method_tables.main_table(facts).note
    assert "over 2 of 4 clients" in " ".join(result_lines.results(facts))
