"""What a study means, run by run, and what is written down of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from fl.base.errors import ConfigError, Location
from fl.cli import main
from fl.plan import config as config_files
from fl.plan import plan, plan_files, run_spec
from fl.plan.expand import expand
from fl.plan.published_cells import published_cells

STUDY: dict[str, Any] = {
    "datasets": [{"synthetic": {"clients": 3, "samples": 30}}],
    "partitions": ["natural"],
    "models": [{"mlp": {"hidden": [8]}}],
    "methods": {"fedavg": None},
    "seeds": [0, 1],
    "training": {"rounds": 2},
}


X: dict[str, Any] = {"method": "fedprox", "mu": 0.3}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = Path("config")
    (folder / "studies").mkdir(parents=True)
    (folder / "methods").mkdir()
    (folder / "config.yaml").write_text("studies: [a]\n")
    study(folder)
    return folder


def study(folder: Path, name: str = "a", **changes: Any) -> None:
    text = yaml.safe_dump({**STUDY, **changes}, sort_keys=False)
    (folder / "studies" / f"{name}.yaml").write_text(text)


def runs(folder: Path, name: str = "a", **changes: Any) -> list[Any]:
    study(folder, name, **changes)
    return expand(folder, name, config_files.read_draft(folder, name, Location(name))).runs


def refused(folder: Path, **changes: Any) -> str:
    with pytest.raises(ConfigError) as error:
        runs(folder, **changes)
    return str(error.value)


def test_whose_test_samples_is_part_of_a_run_only_where_it_is_not_its_own(config: Path):
    plain, said, all_ = (
        runs(config, **keys)[0] for keys in ({}, {"test": "own"}, {"test": "global"})
    )
    assert plain.run == said.run
    assert "test" not in plain.spec
    assert all_.spec == {**plain.spec, "test": "global"}
    assert all_.run != plain.run
    assert "Allowed: global, own" in refused(config, test="unseen")


def test_every_combination_is_a_run_of_its_own(config: Path):
    found = runs(
        config,
        models=[{"mlp": {"hidden": [[8], [8, 8]]}}, "two-layer"],
        methods={"fedavg": None, "fedprox": {"mu": [0.1, 1], "lr": [0.1, 0.2]}},
    )
    assert len({run.run for run in found}) == len(found) == 3 * (1 + 4) * 2
    prox = [r for r in found if r.method == "fedprox" and r.model == "mlp(hidden=[8, 8])"]
    points = [(r.spec["method"]["mu"], r.spec["training"]["lr"], r.spec["seed"]) for r in prox]
    assert sorted(points) == [
        (mu, lr, seed) for mu in (0.1, 1.0) for lr in (0.1, 0.2) for seed in (0, 1)
    ]
    assert {tuple(r.spec["model"]["hidden"]) for r in prox} == {(8, 8)}
    assert prox[0].point == {"mu": 0.1, "lr": 0.1}
    assert len({run.point_id for run in prox}) == 4


def test_a_default_that_is_written_out_is_the_same_run(config: Path):
    ids = [run.run for run in runs(config)]
    assert ids == [r.run for r in runs(config, training={"rounds": 2.0, "momentum": 0})]
    assert ids == [r.run for r in runs(config, training={"rounds": 2, "local_epochs": 1})]
    assert ids == [
        r.run for r in runs(config, partitions=[{"natural": {"val": 0.1}}], title="x", question="y")
    ]
    assert ids != [r.run for r in runs(config, training={"rounds": 2, "momentum": 0.5})]


def test_training_is_layered_and_the_entry_wins(config: Path):
    methods = {
        "fedavg": None,
        "fedprox": {"lr": 0.3, "local_steps": 7},
        "ft": {"method": "finetune", "start": "fedavg"},
    }
    (config / "methods" / "fedprox.yaml").write_text("lr: 0.2\nmu: 0.7\nbatch_size: 4\n")
    found = runs(config, methods=methods, training={"rounds": 3, "local_epochs": 2, "lr": 0.1})
    by = {run.method: run.spec for run in found}
    assert by["fedavg"]["training"]["lr"] == 0.1
    assert by["fedavg"]["training"]["batch_size"] == 32
    prox = by["fedprox"]["training"]
    assert (prox["lr"], prox["batch_size"], prox["rounds"]) == (0.3, 4, 3)
    assert (prox["local_epochs"], prox["local_steps"]) == (None, 7)
    assert by["fedprox"]["method"]["mu"] == 0.7
    assert (by["ft"]["training"]["rounds"], by["ft"]["training"]["local_epochs"]) == (5, 1)


def test_fine_tuning_starts_from_the_run_of_its_seed_at_every_point(config: Path):
    methods = {
        "fedprox": {"mu": [0.1, 1]},
        "ft": {"method": "finetune", "start": "fedprox", "lr": [0.01, 0.1]},
    }
    found = runs(config, methods=methods)
    starts = {run.run: run for run in found if run.method == "fedprox"}
    tuned = [run for run in found if run.method == "ft"]
    assert len(tuned) == 8
    for run in tuned:
        before = starts[run.start]
        assert before.spec["seed"] == run.spec["seed"]
        assert before.point_id == run.spec["start"]
        assert run.point == {"start.mu": before.point["mu"], "lr": run.spec["training"]["lr"]}


def test_a_start_has_to_be_an_entry_with_a_shared_model(config: Path):
    tune = {"method": "finetune", "start": "b"}
    said = refused(config, methods={"fedavg": None, "b": tune})
    assert "config/studies/a.yaml: methods.b.start: makes a circle: b <- b" in said
    said = refused(config, methods={"a": {"method": "finetune"}, "fedavg": None})
    assert "methods.a.start" in said
    assert "Allowed: fedavg" in said
    said = refused(config, methods={"local": None, "a": {**tune, "start": "local"}})
    assert "methods.a.start: 'local' " in said
    said = refused(config, methods={"fedavg": None, "fedprox": {"start": "fedavg"}})
    assert re.search(r"methods\.fedprox\.start: .*'fedavg'.*Allowed: no start.*finetune", said)
    warm = {"method": "warm-up"}
    said = refused(config, methods={"a": {**warm, "train_on": "b"}, "b": {**warm, "train_on": "a"}})
    assert "methods.a.train_on: 'b' " in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"datasets": ["digit"]}, "datasets.0: unknown data set 'digit' (did you mean 'digits'?)"),
        ({"partitions": ["iid"]}, "unknown partition scheme 'iid' (did you mean 'homogeneous'?)"),
        ({"training": {"lr": 1e308}}, "training.lr: is 1e+308. Allowed: a number > 0 and <= "),
        (
            {"training": {"rounds": 20, "schedule": "exponential", "lr_decay": 2}},
            "training.lr_decay: is 2.0. Allowed: a number > 0 and <= 1",
        ),
        (
            {"methods": {"fedprox": {"mu": -1}}},
            "methods.fedprox.mu: is -1.0. Allowed: a number >= 0",
        ),
        ({"training": {"lr": "fast"}}, "training.lr: is 'fast' (str). Allowed: a number > 0"),
        ({"seeds": []}, "seeds: is empty. Allowed: at least one"),
        (
            {"analyses": [{"inversion": {"methods": ["local"]}}]},
            "analyses.0.inversion.methods.0: unknown entry 'local'",
        ),
        ({"baseline": "local"}, "baseline: unknown entry 'local'"),
        ({"contrasts": {"fedavg": "fedavg"}}, "contrasts: is set, but the study has no baseline"),
        (
            {"baseline": "fedavg", "contrasts": {"fedavg": "local"}},
            "contrasts.fedavg: unknown entry 'local'",
        ),
        (
            {
                "baseline": "fedavg",
                "methods": {"fedavg": None, "local": None},
                "contrasts": {"local": "fedavg"},
            },
            "contrasts.local: is 'fedavg', and the two are one or compared already",
        ),
        ({"models": ["cnn"]}, "models.0.cnn: cnn does not take the inputs of synthetic"),
        (
            {"partitions": [{"dirichlet": {"clients": 90, "alpha": 1}}]},
            "partitions.0.dirichlet.clients: is 90, too many for the 90 samples of synthetic",
        ),
        (
            {"partitions": [{"pathological": {"clients": 3, "classes_per_client": 11}}]},
            "classes_per_client: is 11, but synthetic has 10 classes. Allowed: 1 to 10",
        ),
        ({"partitions": [{"file": {"path": "no.parquet"}}]}, "partitions.0.file.path: no.parquet"),
    ],
)
def test_what_is_wrong_is_named_with_file_key_and_what_is_allowed(
    config: Path, changes: dict[str, Any], said: str
):
    error = refused(config, **changes)
    assert error.startswith("config/studies/a.yaml: ")
    assert said in error


def test_two_studies_share_a_run_and_its_bundle(config: Path):
    study(config, "a", seeds=[0, 1])
    study(config, "b", seeds=[1, 2], methods={"fedavg": None, "fedprox": None})
    (config / "config.yaml").write_text("studies: [a, b]\n")
    found = plan.make(config)
    a, b = ({(r.method, r.seed): r for r in found.studies[n].runs} for n in "ab")
    assert a["fedavg", 1] == b["fedavg", 1]
    assert len({run.bundle for run in [*a.values(), b["fedavg", 1], b["fedavg", 2]]}) == 1
    shared = found.bundles[a["fedavg", 0].bundle]
    assert [member.seed for member in shared.runs] == [0, 1, 2]
    assert len(found.bundles) == 2


def test_a_bundle_names_what_it_needs(config: Path):
    methods = {"fedavg": None, "ft": {"method": "finetune", "start": "fedavg"}}
    study(config, methods=methods)
    found = plan.make(config)
    by = {run.method: found.bundles[run.bundle] for run in found.studies["a"].runs}
    assert by["ft"].after == [by["fedavg"].bundle]
    assert by["fedavg"].after == []
    assert [m.keep for m in by["fedavg"].runs] == [["final.safetensors"]] * 2
    assert [m.keep for m in by["ft"].runs] == [[], []]
    assert [m.start for m in by["ft"].runs] == [m.run for m in by["fedavg"].runs]
    plan.write(found)
    spec = by["ft"].runs[0].spec
    assert plan_files.read_dataset("results", by["ft"].dataset) == spec["dataset"]
    assert plan_files.read_partition("results", by["ft"].partition).scheme == spec["partition"]


CELLS = {
    "source": "paper.csv",
    "table": "1",
    "rows": {"fedavg": "FedAvg"},
    "columns": {"natural": "all"},
}


def published(config: Path, **changes: Any) -> list[dict[str, Any]]:
    (config / "published").mkdir(exist_ok=True)
    lines = ["table,row,column,value,sd,note", "1,FedAvg,all,71.5,0.4,", "2,FedAvg,all,9,,x"]
    (config / "published" / "paper.csv").write_text("\n".join(lines) + "\n")
    study(config, published=[{**CELLS, **changes}])
    return list(plan.make(config).studies["a"].published)


def test_published_cells_are_looked_up(config: Path):
    [cell] = published(config)
    assert cell == {
        "source": "paper.csv",
        "table": "1",
        "row": "FedAvg",
        "column": "all",
        "note": "",
        "value": 71.5,
        "sd": 0.4,
        "method": "fedavg",
        "setting": "natural",
    }
    [cell] = published(config, table="2")
    assert (cell["value"], cell["sd"], cell["note"]) == (9.0, None, "x")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"source": "papr.csv"},
            "published.0.source: unknown file 'papr.csv' (did you mean 'paper",
        ),
        (
            {"columns": {"digits": "all"}},
            "published.0.columns.digits: unknown data set or partition",
        ),
        (
            {"unseen": True},
            "published.0.unseen: is true, but no client of natural is held out of training. ",
        ),
        ({"unseen": True, "modality": "image"}, "published.0: names clients in two ways. "),
        ({"model": "mpl"}, "published.0.model: unknown model 'mpl'"),
        ({"metric": "acuracy"}, "published.0.metric: unknown metric 'acuracy'"),
        ({"metric": "rounds to nothing"}, "published.0.metric: unknown entry 'nothing'"),
        ({"metric": "seconds", "round": 1}, "published.0.metric: is seconds, which no round"),
        ({"round": 999}, "published.0.round: is 999, but runs record"),
    ],
)
def test_published_cells_that_are_not_there_are_refused(
    config: Path, changes: dict[str, Any], said: str
):
    with pytest.raises(ConfigError) as error:
        published(config, **changes)
    assert said in str(error.value)


def times(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*.json")}


def test_files_are_rewritten_only_when_their_content_changes(config: Path):
    home = Path("results/plan")
    methods: dict[str, Any] = {"fedavg": None, "fedprox": None}
    study(config, methods=methods)
    first = plan.read_index(config)
    before = times(home)
    text = (config / "studies" / "a.yaml").read_text()
    (config / "studies" / "a.yaml").write_text(f"# A comment.\n{text}")
    second = plan.read_index(config)
    assert replace(first, key="") == replace(second, key="")
    assert {path for path, time in times(home).items() if before[path] != time} == {
        "results/plan/plan.json"
    }
    study(config, methods={**methods, "fedprox": {"mu": 5.0}})
    third = plan.read_index(config)
    changed = {Path(path) for path, time in times(home).items() if before.get(path) != time}
    [new] = set(third.bundles) - set(first.bundles)
    assert changed == {
        home / "plan.json",
        home / "studies" / "a.json",
        home / "bundles" / f"{new}.json",
    }


def test_a_job_of_a_running_plan_keeps_to_it(config: Path):
    planned = plan.read_index(config)
    study(config, seeds=[5])
    assert plan_files.read_index("results") == planned
    assert plan.read_index(config).runs != planned.runs


def test_an_edit_while_the_plan_is_made_makes_it_anew(config: Path, monkeypatch):
    make = plan.make

    def slow(*arguments: Any, **how: Any) -> plan.Plan:
        found = make(*arguments, **how)
        study(config, seeds=[5])
        return found

    monkeypatch.setattr(plan, "make", slow)
    assert len(plan.read_index(config).runs) == 2
    monkeypatch.setattr(plan, "make", make)
    assert len(plan.read_index(config).runs) == 1


@pytest.fixture
def makings(monkeypatch: pytest.MonkeyPatch) -> list[plan.Plan]:
    """The plans that were made since."""
    make, made = plan.make, list[plan.Plan]()

    def noted(*arguments: Any, **how: Any) -> plan.Plan:
        made.append(make(*arguments, **how))
        return made[-1]

    monkeypatch.setattr(plan, "make", noted)
    return made


def test_a_plan_is_made_once_to_be_written_and_shown(
    config: Path, makings: list[plan.Plan], capsys
):
    assert main.main(["plan", "--write"]) == 0
    assert len(makings) == 1
    assert "2 runs in 1 bundle; 2 to train" in capsys.readouterr().out
    assert plan.read_index(config) == plan_files.read_index("results")
    assert len(makings) == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("results", "config.yaml: results: is 'results', but results is a file. Allowed: a folder"),
        ("results/plan", "results/plan: a part of this path is a file, not a folder; choose "),
    ],
)
def test_results_that_cannot_be_written_are_named_before_anything_is_planned(
    config: Path, makings: list[plan.Plan], capsys, name: str, said: str
):
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("a file")
    assert main.main(["plan", "--write"]) == 1
    assert said in capsys.readouterr().err
    assert makings == []


def test_a_plan_that_is_refused_leaves_nothing(config: Path):
    study(config, seeds=[])
    assert main.main(["plan", "--write"]) == 1
    assert not Path("results").exists()


def test_the_templates_are_part_of_what_a_report_follows_from(config: Path, monkeypatch, tmp_path):
    before = plan.read_index(config)
    templates = tmp_path / "templates"
    templates.mkdir()
    (templates / "report.css").write_text("p { color: red; }")
    monkeypatch.setattr(plan_files, "TEMPLATES", templates)
    after = plan.read_index(config)
    assert after.studies["a"].hash != before.studies["a"].hash
    assert after.runs == before.runs


def test_execution_is_no_part_of_identity(config: Path):
    before = plan.make(config)
    (config / "config.yaml").write_text("studies: [a]\nexecution: {threads: 3, backend: debug}\n")
    after = plan.make(config)
    assert list(after.bundles) == list(before.bundles)
    assert [b.execution.threads for b in after.bundles.values()] == [3]
    assert after.studies["a"].hash == before.studies["a"].hash


def test_execution_is_layered_and_the_entry_wins(config: Path):
    ids = {run.run for run in runs(config, methods={"fedavg": None, "fedprox": None, "x": X})}
    (config / "config.yaml").write_text("studies: [a]\nexecution: {threads: 3, memory_mb: 500}\n")
    (config / "methods" / "fedprox.yaml").write_text("execution: {memory_mb: 700, gpus: 1}\n")
    entry = {"execution": {"gpus": 2, "slurm_partition": "big"}}
    methods = {"fedavg": None, "fedprox": entry, "x": X}
    study(config, methods=methods, execution={"memory_mb": 600, "minutes": 9})
    found = plan.make(config)
    by = {r.method: found.bundles[r.bundle].execution for r in found.studies["a"].runs}
    keys = ("threads", "memory_mb", "minutes", "gpus", "slurm_partition")
    assert [getattr(by["fedavg"], key) for key in keys] == [3, 600, 9, None, None]
    assert [getattr(by["fedprox"], key) for key in keys] == [3, 700, 9, 2, "big"]
    assert [getattr(by["x"], key) for key in keys] == [3, 700, 9, 1, None]
    assert {run.run for run in found.studies["a"].runs} == ids


def test_an_execution_that_is_wrong_is_named_where_it_stands(config: Path):
    said = refused(config, methods={"fedavg": {"execution": {"gpu": 1}}})
    assert "a.yaml: methods.fedavg.execution.gpu: unknown key 'gpu' (did you mean 'gpus'?)" in said
    assert "a.yaml: execution.minutes: is 0" in refused(config, execution={"minutes": 0})


def test_all_that_is_wrong_with_a_study_is_said_at_once(config: Path):
    methods = {"fedavg": {"lr": -1, "rouns": 3}, "fedpox": None, "x": {**X, "lr": 0.1}}
    models = [{"mlp": {"hiden": [8]}}, "cn"]
    said = refused(config, methods=methods, models=models).splitlines()
    assert len(said) == len(set(said)) == 5
    where = ["methods.fedavg.rouns", "methods.fedpox", "models.0.mlp.hiden", "models.1"]
    for key in where:
        assert any(line.startswith(f"config/studies/a.yaml: {key}: unknown") for line in said), key
    said = refused(config, titel="T", seeds=[-1]).splitlines()
    assert [line.split(": ")[1] for line in said] == ["titel", "seeds.0"]


NODES = """studies: [a]
execution: {memory_mb: 8000}
nodes:
  - {cpus: 4, memory_mb: 16000}
  - {slurm_partition: gpu, cpus: 4, memory_mb: 16000, gpus: 1, minutes: 60}
  - {slurm_partition: gpu, cpus: 8, memory_mb: 64000, gpus: 4, minutes: 60}
