"""One start of Snakemake: its plan and jobs, its signals, and what it says at its end.

The Snakefile calls `begin` when it is parsed, and `Session.start`, `succeed` and `fail` as the work
goes on. Its rules look up what they need in the `Session`.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fl.base import arithmetic, identity
from fl.base.errors import Location
from fl.base.files import sharing_problem
from fl.base.folders import checked_folder
from fl.plan import plan, plan_files
from fl.plan.config import Execution
from fl.plan.plan_files import PlanIndex
from fl.runner import environment, slurm
from fl.workflow import markers, sbatch, submission
from fl.workflow.jobs import Machine
from fl.workflow.monitor import (
    InterruptHandler,
    ProgressMonitor,
    print_failures_at_exit,
    print_line,
)

SHORT_MINUTES = 10
"""Limit of a job in minutes below which it waits for a large part of its time."""


@dataclass
class Session:
    """The plan of a process of Snakemake, and the settings of this process.

    Attributes:
        workflow: Snakemake's workflow.
        logger: Snakemake's logger.
        interrupt: The handler of Ctrl-C.
        config: Folder of the config.
        command: The command ``fedloom`` as a list, for jobs in any folder.
        is_for_cluster: Whether a scheduler gets the jobs.
        plan_variable: Environment variable with the path of the plan, by which jobs find it, so
            that they never read an edited config.
        plan: The plan.
        job_by_bundle: Job of each bundle with missing runs.
        outdated: Tables and reports that must be made again.
        selected: Runs that ``only`` selects; None: all.
    """

    workflow: Any
    logger: logging.Logger
    interrupt: InterruptHandler
    config: str
    command: list[str]
    is_for_cluster: bool
    plan_variable: str
    plan: PlanIndex
    job_by_bundle: dict[str, str] = field(default_factory=dict)
    outdated: set[Path] = field(default_factory=set)
    selected: Collection[str] | None = None
    _told_limits: set[tuple[str | None, int, int]] = field(default_factory=set)
    _told_short: set[tuple[str | None, int, int]] = field(default_factory=set)

    @property
    def results(self) -> Path:
        """Folder of the results."""
        return Path(self.plan.settings.results)

    @property
    def _has_slurm(self) -> bool:
        """Whether this process submits jobs to Slurm."""
        executor = self.workflow.executor_plugin if self.workflow.is_main_process else None
        return executor is not None and executor.name == "slurm"

    @cached_property
    def _progress(self) -> ProgressMonitor:
        stop = self.interrupt.stop_workflow
        settings = self.plan.settings
        return ProgressMonitor(settings, stop_workflow=stop, selected=self.selected)

    @cached_property
    def _time_limits(self) -> dict[str, float]:
        """Time limits of Slurm's partitions, if this process submits jobs to Slurm."""
        return slurm.time_limits() if self._has_slurm else {}

    def markers(self, bundles: Iterable[str]) -> list[str]:
        """Return the marker files of the jobs that train missing runs of bundles."""
        names = {self.job_by_bundle[name] for name in bundles if name in self.job_by_bundle}
        return sorted(str(markers.marker(self.results, name)) for name in names)

    def inputs_if_missing(self, outputs: Sequence[str], inputs: Sequence[str]) -> list[str]:
        """Return the inputs of a job; none if all its outputs exist and are current.

        Every name contains a hash of what its content depends on, and `fl.workflow.markers` finds
        outdated files, which get a newer input. So other outputs are correct, and neither times nor
        absence of inputs matter.
        """
        if self.outdated.intersection(map(Path, outputs)):
            return [*inputs, str(markers.outdated_input(self.results))]
        return [] if all(Path(path).exists() for path in outputs) else [*inputs]

    def minutes(self, execution: Execution) -> int:
        """Return the minutes that a job asks for; warns once if its partition allows no more.

        It also warns of a limit that leaves little time to train.
        """
        allowed = slurm.job_minutes(execution, self._time_limits)
        partition, minutes = execution.slurm_partition, execution.minutes
        limit = (partition, minutes, allowed)
        if allowed < minutes and limit not in self._told_limits:
            self._told_limits.add(limit)
            place = f"partition {partition}" if partition else "the default partition"
            self.logger.warning(
                f"Jobs ask for {allowed} minutes instead of {minutes}, as {place} allows no more. "
                "A job at its limit goes on from its checkpoint in another job."
            )
        if self._has_slurm and allowed < SHORT_MINUTES and limit not in self._told_short:
            self._told_short.add(limit)
            self.logger.warning(
                f"minutes: is {allowed}. A job is asked to leave two minutes before its limit, and "
                "Slurm lets it wait for two minutes before it goes on. Try: longer `minutes`, and "
                "a shorter `--signal=TERM@120` in the profile if rounds are short."
            )
        return allowed

    def plan_jobs(self, only: str) -> None:
        """Write the jobs of the plan, and tell the processes of jobs where the plan is.

        Args:
            only: Runs that may be trained, see `begin`; empty: all.

        Raises:
            FedloomError: If ``only`` selects nothing, or a file cannot be written.
        """
        if only:
            self.selected = markers.selected_runs(self.plan, only.split(";"))
        merge = _merge_policy(self.workflow, self.is_for_cluster)
        self.job_by_bundle, self.outdated = markers.write_jobs(self.plan, merge, self.selected)
        if self.job_by_bundle and self.is_for_cluster:
            os.environ["FEDLOOM_CODE"] = str(environment.copy_code(self.results))
        os.environ.update(arithmetic.HASH_SEED)
        os.environ[submission.START_VARIABLE] = str(time.time())
        os.environ[self.plan_variable] = str(plan_files.index_file(self.results))

    def start(self) -> None:
        """Check the store and Slurm, and begin to print progress, before the first job.

        Raises:
            FedloomError: If Slurm does not answer.
        """
        slurm.check(self.workflow.executor_plugin.name, self.workflow.executor_settings)
        if problem := sharing_problem(Path(self.plan.settings.store)):
            self.logger.warning(problem)
        if self._has_slurm:
            sbatch.name_jobs(self.workflow.scheduler._executor, self.plan.studies)
            self.interrupt.shim = sbatch.install(self.results)
        print_line("Training starts.")
        self._progress.start()

    def succeed(self) -> None:
        """Print the last line of progress."""
        self._progress.stop()

    def fail(self) -> None:
        """Make the reports of all finished runs, and list the unfinished ones at the end."""
        if self.interrupt.was_interrupted:
            return
        self._progress.stop()
        if self.selected is None:
            for study in self.plan.studies:
                words = [*self.command, "report", study, "--planned", "--config", self.config]
                subprocess.run(words, stdout=subprocess.DEVNULL)
        print_failures_at_exit(self.plan.settings, selected=self.selected)


