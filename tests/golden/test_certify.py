"""What an edit renames, certified or not: through `fedloom plan`, in a copy of the code."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import preloaded
import pytest
import yaml
from project import copy_code

from golden import certify

REPOSITORY = Path(__file__).parents[2]
FEW = """
METHODS = {name: METHODS[name][:1] for name in ("fedavg", "fedprox")}
SETTINGS = {name: SETTINGS[name] for name in ("adamw", "constant", "cosine")}
MODELS, TERMS, ALTERATIONS, STAGES, AGGREGATIONS = {"mlp": MODELS["mlp"]}, {}, {}, {}, {}
MODAL, MASKED, STARTING, DETERMINED = {}, (), (), {"fedavg", "fedprox"}
"""
FEW_SCHEMES = """
SCHEMES = {"natural": SCHEMES["natural"]}
"""
STUDY: dict[str, Any] = {
    "datasets": [{"synthetic": {"clients": 4, "samples": 40}}],
    "partitions": ["natural"],
    "models": [{"mlp": {"hidden": [5]}}],
    "seeds": [0],
    "training": {"rounds": 2},
    "methods": {
        "fedavg": None,
        "fedprox": {"mu": 0.5},
        "falling": {"method": "fedavg", "schedule": "cosine"},
    },
}
CERTIFY = """
from fl.plan import certification
certification.certify(dict.fromkeys(certification.roots(), 1))
"""
ENVIRONMENT = {key: text for key, text in os.environ.items() if not key.startswith("PYTHON")}


class Project:
    """A copy of the code with a study and few golden worlds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("fl", "tests/golden", "tests/sources", "tests/helpers"):
            copy_code(REPOSITORY / name, root / name)
        (root / "CHANGELOG.md").write_text("# Changelog\n\n## 2.0\n\n- New.\n\n## 1.0\n")
        (root / "config/studies").mkdir(parents=True)
        (root / "config/config.yaml").write_text(yaml.safe_dump({"studies": ["small"]}))
        (root / "config/studies/small.yaml").write_text(yaml.safe_dump(STUDY))
        one = '\nWORLDS = ("method fedavg: plain",)\n'
        self.edit("tests/golden/portable.py", "\nATTEMPTS", f"{one}\nATTEMPTS")
        self.edit("tests/golden/worlds.py", "\ndef runs()", f"{FEW}\n\ndef runs()")
        self.edit("tests/golden/worlds.py", "\nSPLITS: ", f"{FEW_SCHEMES}SPLITS: ")
        self.edit("tests/golden/adapter.py", "return registry.names(kind)", "return []")

    def python(self, *arguments: str) -> str:
        done = subprocess.run(
            [preloaded.python(), *arguments],
            cwd=self.root,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def names(self) -> dict[str, str]:
        """The planned run of each entry."""
        self.python("-m", "fl", "plan", "--write")
        [study] = (self.root / "results/plan/studies").glob("*.json")
        return {run["method"]: run["run"] for run in json.loads(study.read_text())["runs"]}

    def certify(self) -> str:
        return self.python("-m", "tests.golden", "--certify", "--processes", "1")

    def train(self) -> None:
        """Train all runs of the written plan."""
        bundles = sorted((self.root / "results/plan/bundles").glob("*.json"))
        summary = json.loads((self.root / "results/plan/plan.json").read_text())
        planned = [str(path) for path in bundles if path.stem in summary["bundles"]]
        planned.sort(key=lambda path: bool(json.loads(Path(path).read_text())["after"]))
        self.python("-m", "fl", "train", *planned)

    def edit_all(self, file: str, old: str, new: str) -> None:
        """Rename something in a file."""
        path = self.root / file
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.root / file
        assert path.read_text().count(old) == 1
        path.write_text(path.read_text().replace(old, new))


def test_names_change_with_numbers_and_with_edits_that_nobody_certified(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.python("-c", CERTIFY)  # What is being edited in the repository meanwhile, too.
    before = project.names()

    def renamed() -> set[str]:
        now = project.names()
        return {entry for entry in now if now[entry] != before[entry]}

    training, fedprox = "fl/api/training.py", "fl/methods/fedprox.py"
    project.edit(fedprox, "ProximalTerm(self.mu)", "ProximalTerm(1.0 * self.mu)")
    assert renamed() == {"fedprox"}
    project.edit(training, "warmup = training.warmup_rounds", "warmup = 1 * training.warmup_rounds")
    assert renamed() == {"fedavg", "fedprox", "falling"}
    project.certify()
    assert renamed() == set()

    project.edit(fedprox, "ProximalTerm(1.0 * self.mu)", "ProximalTerm(1.5 * self.mu)")
    project.edit(training, "(1 + math.cos(", "(1.5 + math.cos(")
    assert renamed() == {"fedavg", "fedprox", "falling"}
    told = "- Other numbers, and so other names of runs: method fedprox (version 2), "
    told += "training.schedule=cosine (version 2)."
    assert told in project.certify()
    assert f"\n## 2.0\n\n{certify.HEADING}\n\n{told}\n" in (tmp_path / "CHANGELOG.md").read_text()
    assert renamed() == {"fedprox", "falling"}


def test_a_new_key_renames_nothing_and_another_default_what_has_it(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.certify()
    before = project.names()
    fedprox, training = "fl/methods/fedprox.py", "fl/api/training.py"
    key = "    patience: Count = 5\n"
    project.edit(fedprox, key, f"{key}    unread: float = 0.5\n")
    project.edit(
        training,
        "    evaluate_every: Count = 1\n",
        "    also_unread: int = 1\n    evaluate_every: Count = 1\n",
    )
    project.certify()
    assert project.names() == before

    project.edit(fedprox, "unread: float = 0.5", "unread: float = 0.7")
    assert "method fedprox (version 2)" in project.certify()
    now = project.names()
    assert {entry for entry in now if now[entry] != before[entry]} == {"fedprox"}


def test_runs_that_were_trained_before_their_code_was_certified_are_found(tmp_path: Path) -> None:
    project = Project(tmp_path)
    study = tmp_path / "config/studies/small.yaml"
    methods = {"tuned": {"method": "finetune", "start": "fedavg"}}
    study.write_text(yaml.safe_dump({**STUDY, "methods": {**STUDY["methods"], **methods}}))
    project.python("-c", CERTIFY)
    before = project.names()

    project.edit_all("fl/data/partitioning.py", "_make_new(", "_make_table(")
    project.edit_all("fl/api/training.py", "_scheduled(", "_rate_by_schedule(")
    uncertified = project.names()
    assert not {*uncertified.values()} & {*before.values()}
    project.train()
    project.certify()
    assert project.names() == before
    store = tmp_path / "results/runs"
    for entry, run in before.items():
        record = json.loads((store / run / "run.json").read_text())
        assert record["trained_as"] == uncertified[entry]
        metrics = [store / name / "metrics.parquet" for name in (run, uncertified[entry])]
        assert metrics[0].samefile(metrics[1]), "the bytes of those very runs, and no copy"
    assert "0 to train" in project.python("-m", "fl", "plan")
    assert "8 runs checked, 0 damaged" in project.python("-m", "fl", "store", "verify")


def test_an_earlier_commit_is_certified_afterwards(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.python("-c", CERTIFY)
    certified = project.names()

    def commit() -> str:
        person = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        for words in (["init", "-q"], ["add", "fl", "tests"], [*person, "commit", "-qm", "a"]):
            subprocess.run(["git", *words], cwd=tmp_path, check=True)
        words = ["git", "rev-parse", "HEAD"]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True).stdout.strip()

    project.edit_all("fl/api/training.py", "_scheduled(", "_rate_by_schedule(")
    project.names()
    state = commit()
    project.train()
    project.edit_all("fl/api/training.py", "_rate_by_schedule(", "_scheduled(")
    assert "3 to train" in project.python("-m", "fl", "plan")
    told = project.python("-m", "tests.golden", "--state", state, "--processes", "1")
    assert f"{state}: 1 hashes are names now" in told
    assert project.names() == certified
    assert "0 to train" in project.python("-m", "fl", "plan")


@pytest.mark.parametrize(
    ("differing", "changed", "expected"),
    [
        ("method fedprox", {"method fedprox"}, {"method fedprox"}),
        ("method fedprox", {"core"}, {"method fedprox"}),
        ("method fedprox: 1", {"core"}, {"method fedprox"}),
        ("core: drops", {"core"}, {"training.schedule=drops"}),
        ("core: few", {"core"}, {"core"}),
        ("model vit", {"core", "model vit"}, {"model vit"}),
        ("scheme natural: 0", {"data"}, {"partition scheme natural"}),
        ("data ", {"data"}, {f"data set {name}" for name in ("digits", "mnist")}),
        ("", {"core", "data"}, {"core", "data"}),
    ],
)
def test_blame(differing: str, changed: set[str], expected: set[str]) -> None:
    names = list(certify.measure.names())
    apart = {name for name in names if name.startswith(differing)}
    blamed = certify.risen(sorted(apart), [n for n in names if n not in apart], changed)
    assert expected <= blamed
    assert differing == "data " or blamed == expected