"""


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"memory_mb": 16001}, "the default partition can hold a job of fedavg, which asks for "),
        ({"memory_mb": 16001}, "16001 memory_mb (the node has 16000)"),
        ({"slurm_partition": "gpu", "gpus": 5, "minutes": 30}, "5 gpus (the node has 4)"),
        ({"slurm_partition": "gpu", "gpus": 1}, "240 minutes (the node has 60)"),
        ({"slurm_partition": "gpu", "minutes": 9, "threads": 16}, "16 cpus (the node has 8)"),
    ],
)
def test_a_job_that_no_node_can_hold_is_refused(config: Path, asked: dict[str, Any], said: str):
    (config / "config.yaml").write_text(NODES)
    study(config, methods={"fedavg": {"execution": asked}})
    with pytest.raises(ConfigError) as error:
        plan.make(config)
    assert str(error.value).startswith("config/config.yaml: nodes: no node of ")
    assert said.lower() in str(error.value).lower()


def test_how_many_jobs_there_will_be_is_said(config: Path, capsys):
    methods = {f"m{number}": {"method": "fedprox", "mu": number} for number in range(50)}
    study(config, methods={"fedavg": None, **methods}, seeds=[0, 1])
    assert main.main(["plan"]) == 0
    said = capsys.readouterr().out
    assert "102 runs in 51 bundles; 102 to train" in said
    cores = len(os.sched_getaffinity(0))
    assert f"1 job on {cores} core" in said
    assert "51 cluster jobs (snakemake --profile slurm, after fedloom init --slurm)" in said
    Path("profiles/slurm").mkdir(parents=True)  # Where Snakemake finds it.
    assert said.endswith("\nCluster jobs ask for 4,000 MiB, 240 min, 1 core (51)\n")
    text = "studies: [a]\nexecution: {run_minutes: 1, merge_minutes: 30}\n"
    (config / "config.yaml").write_text(text)
    assert main.main(["plan"]) == 0
    said = capsys.readouterr().out
    assert " of this machine (snakemake), or 4 cluster jobs (snakemake --profile slurm)\n" in said
    assert "\n1 start" not in said, "minutes of work are for all cores"
    own = {"processes": 2, "memory_mb": 6000, "gpus": 1, "slurm_partition": "gpu", "minutes": 90}
    study(config, methods={"fedavg": None, "fedprox": {"execution": own}}, seeds=[0, 1])
    assert main.main(["plan"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    own_request = "12,000 MiB, 90 min, 2 cores, 2 GPUs, partition gpu (1)"
    assert line == f"Cluster jobs ask for {own_request}; 4,000 MiB, 240 min, 1 core (1)"


def test_other_programs_are_told_where_they_are_installed(config: Path, monkeypatch):
    monkeypatch.setattr(config_files.importlib.util, "find_spec", lambda name: None)
    asked = {"log": ["mlflow"]}
    problem = "log.0: is mlflow, which is not installed. Try: `pip install mlflow`"
    assert f"a.yaml: execution.{problem}" in refused(config, execution=asked)
    (config / "config.yaml").write_text("studies: [a]\nexecution: {log: [mlflow]}\n")
    study(config)
    with pytest.raises(ConfigError) as error:
        plan.make(config)
    assert f"config.yaml: execution.{problem}" in str(error.value)


def test_a_run_that_is_to_stop_early_needs_validation_samples(config: Path):
    scheme = {"dirichlet": {"clients": 4, "alpha": 1.0, "val": 0.0}}
    said = refused(config, partitions=[scheme], training={"rounds": 5, "early_stopping": 3})
    assert (
        "training.early_stopping: is set, but dirichlet" in said and "no validation samples" in said
    )


def test_a_grid_without_validation_samples_is_refused(config: Path):
    changes = {"methods": {"fedprox": {"mu": [0.1, 1]}}}
    scheme = {"dirichlet": {"clients": 4, "alpha": 1.0, "val": 0.0}}
    assert "methods.fedprox: is a grid, but dirichlet" in refused(
        config, partitions=[scheme], **changes
    )
    scheme["dirichlet"]["val"] = 0.1
    assert len(runs(config, partitions=[scheme], **changes)) == 4


SEARCH = {"lr": {"log_uniform": [1e-4, 1], "draws": 8}, "mu": {"uniform": [0, 2], "draws": 8}}


def test_keys_are_drawn_together_and_more_draws_go_on_from_the_first(config: Path):
    made = runs(config, methods={"fedprox": SEARCH}, seeds=[0])
    points = [run.point for run in made]
    assert len({run.run for run in made}) == 8 and [*points[0]] == ["lr", "mu"]
    for point in points:
        assert 1e-4 <= point["lr"] <= 1 and 0 <= point["mu"] <= 2
        assert all(value == float(f"{value:.3g}") for value in point.values())
    rates = sorted(point["lr"] for point in points)
    assert rates[1] < 1e-2 < rates[-2], "as many in each half of the logarithm, about"
    fewer = {key: {**search, "draws": 3} for key, search in SEARCH.items()}
    swept = {**fewer, "momentum": [0.0, 0.5]}
    methods = {"fedprox": swept, "other": {"method": "fedprox", **fewer}}
    both = runs(config, methods=methods, seeds=[0])
    again = [{k: run.point[k] for k in ("lr", "mu")} for run in both if run.method == "other"]
    assert again == points[:3]
    assert sum(run.method == "fedprox" for run in both) == 6, "each with both momenta"
    other = runs(config, methods={"fedprox": SEARCH}, seeds=[0], search_seed=1)
    assert not {str(run.point) for run in other} & set(map(str, points))


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ({"lr": {"log_uniform": [1e-4, 1]}}, "fedprox.lr.draws: is missing"),
        ({"lr": {"draws": 8}}, "lr: has 0 distributions. Allowed: one of uniform, log_uniform"),
        ({"lr": {"uniform": [1, 1], "draws": 8}}, "lr.uniform: is [1.0, 1.0]. Allowed: two num"),
        ({"lr": {"log_uniform": [0, 1], "draws": 8}}, "lower one first, above 0"),
        (
            {"lr": {"uniform": [0.1, 0.101], "draws": 8}},
            "lr.uniform: is [0.1, 0.101], which has fewer than 8",
        ),
        (
            {"lr": {"uniform": [-2, -1], "draws": 8}},
            "cannot be -1.4. Allowed: a list of values; each a",
        ),
        ({"optimizer": {"uniform": [0, 1], "draws": 8}}, "each one of sgd, adam, adamw"),
        (
            {"local_epochs": {"uniform": [1, 9], "draws": 8}},
            "local_epochs: is searched at random, and",
        ),
        (
            {**SEARCH, "mu": {"uniform": [0, 2], "draws": 4}},
            "fedprox.mu.draws: is 4, and 8 for lr, which is searched together with it. Allowed: 8",
        ),
    ],
)
def test_a_search_that_is_not_understood_is_refused(
    config: Path, search: dict[str, Any], said: str
):
    assert said in refused(config, methods={"fedprox": search})


@pytest.mark.parametrize("kind", ["studies", "bundles"])
def test_a_plan_file_that_was_deleted_is_written_again(config: Path, kind: str):
    study(config)
    plan.read_index(config)
    gone = next(Path("results/plan", kind).iterdir())
    content = gone.read_text()
    gone.unlink()
    plan.read_index(config)
    assert gone.read_text() == content


def test_results_follow_the_config_and_not_the_last_plan(config: Path, capsys):
    study(config, methods={"fedavg": None})
    plan.read_index(config)
    study(config, methods={"fedavg": None, "local": None})
    assert main.main(["report", "a"]) == 0
    assert "0 of 4 runs stored" in capsys.readouterr().out
    assert main.main(["report", "a", "--planned"]) == 0
    assert "0 of 2 runs stored" in capsys.readouterr().out
    assert main.main(["show", "a"]) == 0
    said = capsys.readouterr().out
    assert "2 missing" in said and "4 missing" in said


# Terms, and published hyper-parameters

IMAGES: dict[str, Any] = {
    "datasets": ["digits"],
    "partitions": [{"homogeneous": {"clients": 3}}],
    "models": ["cnn"],
}
MIXED = {"mixstyle": {"layers": ["0"], "p": [0.2, 1]}}
TERM = {"method": "ditto", "terms": {"mk-mmd": {"layers": ["2"], "mu": 0.5}}}


def test_a_term_is_settled_and_is_part_of_the_run(config: Path):
    [one, _] = runs(config, methods={"mk": TERM})
    [term] = one.spec["terms"]
    assert (term["name"], term["mu"], term["update"]) == ("mk-mmd", 0.5, "step")
    assert "term mk-mmd" in one.code
    [plain, _] = runs(config, methods={"mk": {"method": "ditto"}})
    assert plain.spec["terms"] == []
    assert plain.run != one.run
    assert plain.code == {key: code for key, code in one.code.items() if key != "term mk-mmd"}


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"mk-mmd": {"layer": ["2"]}}, "terms.mk-mmd.layer: unknown key 'layer' (did you mean"),
        ({"mk-mmd": {"layers": ["body"]}}, "no layer 'body'. Allowed: '0' ("),
        ({"mk-mmd": {"mu": 1.0}}, "layers: is missing"),
    ],
)
def test_a_term_that_is_not_understood_is_refused(config: Path, terms: Any, said: str):
    assert said in refused(config, methods={"mk": {**TERM, "terms": terms}})


def test_altered_features_are_settled_and_are_part_of_the_run(config: Path):
    """Of a run without any the spec says nothing of them."""
    given = {"fedavg": None, "mixed": {"method": "fedavg", "alterations": MIXED}}
    plain, low, high = runs(config, methods=given, seeds=[0], **IMAGES)
    [settled] = high.spec["alterations"]
    assert settled == {"name": "mixstyle", "layers": ["0"], "p": 1.0, "alpha": 0.1}
    assert (low.point, high.point) == ({"mixstyle.p": 0.2}, {"mixstyle.p": 1})
    assert "alterations" not in plain.spec
    assert {**low.code, **plain.code} == low.code
    assert set(low.code) - set(plain.code) == {"alterations mixstyle"}
    assert len({plain.run, low.run, high.run}) == 3


@pytest.mark.parametrize(
    ("alterations", "said"),
    [
        ({"mixstyle": {"layers": ["body"]}}, "no layer 'body'. Allowed: '0' ("),
        ({"mixstyle": {"p": 0.1}}, "alterations.mixstyle.layers: is missing"),
        ({"mixstyle": {"layers": ["0"], "p": 2}}, "p: is 2.0. Allowed: a number >= 0 and <= 1"),
        (["mixstyle"], "alterations: is ['mixstyle']. Allowed: a mapping"),
    ],
)
def test_altered_features_that_are_not_understood_are_refused(
    config: Path, alterations: Any, said: str
):
    entry = {"method": "fedavg", "alterations": alterations}
    assert said in refused(config, methods={"mk": entry}, **IMAGES)


FILTERS = {"top-k": {"share": [0.1, 0.5]}, "quantize": {"bits": 4}}


def test_upload_filters_are_settled_in_their_order_and_are_part_of_the_run(config: Path):
    """Of a run without any the spec says nothing of it."""
    given = {
        "fedavg": None,
        "sent": {"method": "fedavg", "upload_filters": FILTERS, "aggregation": "median"},
    }
    plain, few, many = runs(config, methods=given, seeds=[0])
    names = [one["name"] for one in few.spec["wire"]]
    assert names == ["top-k", "quantize"]
    assert few.spec["wire"][0] == {"name": "top-k", "share": 0.1, "feedback": True}
    assert few.spec["aggregation"] == [{"name": "median"}]
    assert (few.point, many.point) == ({"top-k.share": 0.1}, {"top-k.share": 0.5})
    assert not {"wire", "aggregation"} & set(plain.spec)
    added = {"wire top-k", "wire quantize", "aggregation median"}
    assert set(few.code) - set(plain.code) == added


def test_the_former_key_of_upload_filters_gives_the_same_runs(config: Path, caplog: Any):
    entry = {"method": "fedavg", "upload_filters": FILTERS}
    former = {"method": "fedavg", "wire": FILTERS}
    now = [run.run for run in runs(config, methods={"sent": entry}, seeds=[0])]
    assert not caplog.records or "is called" not in caplog.text
    assert [run.run for run in runs(config, methods={"sent": former}, seeds=[0])] == now
    assert "methods.sent.wire: is called `upload_filters` now" in caplog.text
    both = {"sent": {**entry, **former}}
    assert "wire: is the former name of `upload_filters`, which is set" in refused(
        config, methods=both
    )


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            {"upload_filters": {"noise": {"multiplier": 1}}},
            "upload_filters.noise: noise needs clipping directly before it",
        ),
        (
            {"upload_filters": {"clip": {"norm": 0}}},
            "upload_filters.clip.norm: is 0.0. Allowed: a number > 0",
        ),
        (
            {"upload_filters": {"alie": {"share": 0.5}}},
            "upload_filters.alie.share: is 0.5. Allowed: a number >= 0",
        ),
        ({"aggregation": "medin"}, "aggregation.medin: unknown aggregation 'medin' (did you mean"),
        ({"aggregation": {"median": None, "krum": None}}, "aggregation: is median and krum. Allow"),
        (
            {"aggregation": {"krum": {"attackers": 9}}},
            "aggregation.krum: needs 21 clients in a rou",
        ),
        (
            {"method": "fedamp", "aggregation": "median"},
            "FedAMP cannot use them, because its server does",
        ),
        (
            {
                "upload_filters": {"adaptive-clip": None, "noise": {"multiplier": 1.5}},
                "weighting": "uniform",
            },
            "upload_filters.noise.multiplier: is 1.5, which the noise on the count",
        ),
        (
            {"aggregation": ["median", {"krum": None}]},
            "Allowed: a mapping (name: its keys, or in Python a class); alternatives are",
        ),
        ({"upload_filters": ["clip", "noise"]}, "alternatives are entries of their own"),
        (
            {"upload_filters": {"clip": {"norm": float("inf")}}},
            "is inf. Allowed: a number > 0 and <= 3.4e+38",
        ),
        (
            {"method": "fednova", "upload_filters": {"clip": {"norm": 1}}},
            "FedNova cannot use them, because its clients send a number, path",
        ),
    ],
)
def test_upload_filters_that_cannot_be_are_refused(config: Path, entry: dict[str, Any], said: str):
    assert said in refused(config, methods={"sent": {"method": "fedavg", **entry}})


BEST = {
    "source": "paper.csv",
    "table": "3",
    "column": "all",
    "rows": {"mk": {"lr": "MK: lr", "mk-mmd.mu": "MK: mu"}},
}


SWEPT = {"lr": [0.1, 0.2], "terms": {"mk-mmd": {"layers": ["2"], "mu": [0.1, 2]}}}


def best(config: Path, swept: Mapping[str, Any] = SWEPT, **changes: Any) -> list[Any]:
    (config / "published").mkdir(exist_ok=True)
    lines = ["table,row,column,value,sd,note", "3,MK: lr,all,0.25,,", "3,MK: mu,all,2,,"]
    (config / "published" / "paper.csv").write_text("\n".join(lines) + "\n")
    methods = {"fedavg": None, "mk": {**TERM, **swept}}
    return runs(config, methods=methods, seeds=[0], best={**BEST, **changes}, grid="published")


@pytest.mark.parametrize("swept", [SWEPT, {"terms": {"mk-mmd": {"layers": ["2"]}}}])
def test_published_hyper_parameters_take_the_place_of_a_grid(
    config: Path, swept: Mapping[str, Any]
):
    """And of defaults, where the entry says nothing."""
    [_, one] = best(config, swept)
    assert one.spec["training"]["lr"] == 0.25
    assert one.spec["terms"][0]["mu"] == 2.0
    assert one.point == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rows": {"ditto": {}}}, "best.rows.ditto: unknown entry 'ditto'"),
        ({"rows": {"mk": {"mu": "MK: mu"}}}, "best.rows.mk.mu: unknown key 'mu'"),
    ],
)
def test_published_hyper_parameters_that_are_not_there_are_refused(
    config: Path, changes: Any, said: str
):
    with pytest.raises(ConfigError) as error:
        best(config, **changes)
    assert said in str(error.value)


def test_weights_of_a_file_are_part_of_a_run_by_their_content(config: Path):
    spec = {"name": "resnet18", "weights": "weights.pth"}
    weights = Path("weights.pth")
    weights.write_bytes(b"one")
    first = run_spec.model_code(spec)
    weights.write_bytes(b"two")
    os.utime(weights, (1, 1))
    assert run_spec.model_code(spec) != first
    weights.write_bytes(b"one")
    os.utime(weights, (2, 2))
    assert run_spec.model_code(spec) == first


CONFIG = Path(__file__).parents[2] / "config"


REHEARSED: dict[str, object] = {}
"""What other studies have tried, as when one plan has them all."""


@pytest.mark.parametrize("name", sorted(p.stem for p in (CONFIG / "studies").rglob("*.yaml")))
def test_every_study_that_comes_along_can_be_planned(name: str):
    """But those that want ImageNet's weights, which say where to put them, are not tried."""
    location = Location(name)
    try:
        found = expand(
            CONFIG, name, config_files.read_draft(CONFIG, name, location), cache=REHEARSED
        )
    except ConfigError as error:
        assert "weights: " in str(error) and "does not exist. Try: download https://" in str(error)
        given = config_files.read_draft(CONFIG, name, location)
        found = expand(CONFIG, name, given, checked=False)
    assert found.runs
    assert bool(published_cells(found, CONFIG)) == bool(found.study.published)


