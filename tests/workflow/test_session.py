"""The start of Snakemake, with its plan: jobs, environment, cores, and the end."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from make_results import write_run
from planning import write_config

from fl.base.errors import FedloomError
from fl.plan.config import Execution
from fl.plan.plan_files import PlanIndex
from fl.workflow import markers, session, submission
from fl.workflow.session import Session

METHODS = {"fedavg": None, "local": None}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config of one study with two methods; variables and signals are set back afterwards."""
    monkeypatch.setattr(os, "environ", {**os.environ})
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    return write_config(tmp_path, {"methods": METHODS})


def begin(config: Path, logger: Any = logging, code: str = "", **said: Any) -> Session:
    """Begin a process of Snakemake.

    Args:
        config: The config folder.
        logger: Snakemake's logger.
        code: Folder of the code.
        said: Values of ``--config``, and those of Snakemake's settings that `known` has.
    """
    known = {"nodes": None, "cores": 2, "executor": "local", "methods": (), "main": True}
    known |= {key: said.pop(key) for key in known.keys() & said.keys()}
    workflow = SimpleNamespace(
        is_main_process=known["main"],
        modifier=SimpleNamespace(is_main_snakefile=lambda: True),
        resource_settings=SimpleNamespace(nodes=known["nodes"], cores=known["cores"]),
        storage_settings=SimpleNamespace(assume_common_workdir=True),
        deployment_settings=SimpleNamespace(
            deployment_method=[SimpleNamespace(name=name) for name in known["methods"]]
        ),
        executor_plugin=SimpleNamespace(name=known["executor"]),
        global_resources={},
    )
    return session.begin(workflow, {"config": str(config), **said}, code, logger)


def test_each_missing_run_is_in_a_job_of_this_machine(config: Path) -> None:
    found = begin(config)
    assert found.job_by_bundle.keys() == found.plan.bundles.keys()
    assert "_cores" not in found.workflow.global_resources
    [path] = found.markers(found.plan.bundles)
    [job] = {*found.job_by_bundle.values()}
    assert path == str(markers.marker(found.results, job))
    for name, bundle in found.plan.bundles.items():
        for run in bundle.runs:
            write_run(Path(found.plan.settings.store), run, [])
        assert (name in begin(config).job_by_bundle) is False
    assert begin(config).markers(found.plan.bundles) == []


def test_a_scheduler_gets_its_own_cores_and_a_copy_of_the_code(config: Path) -> None:
    found = begin(config, nodes=100)
    assert found.is_for_cluster
    assert found.workflow.global_resources["_cores"] == sys.maxsize
    copy = Path(os.environ["FEDLOOM_CODE"])
    assert (copy / "fl" / "workflow" / "session.py").exists()
    assert found.results in copy.parents


@pytest.mark.parametrize(
    ("said", "is_for_cluster", "jobs"),
    [
        ({}, False, 1),
        ({"nodes": 9}, True, 2),
        ({"nodes": 9, "cluster": "false"}, False, 2),
        ({"cluster": True}, True, 2),
        ({"cores": None}, False, 2),
    ],
)
def test_bundles_are_merged_by_where_their_jobs_run(
    config: Path, said: dict[str, Any], is_for_cluster: bool, jobs: int
) -> None:
    """On a cluster, work of unknown time is a job alone."""
    found = begin(config, **said)
    assert found.is_for_cluster == is_for_cluster
    assert len({*found.job_by_bundle.values()}) == jobs


def test_the_process_of_a_job_reads_its_plan_and_no_config(config: Path) -> None:
    planned = begin(config)
    assert float(os.environ[submission.START_VARIABLE]) > 0
    (config / "config.yaml").write_text("studies: [")
    found = begin(config, main=False)
    assert found.plan == planned.plan
    assert isinstance(found.plan, PlanIndex)
    assert (found.job_by_bundle, found.outdated, found.selected) == ({}, set(), None)
    with pytest.raises(FedloomError):
        begin(config)


def test_only_selects_what_is_trained(config: Path) -> None:
    [name] = begin(config, only="method=local").job_by_bundle
    assert begin(config).plan.bundles.keys() > {name}
    assert begin(config, only="method=local").selected == {*begin(config).plan.bundles[name].runs}
    with pytest.raises(FedloomError, match="locl"):
        begin(config, only="method=locl")


@pytest.mark.parametrize("names", ["tiny", ["tiny"], "tiny,tiny", "", None])
def test_studies_are_named_by_a_text_or_a_list(config: Path, names: Any) -> None:
    assert [*begin(config, studies=names).plan.studies] == ["tiny"]


def test_the_command_runs_the_code_of_the_workflow(config: Path) -> None:
    assert begin(config).command == [sys.executable, "-P", "-m", "fl"]
    os.environ["PYTHONPATH"] = "/other"
    words = begin(config, code="/code", methods=("CONDA",)).command
    assert words == ["env", "PYTHONPATH=/code:/other", "python", "-P", "-m", "fl"]


def test_inputs_matter_where_an_output_is_missing_or_outdated(config: Path) -> None:
    found, output = begin(config), config / "output"
    assert found.inputs_if_missing([str(output)], ["input"]) == ["input"]
    output.touch()
    assert found.inputs_if_missing([str(output)], ["input"]) == []
    found.outdated.add(output)
    outdated = str(markers.outdated_input(found.results))
    assert found.inputs_if_missing([str(output)], ["input"]) == ["input", outdated]


def test_a_limit_of_slurm_is_told_once(
    config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session.slurm, "time_limits", lambda: {"": 60.0, "long": 600.0})
    found = begin(config, executor="slurm", logger=logging.getLogger("snakemake"))
    executions = [Execution(minutes=240), Execution(minutes=240, slurm_partition="long")]
    assert [found.minutes(e) for e in (*executions, *executions)] == [60, 240, 60, 240]
    [told] = caplog.messages
    assert "60" in told and "240" in told
    assert begin(config).minutes(executions[0]) == 240, "no job of this machine has a limit"


def test_a_limit_in_which_jobs_mostly_wait_is_told(
    config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session.slurm, "time_limits", lambda: {})
    found = begin(config, executor="slurm", logger=logging.getLogger("snakemake"))
    assert [found.minutes(Execution(minutes=n)) for n in (3, 3, 10)] == [3, 3, 10]
    [told] = caplog.messages
    assert "minutes: is 3" in told
    assert begin(config).minutes(Execution(minutes=3)) == 3
    assert len(caplog.messages) == 1, "on this machine nothing waits"


def test_a_failed_workflow_reports_what_there_is_and_an_interrupted_one_does_not(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    ends: list[Any] = []
    monkeypatch.setattr(session.subprocess, "run", lambda words, **_: started.append(words))
    monkeypatch.setattr(session, "print_failures_at_exit", lambda *_, **keys: ends.append(keys))
    begin(config).fail()
    [words] = started
    assert words[-5:] == ["report", "tiny", "--planned", "--config", str(config)]
    selected = begin(config, only="method=local")
    selected.fail()
    assert len(started) == 1
    interrupted = begin(config)
    interrupted.interrupt.was_interrupted = True
    interrupted.fail()
    assert ends == [{"selected": None}, {"selected": selected.selected}]
