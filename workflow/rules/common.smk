CONFIG = config.get("config", "config")
FL = f"{shlex.quote(sys.executable)} -m fl"


def read_plan():
    """The plan; only the main process makes it anew, jobs read the one that they belong to."""
    main = workflow.is_main_process
    try:
        plan = current(Path(CONFIG), write=main)
        if main:
            graph.settle(plan)
    except FedloomError as error:
        sys.exit(f"error: {error}")
    return plan


PLAN = read_plan()
RESULTS = PLAN["settings"]["results"]
DATA = PLAN["settings"]["data"]
STORE = PLAN["settings"]["store"]


wildcard_constraints:
    bundle="[0-9a-f]{16}",
    study=r"((?!\.runs)[\w.-])+",
    partition=r"[\w-]+-[0-9a-f]{16}",
    dataset=r"[\w-]+-[0-9a-f]{16}",
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

    Identity is in every name and `graph.settle` has removed what is stale, so that what is there is
    right: it needs no inputs, and neither their times nor their absence bring its job back.
    """
    return [] if all(Path(path).exists() for path in outputs) else inputs


def bundle(wildcards):
    """How to train a bundle."""
    return planned("bundles", wildcards.bundle)


def marker(name):
    """What says that a bundle is trained."""
    return str(graph.marker(Path(RESULTS), name))


def ingredients(wildcards):
    """What a bundle needs: its data, its partition, and the runs that it starts from."""
    spec = bundle(wildcards)
    return unless_there(
        [marker(wildcards.bundle)],
        [
            f"{DATA}/prepared/{spec['dataset']}/dataset.json",
            f"{RESULTS}/partitions/{spec['partition']}/partition.json",
            *map(marker, spec["after"]),
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