def test_titles_decide_no_identity(config: Path):
    plain = runs(config, models=[{"mlp": {"hidden": [[8], [16]]}}])
    titled = {
        "models": [{"mlp": {"hidden": [[8], [16]], "title": "MLP {hidden[0]}"}}],
        "datasets": [{"synthetic": {"clients": 3, "samples": 30, "title": "Drawn"}}],
        "partitions": [{"natural": {"title": "Own clients"}}],
    }
    found = runs(config, **titled)
    assert [run.run for run in found] == [run.run for run in plain]
    assert [run.model for run in found] == [run.model for run in plain]
    told = plan.make(config).studies["a"]
    assert told.titles == {
        "dataset": {plain[0].dataset: "Drawn"},
        "partition": {"natural": "Own clients"},
        "model": {"mlp(hidden=[8])": "MLP 8", "mlp(hidden=[16])": "MLP 16"},
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"models": [{"mlp": {"hidden": [8], "titel": "MLP"}}]},
        {"datasets": [{"synthetic": {"clients": 3, "titel": "Drawn"}}]},
        {"partitions": [{"natural": {"titel": "Own"}}]},
        {"analyses": [{"confusion": {"titel": "Own"}}]},
    ],
)
def test_a_misspelt_title_is_told(config: Path, wrong: dict[str, Any]):
    assert "titel: unknown key 'titel' (did you mean 'title'?)" in refused(config, **wrong)


