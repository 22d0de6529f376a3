try:
    SESSION = session.begin(workflow, config, CODE, logger)
except FedloomError as error:
    sys.exit(f"error: {error}")

PLAN = SESSION.plan
RESULTS = PLAN.settings.results
DATA = PLAN.settings.data
CONFIG = SESSION.config
FL = SESSION.command
DATASETS = sorted({bundle.dataset for bundle in PLAN.bundles.values()})


envvars:
    SESSION.plan_variable,
    submission.START_VARIABLE,


# GPUs are counted on this machine only; a cluster's scheduler counts its own.
resource_scopes:
    gpu="local",


wildcard_constraints:
    job="[a-z0-9-]+",
    study=r"((?!\.runs\.)[\w.,=+\[\]-])+",
    partition=r"[\w-]+-[0-9a-f]{16}",
    dataset=r"[\w-]+-[0-9a-f]{16}",
    analysis=r"[\w-]+-[0-9a-f]{16}",
    raw=r"[\w-]+",


def raw(dataset):
    """Return the folder of the raw files of a planned data set."""
    return raw_folder_name(plan_files.read_dataset(RESULTS, dataset))


def prepared(dataset):
    """Return the file of a prepared data set."""
    return f"{DATA}/prepared/{dataset}/dataset.json"


def partition(name):
    """Return the file of a partition."""
    return f"{RESULTS}/partitions/{name}/partition.json"


def marker(job):
    """Return the marker file of a finished job."""
    return str(markers.marker(SESSION.results, job))


def analysis(name):
    """Return the file of a finished analysis."""
    return str(analyses.folder_of(SESSION.results, name) / analyses.RECORD)


def table(study):
    """Return the long table of a study."""
    return f"{RESULTS}/tables/{study}.parquet"


def job(wildcards):
    """Return the bundles, data and resources of a training job."""
    return markers.read_job(SESSION.results, wildcards.job)


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


def analysis_execution(wildcards):
    """Return the resources of an analysis: its study's, without a GPU if it runs no model."""
    return plan_files.read_analysis(RESULTS, wildcards.analysis)[1].execution


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


def prepare_inputs(wildcards):
    """Return the inputs of a prepared data set: its raw files."""
    sources = f"{DATA}/raw/{raw(wildcards.dataset)}/sources.json"
    return SESSION.inputs_if_missing([prepared(wildcards.dataset)], [sources])


def partition_inputs(wildcards):
    """Return the inputs of a partition: its data set."""
    dataset = plan_files.read_partition(RESULTS, wildcards.partition).dataset
    return SESSION.inputs_if_missing(
        [partition(wildcards.partition)], [prepared(dataset)]
    )


def train_inputs(wildcards):
    """Return the inputs of a job: data, partitions, and jobs of runs from which its runs start."""
    spec = job(wildcards)
    inputs = map(prepared, spec.datasets), map(partition, spec.partitions)
    return SESSION.inputs_if_missing(
        [marker(wildcards.job)], [*chain(*inputs, map(marker, spec.after))]
    )


def analysis_inputs(wildcards):
    """Return the inputs of an analysis: jobs of its runs, and their data and partitions."""
    names = PLAN.analyses[wildcards.analysis]
    bundles = [PLAN.bundles[name] for name in names]
    datasets = sorted({bundle.dataset for bundle in bundles})
    partitions = sorted({bundle.partition for bundle in bundles})
    inputs = map(prepared, datasets), map(partition, partitions)
    return SESSION.inputs_if_missing(
        [analysis(wildcards.analysis)], [*SESSION.markers(names), *chain(*inputs)]
    )


def table_inputs(wildcards):
    """Return the inputs of a study's tables: the jobs of its missing runs."""
    jobs_of_runs = SESSION.markers(study(wildcards).bundles)
    return SESSION.inputs_if_missing([table(wildcards.study)], jobs_of_runs)


def report_inputs(wildcards):
    """Return the inputs of a report: the study's table, partitions and analyses."""
    planned = study(wildcards)
    inputs = map(partition, planned.partitions), map(analysis, planned.analyses)
    return SESSION.inputs_if_missing(
        [f"{RESULTS}/report/{wildcards.study}.html"],
        [table(wildcards.study), *chain(*inputs)],
    )


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
