"""A study as an RO-Crate: complete, valid, one to work in, and without what is not code."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import planning
import preloaded
import pytest

from fl.cli import main
from fl.runner import environment
from fl.store.store import Store

pytest.importorskip("rocrate", reason="the package of crates (make extras)")
LICENCE = "https://creativecommons.org/licenses/by/4.0/"
VALIDATE = """
import json, sys
from pathlib import Path
import requests, rocrate
# The one file that the validator fetches comes with the package that writes crates.
CONTEXT = (Path(rocrate.__file__).parent / "data" / "ro-crate.jsonld").read_bytes()

def send(self, request, **settings):
    assert request.url == "https://w3id.org/ro/crate/1.3/context", request.url
    response = requests.Response()
    response.status_code, response._content, response.request = 200, CONTEXT, request
    response.url, response.headers["Content-Type"] = request.url, "application/ld+json"
    return response

requests.Session.send = send
from rocrate_validator import models, services
settings = services.ValidationSettings(
    rocrate_uri=sys.argv[1], no_cache=True, skip_availability_check=True,
    requirement_severity=models.Severity.REQUIRED,
)
result = services.validate(settings)
print(*(f"{issue.severity.name} {issue.message}" for issue in result.get_issues()), sep="\\n")
sys.exit(not result.passed())
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained study with a grid and a plugin."""
    root = tmp_path_factory.mktemp("lab")
    plugin = root / "mylab"
    (plugin / "methods").mkdir(parents=True)
    source = Path(main.__file__).parents[1] / "methods" / "fedavg.py"
    code = source.read_text().replace("class FedAvg", "class Mine")
    opening = 'open(__file__.replace("methods/mine.py", NAME)).read()'
    (plugin / "methods" / "mine.py").write_text(f"{code}\n\nNAME = 'rate.txt'\nRATE = {opening}\n")
    (plugin / "rate.txt").write_text("0.5")
    methods = {"fedavg": None, "mine": {"method": "mine", "lr": [0.05, 0.1]}}
    settings = {
        "plugins": [str(plugin)],
        "execution": {**planning.EXECUTION, "account": "physics", "memory_mb": 1234},
    }
    training = {**planning.STUDY["training"], "rounds": 2}
    study = {"methods": methods, "question": "Does it?", "training": training}
    config = planning.write_config(root, study, settings)
    assert run(root, ["plan", "--write", "--config", str(config)]).returncode == 0
    bundles = sorted((root / "results" / "plan" / "bundles").glob("*.json"))
    store = str(root / "runs")
    done = run(root, ["train", *map(str, bundles), "--store", store])
    assert done.returncode == 0, done.stderr
    return root


def run(
    root: Path, words: list[str], code: Path = planning.ROOT
) -> subprocess.CompletedProcess[str]:
    """``python -m fl`` in a folder, with the code of another one."""
    command = [preloaded.python(), "-m", "fl", *words]
    variables = {**os.environ, "PYTHONPATH": str(code)}
    return subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True)


def entities(place: Path) -> dict[str, dict[str, Any]]:
    graph = json.loads((place / "ro-crate-metadata.json").read_text())["@graph"]
    return {entity["@id"]: entity for entity in graph}


def make_blind(place: Path) -> None:
    """Remove the commit from a crate, by the program on the page."""
    page = (planning.ROOT / "docs" / "guide" / "publish.md").read_text()
    section = page.partition("## Blind review")[2]
    [script] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    variables = {**os.environ, "PYTHONPATH": "code"}
    subprocess.run([sys.executable, "-c", script], cwd=place, env=variables, check=True)


@pytest.fixture(scope="module")
def crate(lab: Path) -> Path:
    """Its crate, made after files that are no code came into the plugin's folder."""
    for name in ("patients.csv", "secrets.env", "notes/diary.txt"):
        (lab / "mylab" / name).parent.mkdir(exist_ok=True)
        (lab / "mylab" / name).write_text("Ada Lovelace")
    place = lab / "crates" / "tiny"
    words = ["export", "tiny", "--crate", str(place), "--license", LICENCE]
    done = run(lab, words)
    assert done.returncode == 0, done.stderr
    assert "contains 3 of 3 runs" in done.stdout
    return place


