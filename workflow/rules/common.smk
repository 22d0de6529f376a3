CONFIG = config.get("config", "config")
FL = f"{sys.executable} -m fl"


def read_plan():
    """The plan; only the main process makes it anew, jobs read the one that they belong to."""
    try:
        return current(Path(CONFIG), write=workflow.is_main_process)
    except FedloomError as error:
        raise WorkflowError(f"error: {error}") from None


PLAN = read_plan()
RESULTS = PLAN["settings"]["results"]
DATA = PLAN["settings"]["data"]
STORE = PLAN["settings"]["store"]
EXECUTION = PLAN["settings"]["execution"]

if workflow.is_main_process:
    graph.settle(PLAN)


wildcard_constraints:
    bundle="[0-9a-f]{16}",
    study=r"[\w.-]+",
    partition=r"[\w-]+-[0-9a-f]{16}",
    dataset=r"[\w-]+-[0-9a-f]{16}",
    raw=r"[\w-]+",


def planned(kind, name):
    """How to make one thing of the plan, as its file says."""
    with open(f"{RESULTS}/plan/{kind}/{name}.json") as file:
        return json.load(file)


def gpus(device):
    """How many GPUs a training job takes."""
    cards = glob.glob("/dev/nvidia[0-9]*")
    return int(device == "cuda" or (device == "auto" and bool(cards)))
