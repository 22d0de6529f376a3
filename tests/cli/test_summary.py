"""A study as `fedloom show` and `fedloom plan` print it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import planning
import pytest
from make_results import clients, entry, plan, write_plan, write_run
from planning import Planned

from fl.cli import main
from fl.report.cells import NOTHING
from fl.store import workspace
from fl.store.workspace import Attempt


def shown(root: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines about the study ``small``, as it was planned, without their alignment."""
    places = f"results: {root / 'results'}\nstore: {root / 'runs'}\n"
    (root / "config.yaml").write_text(f"studies: [small]\n{places}")
    assert main.main(["show", "small", "--planned", "--config", str(root)]) == 0
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.usefixtures("any_name")
def test_clients_held_out_of_training_have_lines_of_their_own(tmp_path: Path, capsys):
    runs = [entry(f"r{seed}", "fedavg", seed=seed, partition="natural") for seed in (0, 1)]
    runs += [entry("r2", "local", partition="natural"), entry("r3", "fedavg", partition="plain")]
    write_plan(tmp_path / "results", plan(runs))
    for run, values in (("r0", [0.2, 0.4]), ("r1", [0.4, 0.6])):
        unseen = clients(values, split="unseen")
        write_run(tmp_path / "runs", run, clients([0.5, 0.7]) + unseen)
    write_run(tmp_path / "runs", "r3", clients([0.1]))
    lines = shown(tmp_path, capsys)
    assert lines[1] == "digits / natural / mlp: test accuracy (%)"
    assert lines[3:5] == [
        "fedavg 60.0 0.0 50.0 2",
        f"local {NOTHING} {NOTHING} {NOTHING} 0 1 missing",
    ]
    unseen = "digits / natural / mlp: test accuracy (%), clients held out of training"
    start = lines.index(unseen)
    assert lines[start + 2 :][:2] == ["fedavg 40.0 14.1 30.0 2", lines[4]]
    assert sum("held out" in line for line in lines) == 1, "of the plain partition there are none"


@pytest.mark.usefixtures("any_name")
def test_lines_have_the_users_titles(tmp_path: Path, capsys):
    long = "table(path=/a/long/path.csv, label=diagnosis)"
    runs = [entry(f"r{seed}", "fedavg", seed=seed, dataset=long) for seed in (0, 1)]
    titles = {"dataset": {long: "Patients"}}
    write_plan(tmp_path / "results", plan(runs, titles=titles))
    write_run(tmp_path / "runs", "r0", clients([0.5]))
    text = "\n".join(shown(tmp_path, capsys))
    assert "Patients / " in text and long not in text


@pytest.mark.usefixtures("any_name")
def test_the_chosen_point_of_a_grid_and_a_metric_that_is_no_share(tmp_path: Path, capsys):
    runs = [entry(f"r{mu}", "prox", point={"mu": mu, "adapt": True}) for mu in (1, 2)]
    write_plan(tmp_path / "results", plan(runs, metric="loss"))
    for run, loss in (("r1", 0.75), ("r2", 0.5)):
        rows = [r for split in ("val", "test") for r in clients([loss], 2, split, metric="loss")]
        write_run(tmp_path / "runs", run, rows)
    lines = shown(tmp_path, capsys)
    assert lines[1].endswith(": test loss")
    assert lines[3] == f"prox 0.500 {NOTHING} 0.500 1 mu=2, adapt=true"


def test_a_run_that_lacks_weights_is_told_of_as_one_to_train(
    planned: Callable[..., Planned], capsys: pytest.CaptureFixture[str]
) -> None:
    study = planned(seeds=[0, 1])
    assert study.train("fedavg") == 0
    run, _ = study.runs("fedavg")

    def told(*words: str) -> str:
        capsys.readouterr()
        assert main.main([*words, "--config", str(study.root / "config")]) == 0
        return capsys.readouterr().out

    assert "2 runs in 1 bundle; 0 to train\n" in told("plan", "--runs")
    assert f"run {run}: complete;" in told("explain", run)
    planning.write_study(study.root, {"seeds": [0, 1], "keep_weights": True})
    said = told("plan", "--runs")
    assert "2 of    2 runs stored (2 without final weights" in said
    assert "2 runs in 1 bundle; 2 to train, 2 of them again" in said
    assert f"{run}  seed 0      to train" in said
    other = study.root / "elsewhere"
    (study.root / "runs").rename(other)
    [*members] = study.bundle("fedavg")["runs"]
    for code in ({}, {"core": "0"}):
        write_run(study.root / "runs", f"r{len(code)}", [], spec=members[0]["spec"], code=code)
    assert "\nthe store has 1 run " in told("plan")
    shutil.rmtree(study.root / "runs")
    other.rename(study.root / "runs")
    told("plan", "--write")
    assert f"run {run}: complete, but its final weights" in told("explain", run)


