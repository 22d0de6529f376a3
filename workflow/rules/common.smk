from functools import cache

from snakemake_interface_executor_plugins.settings import DeploymentMethod


def config_folder():
    """Return the config folder: `--config config=FOLDER`, or `config`."""
    try:
        return folders.checked_folder(
            str(config.get("config", "config")), Location("--config", "config")
        )
    except FedloomError as error:
        sys.exit(f"error: {error}")


def fedloom_command():
    """Return the command `fedloom` as a list, for jobs in any folder.

    Its Python is Snakemake's own, or that of the rule's environment if Snakemake makes environments.
    """
    has_environments = (
        DeploymentMethod.CONDA in workflow.deployment_settings.deployment_method
    )
    words = ["python" if has_environments else sys.executable, "-P", "-m", "fl"]
    if not CODE:
        return words
    path = [CODE, *filter(None, [os.environ.get("PYTHONPATH")])]
    return ["env", f"PYTHONPATH={os.pathsep.join(path)}", *words]


def split_names(studies):
    """Return the studies of `--config studies=a,b`, or of a list in another workflow's config."""
    names = studies if isinstance(studies, list) else str(studies or "").split(",")
    return [str(name) for name in names if name]


INTERRUPT = monitor.InterruptHandler(logger)
if workflow.is_main_process and workflow.modifier.is_main_snakefile():
    INTERRUPT.install()

CONFIG = config_folder()
STUDIES = split_names(config.get("studies", ""))
ONLY = str(config.get("only") or "")
FL = fedloom_command()
# One variable for each config folder, as another workflow can use this one twice.
PLAN_VARIABLE = f"FEDLOOM_PLAN_{identity.digest(CONFIG)}"


if workflow.resource_settings.nodes is not None:
    # Jobs of a scheduler get the cores of its nodes: Snakemake would cut `threads` to the cores here.
    workflow.global_resources["_cores"] = sys.maxsize


def is_for_cluster():
    """Whether a scheduler gets the jobs, as `--config cluster=true` or `cluster=false` says.

    By default it does if Snakemake's executor starts jobs elsewhere, on machines that see this folder.
    This does not rest on the `config` of a profile, which any `--config` of a command line replaces.
    """
    if "cluster" in config:
        return str(config["cluster"]).lower() in ("true", "yes", "1")
    is_remote = workflow.resource_settings.nodes is not None
    return is_remote and workflow.storage_settings.assume_common_workdir


# What a scheduler is asked for is in the message of a job, so that a dry run shows it.
CLUSTER_REQUEST = (
    ", memory={resources.mem_mb} MiB, time={resources.runtime} min"
    if is_for_cluster()
    else ""
)


def merge_policy():
    """Return how bundles are merged into jobs.

    A cluster wants few jobs. On one machine there are enough jobs to use its cores and GPUs. Other
    executors get a job for each bundle.
    """
    if is_for_cluster():
        return True
    limits = workflow.resource_settings
    if limits.nodes is not None or not limits.cores:
        return False
    gpus = workflow.global_resources.get("gpu")
    return jobs.Machine(limits.cores, gpus.value if gpus else limits.cores)


def read_plan():
    """Return the plan, the job of each bundle with missing runs, outdated files, and selected bundles.

    Only the main process makes a new plan; jobs read the plan to which they belong.
    """
    if not workflow.is_main_process:
        path = Path(os.environ[PLAN_VARIABLE])
        return plan_files.read(plan_files.PlanSummary, path), {}, set(), None
    try:
        current = plan.current_summary(Path(CONFIG), STUDIES)
        selected = markers.selected_bundles(current, ONLY.split(";")) if ONLY else None
        job_by_bundle, outdated = markers.write_jobs(
            current, merge=merge_policy(), selected=selected
        )
        if job_by_bundle and merge_policy() is True:
            code = environment.copy_code(Path(current.settings.results))
            os.environ.update(FEDLOOM_CODE=str(code))
    except FedloomError as error:
        sys.exit(f"error: {error}")
    os.environ[submission.START_VARIABLE] = str(time.time())
    os.environ[PLAN_VARIABLE] = f"{current.settings.results}/plan/plan.json"
    return current, job_by_bundle, outdated, selected


PLAN, JOB_BY_BUNDLE, OUTDATED, SELECTED = read_plan()
RESULTS = PLAN.settings.results
DATA = PLAN.settings.data
if workflow.is_main_process:
    PROGRESS = monitor.ProgressMonitor(
        PLAN.settings, stop_workflow=INTERRUPT.stop_workflow, selected=SELECTED
    )


# Jobs find their plan by this variable, so that they never read an edited config.
envvars:
    PLAN_VARIABLE,
    submission.START_VARIABLE,


# GPUs are counted on this machine only; a cluster's scheduler counts its own.
resource_scopes:
    gpu="local",


