from snakemake_interface_executor_plugins.settings import DeploymentMethod


def settled():
    """The config folder, as Snakemake's own config says it or `config`."""
    try:
        return folders.checked_folder(
            str(config.get("config", "config")), Location("--config", "config")
        )
    except FedloomError as error:
        sys.exit(f"error: {error}")


def program():
    """The words of `python -m fl`, for a job in whatever folder: Snakemake's own Python, or that
    of the rule's environment where Snakemake was asked to make environments.
    """
    apart = DeploymentMethod.CONDA in workflow.deployment_settings.deployment_method
    words = ["python" if apart else sys.executable, "-P", "-m", "fl"]
    if not CODE:
        return words
    found = [CODE, *filter(None, [os.environ.get("PYTHONPATH")])]
    return ["env", f"PYTHONPATH={os.pathsep.join(found)}", *words]


def named(studies):
    """The studies of `--config studies=a,b`; a list where another workflow has read our config."""
    found = studies if isinstance(studies, list) else str(studies or "").split(",")
    return [str(name) for name in found if name]


STOP = monitor.Stop(logger)
if workflow.is_main_process and workflow.modifier.is_main_snakefile():
    STOP.listen()

CONFIG = settled()
STUDIES = named(config.get("studies", ""))
FL = program()
# By config folder, as another workflow may use this one twice.
PLANNED = f"FEDLOOM_PLAN_{identity.digest(CONFIG)}"


def merging():
    """How bundles are merged into jobs: a cluster's profile asks for few of them, a machine of its
    own for so many that its cores and cards are busy. Another executor gets a job for each.
    """
    if config.get("cluster"):
        return True
    asked = workflow.resource_settings
    if asked.nodes is not None or not asked.cores:
        return False
    cards = workflow.global_resources.get("gpu")
    return jobs.Machine(asked.cores, cards.value if cards else asked.cores)


def read_plan():
    """The plan, and by bundle that lacks runs the job that trains it. Only the main process makes a
    plan anew, jobs read the one that they belong to.
    """
    if not workflow.is_main_process:
        return plan_files.read_checked(Path(os.environ[PLANNED])), {}
    try:
        found = plan.current_summary(Path(CONFIG), STUDIES)
        home = markers.settle(found, merge=merging())
        if home and merging() is True:
            code = snapshot.take(Path(found["settings"]["results"]))
            os.environ.update(FEDLOOM_CODE=str(code))
    except FedloomError as error:
        sys.exit(f"error: {error}")
    os.environ[PLANNED] = f"{found['settings']['results']}/plan/plan.json"
    return found, home


PLAN, HOME = read_plan()
RESULTS = PLAN["settings"]["results"]
DATA = PLAN["settings"]["data"]
if workflow.is_main_process:
    WATCH = monitor.Watch(PLAN["settings"])


# A job finds its plan by this, and so never reads a config that was edited meanwhile.
envvars:
    PLANNED,


# Cards are counted on this machine only; a cluster's scheduler counts its own.
resource_scopes:
    gpu="local",


wildcard_constraints:
    job="[a-z0-9-]+",
    study=r"((?!\.runs)[\w.-])+",
    partition=r"[\w-]+-[0-9a-f]{16}",
    dataset=r"[\w-]+-[0-9a-f]{16}",
    analysis=r"[\w-]+-[0-9a-f]{16}",
    raw=r"[\w-]+",


def planned(kind, name):
    """How to make one thing of the plan, as its file says."""
    with open(f"{RESULTS}/plan/{kind}/{name}.json") as file:
        return json.load(file)


DATASETS = sorted({bundle["dataset"] for bundle in PLAN["bundles"].values()})


def raw(dataset):
    """The folder of the raw files that a planned data set is made from."""
    return raw_name(planned("datasets", dataset))


def unless_there(outputs, inputs):
    """The inputs of a job, none if its outputs are there.

    Identity is in every name and `markers.settle` has removed what is stale, so that what is there is
    right: it needs no inputs, and neither their times nor their absence bring its job back.
    """
    return [] if all(Path(path).exists() for path in outputs) else inputs


def job(wildcards):
    """What a job trains, and what it needs for that."""
    return planned("jobs", wildcards.job)


def slurm_resources(execution):
    """What Slurm is asked for besides, as its plugin calls it; nothing where the config is silent."""
    names = {
        "slurm_partition": "slurm_partition",
        "account": "slurm_account",
        "gpu_type": "gpu_model",
        "qos": "qos",
        "constraint": "constraint",
    }

    def asked(key):
        return lambda wildcards: execution(wildcards)[key]

    return {name: asked(key) for key, name in names.items()}


def marker(name):
    """What says that a job is done."""
    return str(markers.marker(Path(RESULTS), name))


def ingredients(wildcards):
    """What a job needs: data, partitions, and the runs that its own start from."""
    spec = job(wildcards)
    return unless_there(
        [marker(wildcards.job)],
        [
            *(f"{DATA}/prepared/{name}/dataset.json" for name in spec["datasets"]),
            *(
                f"{RESULTS}/partitions/{name}/partition.json"
                for name in spec["partitions"]
            ),
            *map(marker, spec["after"]),
        ],
    )


def analysis(name):
    """What says that an analysis is made."""
    return str(analyses.folder_of(Path(RESULTS), name) / analyses.RECORD)


def analysing(wildcards):
    """How an analysis is computed: as its study is, and on a GPU only if it computes models."""
    return planned("analyses", wildcards.analysis)["execution"]


def studied(wildcards):
    """What an analysis reads: its runs, and the data and partitions behind them."""
    bundles = PLAN["analyses"][wildcards.analysis]["bundles"]
    needs = [PLAN["bundles"][name] for name in bundles]
    return unless_there(
        [analysis(wildcards.analysis)],
        [
            *sorted({marker(HOME[name]) for name in bundles if name in HOME}),
            *sorted(
                {f"{DATA}/prepared/{one['dataset']}/dataset.json" for one in needs}
            ),
            *sorted(
                {
                    f"{RESULTS}/partitions/{one['partition']}/partition.json"
                    for one in needs
                }
            ),
        ],
    )


def table(wildcards):
    """The long table of a study."""
    return f"{RESULTS}/tables/{wildcards.study}.parquet"


def study(wildcards):
    """What a study needs."""
    try:
        return PLAN["studies"][wildcards.study]
    except KeyError:
        raise WorkflowError(
            f"error: {CONFIG}/config.yaml: studies: {wildcards.study!r} is not among them; "
            f"planned: {', '.join(PLAN['studies'])}"
        ) from None


def shown(path, caption, what):
    """An output of a study that `snakemake --report` shows, beside the study's others."""
    return report(
        path,
        caption=f"../report/{caption}.rst",
        category="{study}",
        labels={"what": what},
    )