def test_a_title_is_text_and_of_one_alone(config: Path):
    both = {"hidden": [[8], [16]]}
    assert "'MLP' for mlp(hidden=[8]) and for mlp(hidden=[16])" in refused(
        config, models=[{"mlp": both | {"title": "MLP"}}]
    )
    said = refused(config, models=[{"mlp": both | {"title": "MLP {width}"}}])
    assert "title" in said and "{{" in said and "in braces any of hidden" in said
    assert "is 3. Allowed: text" in refused(config, datasets=[{"digits": {"title": 3}}])


def test_a_plan_tells_how_entries_train_and_how_large_models_are(config: Path):
    methods = {"fedavg": None, "ft": {"method": "finetune", "start": "fedavg", "lr": [0.1, 0.2]}}
    methods |= {"cos": {"method": "ditto", "terms": {"cosine": {"layers": ["1"], "mu": 2}}}}
    found = runs(config, methods=methods)
    told = plan.make(config).studies["a"]
    # 60 inputs, 8 hidden units, 10 classes, and their biases.
    assert told.models == {"mlp(hidden=[8])": {found[0].dataset: 60 * 8 + 8 + 8 * 10 + 10}}
    assert told.seeds == [0, 1]
    assert told.entries["ft"].start == "fedavg"
    assert told.entries["ft"].training["lr"] == [0.1, 0.2]
    assert told.entries["fedavg"].training["rounds"] == [2]
    assert told.entries["cos"].values["cosine.mu"] == [2]
    starts = {run.run: run.start for run in told.runs}
    fine = [run.run for run in told.runs if run.method == "ft"]
    assert {starts[run] for run in fine} == {r.run for r in told.runs if r.method == "fedavg"}