wildcard_constraints:
    job="[a-z0-9-]+",
    study=r"((?!\.runs)[\w.-])+",
    partition=r"[\w-]+-[0-9a-f]{16}",
    dataset=r"[\w-]+-[0-9a-f]{16}",
    analysis=r"[\w-]+-[0-9a-f]{16}",
    raw=r"[\w-]+",


DATASETS = sorted({bundle.dataset for bundle in PLAN.bundles.values()})


def raw(dataset):
    """Return the folder of the raw files of a planned data set."""
    return raw_folder_name(plan_files.read_dataset(RESULTS, dataset))


def inputs_if_missing(outputs, inputs):
    """Return the inputs of a job; none if all its outputs exist and are current.

    Every name contains a hash of what its content depends on, and `markers.write_jobs` finds
    outdated files, which get a newer input. So other outputs are correct, and neither times nor
    absence of inputs matter.
    """
    if OUTDATED.intersection(map(Path, outputs)):
        return [*inputs, str(markers.outdated_input(Path(RESULTS)))]
    return [] if all(Path(path).exists() for path in outputs) else inputs


def job(wildcards):
    """Return the bundles, data and resources of a training job."""
    return markers.read_job(Path(RESULTS), wildcards.job)


@cache
def time_limits():
    """Return the time limits of Slurm's partitions, if this process submits jobs to Slurm."""
    plugin = workflow.executor_plugin if workflow.is_main_process else None
    return slurm.time_limits() if plugin and plugin.name == "slurm" else {}


@cache
def warn_of_limit(partition, wanted, allowed):
    """Say once that jobs in a partition ask for less time than the config says."""
    place = f"partition {partition}" if partition else "the default partition"
    logger.warning(
        f"Jobs ask for {allowed} minutes instead of {wanted}, as {place} allows no more. "
        "A job at its limit goes on from its checkpoint in another job."
    )


def minutes(execution):
    """Return the minutes that a job asks for."""
    allowed = slurm.job_minutes(execution, time_limits())
    if allowed < execution.minutes:
        warn_of_limit(execution.slurm_partition, execution.minutes, allowed)
    return allowed


def slurm_resources(execution):
    """Return Slurm options under the names of Snakemake's plugin; null for keys without a value."""
    names = {
        "slurm_partition": "slurm_partition",
        "account": "slurm_account",
        "gpu_type": "gpu_model",
        "qos": "qos",
        "constraint": "constraint",
    }

    def resource(key):
        return lambda wildcards: getattr(execution(wildcards), key)

    return {name: resource(key) for key, name in names.items()}


def marker(name):
    """Return the marker file of a finished job."""
    return str(markers.marker(Path(RESULTS), name))


def train_inputs(wildcards):
    """Return the inputs of a job: data, partitions, and jobs of runs from which its runs start."""
    spec = job(wildcards)
    return inputs_if_missing(
        [marker(wildcards.job)],
        [
            *(f"{DATA}/prepared/{name}/dataset.json" for name in spec.datasets),
            *(
                f"{RESULTS}/partitions/{name}/partition.json"
                for name in spec.partitions
            ),
            *map(marker, spec.after),
        ],
    )


def analysis(name):
    """Return the file of a finished analysis."""
    return str(analyses.folder_of(Path(RESULTS), name) / analyses.RECORD)


def analysis_execution(wildcards):
    """Return the resources of an analysis: its study's, without a GPU if it runs no model."""
    return plan_files.read_analysis(RESULTS, wildcards.analysis).execution


def analysis_inputs(wildcards):
    """Return the inputs of an analysis: jobs of its runs, and their data and partitions."""
    names = PLAN.analyses[wildcards.analysis].bundles
    bundles = [PLAN.bundles[name] for name in names]
    return inputs_if_missing(
        [analysis(wildcards.analysis)],
        [
            *sorted(
                {marker(JOB_BY_BUNDLE[name]) for name in names if name in JOB_BY_BUNDLE}
            ),
            *sorted(
                {f"{DATA}/prepared/{bundle.dataset}/dataset.json" for bundle in bundles}
            ),
            *sorted(
                {
                    f"{RESULTS}/partitions/{bundle.partition}/partition.json"
                    for bundle in bundles
                }
            ),
        ],
    )


def table(wildcards):
    """Return the long table of a study."""
    return f"{RESULTS}/tables/{wildcards.study}.parquet"


def study(wildcards):
    """Return a study of the plan."""
    try:
        return PLAN.studies[wildcards.study]
    except KeyError:
        raise WorkflowError(
            f"error: {CONFIG}/config.yaml: studies: does not contain {wildcards.study!r}. "
            f"Allowed: {', '.join(PLAN.studies)}. "
            f"Try: snakemake --config studies={wildcards.study}"
        ) from None


def report_output(path, caption, label):
    """Return an output that `snakemake --report` shows in the group of its study.

    The former one stays until the new one replaces it.
    """
    return report(
        update(path),
        caption=f"../report/{caption}.rst",
        category="{study}",
        labels={"what": label},
    )