def begin(workflow: Any, config: Mapping[str, Any], code: str, logger: logging.Logger) -> Session:
    """Make the plan and its jobs; in a process of a job, read the plan to which this belongs.

    Args:
        workflow: Snakemake's workflow.
        config: Values of ``--config``, or of another workflow's config: ``config`` is the config
            folder, ``studies`` a list or ``a,b``, ``only`` as in `fedloom run --only`, with ``;``
            between several, and ``cluster`` says whether a scheduler gets the jobs.
        code: Folder of the package's code; empty if it is installed.
        logger: Snakemake's logger.

    Raises:
        FedloomError: For what is wrong with the config.
    """
    interrupt = InterruptHandler(logger)
    if workflow.is_main_process and workflow.modifier.is_main_snakefile():
        interrupt.install()
    if workflow.resource_settings.nodes is not None:
        # Jobs get the cores of a scheduler's nodes; Snakemake would cut `threads` to those here.
        workflow.global_resources["_cores"] = sys.maxsize
    folder = checked_folder(str(config.get("config", "config")), Location("--config", "config"))
    is_for_cluster = _is_for_cluster(workflow, config)
    # One variable for each config folder, as another workflow can use this one twice.
    variable = f"FEDLOOM_PLAN_{identity.digest(folder)}"
    if workflow.is_main_process:
        index = plan.read_index(Path(folder), _studies(config.get("studies")))
    else:
        index = plan_files.read(PlanIndex, Path(os.environ[variable]))
    session = Session(
        workflow=workflow,
        logger=logger,
        interrupt=interrupt,
        config=folder,
        command=_command(workflow, code),
        is_for_cluster=is_for_cluster,
        plan_variable=variable,
        plan=index,
    )
    if workflow.is_main_process:
        session.plan_jobs(str(config.get("only") or ""))
    return session


def _studies(names: Any) -> list[str]:
    """Return the names of studies, and overrides: of a list, or of a text with commas."""
    listed = names if isinstance(names, list) else [str(names or "")]
    return [str(name) for name in listed if name]


def _command(workflow: Any, code: str) -> list[str]:
    """Return the command ``fedloom``, whose Python is Snakemake's own, or the environment's.

    An environment is made for rules if Snakemake is asked for that.
    """
    methods = {method.name for method in workflow.deployment_settings.deployment_method}
    words = ["python" if "CONDA" in methods else sys.executable, "-P", "-m", "fl"]
    if not code:
        return words
    path = [code, *filter(None, [os.environ.get("PYTHONPATH")])]
    return ["env", f"PYTHONPATH={os.pathsep.join(path)}", *words]


def _is_for_cluster(workflow: Any, config: Mapping[str, Any]) -> bool:
    """Whether a scheduler gets the jobs, as ``--config cluster=true`` or ``cluster=false`` says.

    By default it does if Snakemake's executor starts jobs elsewhere, on machines that see this
    folder. This does not rest on the ``config`` of a profile, which any ``--config`` of a command
    line replaces.
    """
    if "cluster" in config:
        return str(config["cluster"]).lower() in ("true", "yes", "1")
    is_remote = workflow.resource_settings.nodes is not None
    return bool(is_remote and workflow.storage_settings.assume_common_workdir)


def _merge_policy(workflow: Any, is_for_cluster: bool) -> bool | Machine:
    """Return how bundles are merged into jobs, see `fl.workflow.jobs.form_jobs`.

    A cluster wants few jobs. On one machine there are enough jobs to use its cores and GPUs. Other
    executors get a job for each bundle.
    """
    if is_for_cluster:
        return True
    limits = workflow.resource_settings
    if limits.nodes is not None or not limits.cores:
        return False
    gpus = workflow.global_resources.get("gpu")
    return Machine(limits.cores, gpus.value if gpus else limits.cores)