DRAWS: list[Any] = [{"natural": {"seed": [3, 4]}}]


def test_per_draw_a_run_is_trained_with_the_seed_of_its_partition(config: Path) -> None:
    methods = {"fedavg": None, "ft": {"method": "finetune", "start": "fedavg"}}
    drawn = runs(config, methods=methods, partitions=DRAWS, seeds="per-draw")
    assert [(run.method, run.spec["partition"]["seed"], run.spec["seed"]) for run in drawn] == [
        (label, seed, seed) for seed in (3, 4) for label in ("fedavg", "ft")
    ]
    assert [drawn[1].start, drawn[3].start] == [drawn[0].run, drawn[2].run]
    # The same runs as by a list, so that nothing is trained twice.
    crossed = runs(config, methods=methods, partitions=DRAWS, seeds=[3, 4])
    assert {run.run for run in drawn} < {run.run for run in crossed} and len(crossed) == 8


def test_per_draw_needs_a_partition_with_a_seed(config: Path) -> None:
    splits = [("train", "test")[i % 2] for i in range(90)]
    table = pd.DataFrame({"sample": range(90), "client": [i // 30 for i in range(90)]})
    table.assign(split=splits).to_parquet("clients.parquet", index=False)
    said = refused(config, partitions=[{"file": {"path": "clients.parquet"}}], seeds="per-draw")
    assert re.search(r"seeds: .*per-draw.*partition file.*Try: .*\bseed\b", said)
