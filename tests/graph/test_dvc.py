"""Snakemake as a stage of DVC: what a clone pulls is right, and stays right when it is edited."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import boto3
import project
import pytest
import versioned
from moto.server import ThreadedMotoServer
from project import STUDY, TABLE, Project, apart
from versioned import Versioned

pytestmark = pytest.mark.graph

FASTER = deepcopy(STUDY["methods"]) | {"fedavg": {"lr": 0.2}}
OURS = ["fedavg 0", "fedavg 1", "fedavg-ft 0", "fedavg-ft 1"]


@pytest.fixture(scope="module")
def tracked(finished: Project, once: Callable[..., Path]) -> Versioned:
    """The small project after `dvc repro`, committed and pushed to a folder."""

    def make(root: Path) -> None:
        made = versioned.create(finished, root / "project")
        made.dvc("repro")
        made.dvc("remote", "add", "--default", "shared", str(root / "remote"))
        made.commit("First results")
        assert made.git("status", "--short") == ""
        assert "up to date" in made.dvc("status")
        made.dvc("push")

    return Versioned(once("tracked", make) / "project")


@pytest.fixture
def pulled(tracked: Versioned, tmp_path: Path) -> Versioned:
    """A fresh clone with the results pulled."""
    found = tracked.clone(tmp_path / "clone" / "project")
    assert not (found.root / "results/tables").exists()
    found.dvc("pull")
    return found


def differences_are_those_of_the_tables(pulled: Versioned) -> None:
    """What `dvc params`, `metrics` and `plots` show after the edit."""
    params = json.loads(pulled.dvc("params", "diff", "--json"))
    changed = params["config/studies/small.yaml"]
    assert changed["methods.fedavg.lr"]["new"] == 0.2

    shown = json.loads(pulled.dvc("metrics", "show", "--json"))
    means = shown[""]["data"]["results/metrics/small.json"]["data"]
    last = pulled.values()["fedavg"].query("round == 2 and split == 'test'")
    last = last[last["metric"] == "accuracy"]
    assert means["fedavg"] == pytest.approx(last.groupby("seed")["value"].mean().mean(), abs=1e-12)
    moved = json.loads(pulled.dvc("metrics", "diff", "--json"))["results/metrics/small.json"]
    assert {*moved} <= {"fedavg", "fedavg-ft"}
    assert moved["fedavg"]["new"] == means["fedavg"] != moved["fedavg"]["old"]

    page = pulled.dvc("plots", "diff", "HEAD").strip().splitlines()[-1].removeprefix("file://")
    drawn = Path(page).read_text()
    assert '"method": "fedavg-ft"' in drawn
    assert '"rev": "HEAD"' in drawn and '"rev": "workspace"' in drawn
    assert "dvc_plots" not in pulled.git("status", "--short")


def test_an_edit_in_a_fresh_clone_is_trained_and_shown_and_back_again_is_not(
    pulled: Versioned, finished: Project, tmp_path: Path
):
    """Not only the tables are made again, of old numbers under the new rate."""
    old, table = pulled.values(), pulled.table()
    assert ": train " in pulled.snakemake("--dry-run"), "the runs are in the archive alone"
    assert "up to date" in pulled.dvc("status")
    pulled.study(methods=FASTER)
    assert pulled.repro() == OURS
    differences_are_those_of_the_tables(pulled)

    alone = project.copy(finished, tmp_path / "alone")
    alone.study(methods=FASTER)
    alone.snakemake(TABLE)
    assert pulled.table() == alone.table()
    assert apart(old, pulled.values()) == ["fedavg", "fedavg-ft"]
    assert (old["fedavg"]["value"].to_numpy() != pulled.values()["fedavg"]["value"]).any()
    for name in ("metrics/small.json", "plots/small.csv"):
        assert (pulled.root / "results" / name).read_bytes() == (
            alone.root / "results" / name
        ).read_bytes()

    pulled.study()
    assert pulled.repro() == []
    assert pulled.table() == table
    assert "up to date" in pulled.dvc("repro")


def test_an_experiment_trains_what_it_changes_and_takes_no_run_with_it(pulled: Versioned):
    rate = ("-S", "config/studies/small.yaml:methods.fedprox.mu=0.7")
    kept = pulled.root / "results/runs/0123456789abcdef"
    unknown = next((pulled.root / "results/archive").iterdir())
    shutil.copytree(unknown, kept)  # A run that DVC has never seen, as of a stage that failed.
    assert pulled.trained_by("exp", "run", *rate) == ["fedprox 0", "fedprox 1"]
    assert (kept / "run.json").is_file()
    assert "mu: 0.7" in (pulled.root / "config/studies/small.yaml").read_text()
    own = pulled.values()["fedprox"]

    pulled.git("checkout", "--force", ".")
    pulled.dvc("checkout", "--force")
    assert "up to date" in pulled.dvc("status")
    said = pulled.dvc("exp", "run", "--temp", "--name", "elsewhere", *rate[:-1], f"{rate[1]}5")
    assert said.count(": train ") == 1
    pulled.dvc("exp", "apply", "elsewhere")
    assert apart({"fedprox": own}, {"fedprox": pulled.values()["fedprox"]}) == ["fedprox"]
    shown = json.loads(pulled.dvc("exp", "show", "--json"))
    assert "elsewhere" in json.dumps(shown)


def test_the_profile_of_the_environment_is_used(pulled: Versioned):
    profile = pulled.root / "profiles/careful"
    profile.mkdir(parents=True)
    (profile / "config.yaml").write_text("dry-run: true\n")
    pulled.study(seeds=[5])
    said = pulled.dvc("repro", exit_status=255, SNAKEMAKE_PROFILE="profiles/careful")
    assert "This was a dry-run" in said
    # Nor does DVC take what is there for the results of a plan that nothing was trained for.
    assert "results/runs: 3 runs of the plan are missing" in said
    assert "modified" in pulled.dvc("status")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A bucket named fedloom on a server that speaks S3; what a client's environment needs."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    keys = {
        "AWS_ACCESS_KEY_ID": "anybody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, text in keys.items():
        monkeypatch.setenv(name, text)
    boto3.client("s3", endpoint_url=f"http://{host}:{port}").create_bucket(Bucket="fedloom")
    try:
        yield {**keys, "endpoint": f"http://{host}:{port}"}
    finally:
        server.stop()


def test_push_and_pull_through_s3(tracked: Versioned, bucket: dict[str, Any], tmp_path: Path):
    endpoint = bucket.pop("endpoint")
    sender = tracked.clone(tmp_path / "sender" / "project")
    sender.dvc("pull")
    sender.dvc("remote", "add", "--default", "cloud", "s3://fedloom/results")
    sender.dvc("remote", "modify", "cloud", "endpointurl", endpoint)
    sender.commit("Results in a bucket")
    assert "pushed" in sender.dvc("push", **bucket)
    stored = boto3.client("s3", endpoint_url=endpoint).list_objects_v2(Bucket="fedloom")
    assert stored["KeyCount"] > 10

    receiver = sender.clone(tmp_path / "receiver" / "project")
    receiver.dvc("pull", **bucket)
    assert receiver.table() == tracked.table()
    assert "up to date" in receiver.dvc("repro")
