"""Selecting runs of a study by ``--only``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from planning import Planned

from fl.base.errors import ConfigError
from fl.cli import main, run_command
from fl.plan import plan, plan_files
from fl.workflow import markers, selection


def test_a_selection_has_the_runs_from_which_its_own_start(planned: Callable[..., Planned]) -> None:
    study = planned(
        methods={
            "local": None,
            "fedavg": None,
            "tuned": {"method": "finetune", "start": "fedavg"},
        }
    )
    whole = plan.make(study.root / "config")
    [name] = whole.studies
    part = selection.select(whole, selection.parse(["method=tuned"]))
    assert {run.method for run in part.studies[name].runs} == {"tuned"}
    methods = {run.bundle: run.method for run in whole.studies[name].runs}
    assert {methods[bundle] for bundle in part.bundles} == {"tuned", "fedavg"}


def test_seeds_and_draws_are_selected_within_bundles(planned: Callable[..., Planned]) -> None:
    root = planned(
        partitions=[{"dirichlet": {"clients": 4, "alpha": 0.5, "min_samples": 5, "seed": [3, 4]}}],
        methods={"fedavg": None, "tuned": {"method": "finetune", "start": "fedavg"}},
        seeds=[0, 10],
    ).root
    index = plan.read_index(root / "config")
    study = plan.read(root / "config").studies["tiny"]
    partition_seeds = {run.run: run.spec["partition"]["seed"] for run in study.runs}
    selected = markers.selected_runs(index, ["seed=10", "draw=3"])
    chosen = [run for run in study.runs if run.run in selected]
    assert {(run.seed, partition_seeds[run.run]) for run in chosen} == {(10, 3)}
    assert [run.method for run in chosen] == ["fedavg", "tuned"]
    jobs, _ = markers.write_jobs(index, True, selected)
    whole, _ = markers.write_jobs(index, True)
    parts = [markers.read_job(root / "results", name) for name in jobs.values()]
    assert all(job.is_part for job in parts)
    assert sorted(run for job in parts for run in job.runs) == sorted(selected)
    assert not {*jobs.values()} & {*whole.values()}


def test_a_job_of_some_seeds_trains_no_others(planned: Callable[..., Planned]) -> None:
    study = planned(seeds=[0, 1])
    part = study.root / "part.json"
    plan_files.write(part, {"runs": study.runs("fedavg")[1:]})
    assert main.main([*study.arguments("fedavg"), "--job", str(part)]) == 0
    assert study.store().runs() == study.runs("fedavg")[1:]
    assert study.train("fedavg") == 0
    assert {*study.store().runs()} == {*study.runs("fedavg")}


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ("method=fedprocs", "--only.method: unknown method of the study 'fedprocs'"),
        ("metod=fedavg", "--only: unknown key 'metod' (did you mean 'method'?)"),
        ("model=", "--only.model: has no name"),
        ("seed=7", "--only.seed: no run of tiny has seed 7. Allowed: 0"),
        ("draw=3", "--only.draw: no run of tiny has draw 3. Allowed: 0"),
    ],
)
def test_what_selects_nothing_is_refused(
    only: str, message: str, planned: Callable[..., Planned]
) -> None:
    whole = plan.make(planned().root / "config")
    with pytest.raises(ConfigError) as error:
        selection.select(whole, selection.parse([only]))
    assert message in str(error.value)


def test_lines_of_snakemake_go_to_a_log_whose_end_is_shown_after_a_failure(
    planned: Callable[..., Planned],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    root = planned(methods={"local": None}).root
    monkeypatch.chdir(root)
    (root / "Snakefile").write_text(
        "print('a line')\nfrom fl.workflow import monitor\nmonitor.print_line('of fedloom')\n"
        "raise ValueError('no luck')\n"
    )
    log = root / "results" / "logs" / "snakemake.log"
    assert main.main(["run", "tiny"]) != 0
    said = capfd.readouterr().err
    assert said.index("of fedloom") < said.index("no luck") < said.rindex(str(log))
    assert {"a line", "of fedloom"} <= {*log.read_text().splitlines()}
    log.unlink()
    assert main.main(["run", "tiny", "--", "--cores", "1"]) != 0
    assert "no luck" in capfd.readouterr().err and not log.exists()


def test_arguments_of_snakemake_keep_their_own_config() -> None:
    words, snakemake = main.split(["run", "a", "--", "--config", "cluster=true", "-n"])
    assert words == ["run", "a"]
    made = run_command.snakemake_words(["a"], ["method=b"], Path("config"), snakemake)
    assert made[:1] == ["selected"]
    assert made[1:] == ["--config", "studies=a", "only=method=b", "cluster=true", "-n"]
    made = run_command.snakemake_words(["a", "seeds=[0, 1]"], [], Path("config"), [])
    assert made == ["--config", 'studies=["a", "seeds=[0, 1]"]']