def test_a_job_whose_metrics_need_its_memory_is_told_of(
    planned: Callable[..., Planned], capsys: pytest.CaptureFixture[str]
) -> None:
    training = {**planning.STUDY["training"], "rounds": 1_200_000}
    root = planned(training=training).root
    for count, lines in ((None, 1), (1, 0)):
        planning.write_study(root, {"training": {**training, "evaluate_clients": count}})
        assert main.main(["plan", "--config", str(root / "config")]) == 0
        said = capsys.readouterr().out
        assert said.count("rows of metrics") == said.count(" 28,800,000 rows") == lines


def test_cluster_jobs_ask_for_more_after_one_had_too_little_memory(
    planned: Callable[..., Planned], capsys: pytest.CaptureFixture[str]
) -> None:
    study = planned(execution={"processes": 1, "memory_mb": 3000})
    config = study.root / "config" / "config.yaml"
    [run] = study.runs("fedavg")
    (study.store().partial(run)).mkdir(parents=True)

    def requests() -> str:
        capsys.readouterr()
        assert main.main(["plan", "--config", str(config.parent)]) == 0
        *_, line = capsys.readouterr().out.splitlines()
        return line

    assert "3,000 MiB" in requests()
    for number in (1, 2):
        attempt = Attempt("Slurm", "7", memory_mb=3000, ended="memory")
        workspace.write_attempt(study.store().partial(run), number, attempt)
    assert "9,000 MiB" in requests()
    config.write_text(config.read_text() + "nodes: [{memory_mb: 4000}, {memory_mb: 7000}]\n")
    assert "7,000 MiB" in requests(), "no node has more"


@pytest.mark.parametrize("name", ["metrics.parquet", "run.json"])
def test_a_run_whose_file_is_cut_does_not_count_as_stored(
    planned: Callable[..., Planned], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    study = planned(seeds=[0, 1])
    assert study.train("fedavg") == 0
    run, _ = study.runs("fedavg")
    path = study.root / "runs" / run / name
    path.write_bytes(path.read_bytes()[:100])
    capsys.readouterr()
    assert main.main(["plan", "--runs", "--config", str(study.root / "config")]) == 0
    said = capsys.readouterr().out
    assert "   1 of    2 runs stored" in said
    assert f"{run}  seed 0      damaged" in said
    assert f"{path}: " in said
    assert "1 run damaged" in said and "Try: fedloom store" in said


def test_a_plan_tells_of_runs_that_only_the_archive_of_dvc_has(
    planned: Callable[..., Planned], capsys: pytest.CaptureFixture[str]
):
    study = planned(seeds=[0, 1])
    assert study.train("fedavg") == 0
    archive = study.root / "results" / "archive"
    config = ["--config", str(study.root / "config")]
    assert main.main(["store", "export", str(archive), *config]) == 0
    capsys.readouterr()
    assert main.main(["plan", *config]) == 0
    assert "store import" not in capsys.readouterr().out, "the store has them"
    shutil.rmtree(study.root / "runs")
    assert main.main(["plan", *config]) == 0
    said = capsys.readouterr().out
    assert "2 to train" in said and f"2 of them need no training, as they are in {archive}" in said
    assert f"fedloom store import {archive}" in said


def test_draws_and_many_settings_share_lines_unless_every_run_is_listed(
    planned: Callable[..., Planned], capsys: pytest.CaptureFixture[str]
) -> None:
    def lines(draws: list[int], alphas: list[float], *words: str) -> list[str]:
        partitions = [
            {"dirichlet": {"clients": 3, "alpha": alpha, "min_samples": 5, "seed": draws}}
            for alpha in alphas
        ]
        planning.write_study(root, {"partitions": partitions, "methods": ["local", "fedavg"]})
        capsys.readouterr()
        assert main.main(["plan", *words, "--config", str(root / "config")]) == 0
        return [s for s in capsys.readouterr().out.splitlines() if "runs stored" in s]

    root = planned().root
    first, second = lines([0, 1, 2], [0.5])
    assert first.split()[:4] == ["local", "0", "of", "3"] and first.endswith(", 3 draws")
    assert second.split()[:4] == ["fedavg", "0", "of", "3"]
    assert len(lines([0, 1, 2], [0.5], "--runs")) == 6
    assert len(lines([0], [0.1 * n for n in range(1, 7)])) == 12
    alphas = [0.1 * n for n in range(1, 8)]
    first, _ = lines([0], alphas)
    assert first.split()[:4] == ["local", "0", "of", "7"] and "7 settings" in first
    assert len(lines([0], alphas, "--runs")) == 14


def test_show_takes_the_only_study_of_the_config(
    planned: Callable[..., Planned], capsys: pytest.CaptureFixture[str]
) -> None:
    root = planned().root
    for words in (["show"], ["show", "tiny"]):
        capsys.readouterr()
        assert main.main([*words, "--config", str(root / "config")]) == 0
        assert "fedloom report tiny" in capsys.readouterr().out