@pytest.mark.parametrize("licence", ["not an address", "Apache-2.0", "https://", "file:///x"])
def test_a_licence_is_an_address(
    lab: Path, licence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = lab / "crates" / "unlicensed"
    words = ["export", "tiny", "--crate", str(place), "--license", licence]
    assert main.main([*words, "--config", str(lab / "config")]) == 1
    assert f"--license: is {licence!r}. Allowed: an address" in capsys.readouterr().err
    assert not place.exists()


def test_a_crate_says_of_every_file_what_it_is(crate: Path) -> None:
    known = entities(crate)
    root = known["./"]
    assert (root["name"], root["license"]) == ("tiny", {"@id": LICENCE})
    assert root["description"].startswith("Does it? 3 runs: 3 complete")
    parts = {part["@id"] for part in root["hasPart"]}
    for path in crate.rglob("*"):
        inner = path.relative_to(crate)
        if path.is_file() and inner.parts[0] not in ("code", "runs"):
            assert inner.as_posix() in parts or inner.name == "ro-crate-metadata.json"
    assert {part for part in parts if part.startswith("runs/")} == {
        f"runs/{run}/" for run in Store(crate / "runs").runs()
    }
    for name in ("config/studies/tiny.yaml", "results/report/tiny.html", "results/report/tiny.bib"):
        assert name in parts
    assert "results/tables/tiny.parquet" in parts
    assert any(part.startswith("results/partitions/") for part in parts)
    assert any(part.startswith("results/report/tiny/partitions") for part in parts)
    cited = {known[each["@id"]]["name"] for each in root["citation"]}
    assert any(title.startswith("Communication-Efficient Learning") for title in cited)
    scheme = known["#partition-scheme-dirichlet"]
    [work] = scheme["citation"]
    assert known[work["@id"]]["name"].startswith("Bayesian Nonparametric")
    data = known["#data-set-synthetic"]
    assert "publisher" in data["conditionsOfAccess"] and data["citation"]
    assert known["#fedloom"]["version"]


def test_a_crate_is_read_by_the_package_that_reads_crates(crate: Path) -> None:
    from rocrate.rocrate import ROCrate

    read = ROCrate(crate)
    assert read.name == "tiny"
    for entity in read.data_entities:
        assert (crate / entity.id).exists(), entity.id


@pytest.mark.skipif(
    importlib.util.find_spec("rocrate_validator") is None,
    reason="needs roc-validator, which wants an older rich than the lock files have",
)
def test_a_crate_is_valid_by_the_validator_of_ro_crate(crate: Path, tmp_path: Path) -> None:
    script = [sys.executable, "-c", VALIDATE]
    done = subprocess.run([*script, str(crate)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    # It would see a file that is not there.
    shutil.copytree(crate, tmp_path / "copy")
    (tmp_path / "copy" / "results" / "report" / "tiny.tex").unlink()
    done = subprocess.run(
        [*script, str(tmp_path / "copy")], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1 and "tiny.tex" in done.stdout, done.stderr


def test_a_crate_is_a_folder_to_work_in(crate: Path, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    shutil.copytree(crate, place)
    numbers = (place / "results" / "tables" / "tiny.parquet").read_bytes()
    shutil.rmtree(place / "results" / "tables")
    shutil.rmtree(place / "results" / "report")
    for words in (["store", "verify"], ["report", "tiny"], ["plan"]):
        done = run(place, words, place / "code")
        assert done.returncode == 0, done.stderr
        assert "3 of 3 runs stored" in done.stdout or words != ["report", "tiny"]
    assert "0 to train" in done.stdout
    page = place / "results" / "report" / "tiny.html"
    assert page.read_bytes() == (crate / "results" / "report" / "tiny.html").read_bytes()
    assert (place / "results" / "tables" / "tiny.parquet").read_bytes() == numbers


def test_settings_of_a_cluster_and_files_of_other_studies_stay_at_home(crate: Path) -> None:
    settings = (crate / "config" / "config.yaml").read_text()
    assert "physics" not in settings
    assert "memory_mb: 1234" in settings and "code/mylab" in settings
    assert [path.name for path in (crate / "config" / "studies").iterdir()] == ["tiny.yaml"]


def test_of_a_plugin_only_its_code_and_what_it_opens_goes_into_a_crate(crate: Path) -> None:
    files = {path.name for path in (crate / "code" / "mylab").rglob("*") if path.is_file()}
    assert files == {"mine.py", "rate.txt"}


def test_the_way_to_a_blind_review_leaves_runs_whole(crate: Path, tmp_path: Path) -> None:
    place = tmp_path / "blind"
    shutil.copytree(crate, place)
    make_blind(place)
    done = run(place, ["store", "verify"], place / "code")
    assert done.returncode == 0 and "3 runs checked, 0 damaged" in done.stdout, done.stderr
    store = Store(place / "runs")
    for name in store.runs():
        assert store.record(name)["environment"]["commit"] is None
        assert "+" not in store.record(name)["versions"]["fedloom"]
    assert run(place, ["report", "tiny", "--planned"], place / "code").returncode == 0


def test_a_crate_has_all_for_the_report_of_a_study_of_the_users_table(tmp_path: Path) -> None:
    """The table is not in the crate, and its reader has it not; blind, the commit is gone."""
    root = tmp_path / "lab"
    root.mkdir()
    lines = [f"{i % 7},{i % 5},{'ab'[i % 2]}" for i in range(80)]
    (root / "patients.csv").write_text("\n".join(["x,z,y", *lines]))
    data = {"table": {"path": str(root / "patients.csv"), "label": "y"}}
    training = {**planning.STUDY["training"], "rounds": 2}
    study = {"datasets": [data], "training": training}
    config = planning.write_config(root, {**study, "partitions": [{"homogeneous": {"clients": 2}}]})
    assert run(root, ["plan", "--write", "--config", str(config)]).returncode == 0
    bundles = map(str, sorted((root / "results" / "plan" / "bundles").glob("*.json")))
    assert run(root, ["train", *bundles, "--store", str(root / "runs")]).returncode == 0
    place = tmp_path / "crate"
    done = run(root, ["export", "tiny", "--crate", str(place), "--license", LICENCE])
    assert done.returncode == 0, done.stderr
    (root / "patients.csv").unlink()
    report = place / "results" / "report"
    commit = environment.version().partition("+")[2]
    assert commit and commit in (report / "tiny.bib").read_text()
    make_blind(place)
    done = run(place, ["report", "tiny", "--planned"], place / "code")
    assert done.returncode == 0, done.stderr
    assert "1 of 1 runs stored" in done.stdout
    runs = pd.read_parquet(place / "results" / "tables" / "tiny.runs.parquet")
    pages = [(report / name).read_text() for name in ("tiny.html", "tiny.bib")]
    for text in (*pages, runs.to_csv()):
        assert commit not in text and environment.VERSION in text
    plain = run(place, ["report", "tiny"], place / "code")
    assert plain.returncode == 1 and "--planned" in plain.stderr, plain.stderr


def test_a_place_that_is_taken_is_refused(lab: Path, crate: Path) -> None:
    done = run(lab, ["export", "tiny", "--crate", str(crate)])
    assert done.returncode == 1
    assert "exists already. Try: choose another name" in done.stderr
    done = run(lab, ["export", "tiny", "--crate", "crate.tar"])
    assert done.returncode == 1
    assert re.search(r"crate\.tar: .*Allowed: .*\*\.zip", done.stderr)
