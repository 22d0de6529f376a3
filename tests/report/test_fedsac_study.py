"""FedSaC's table and figure of CIFAR-10 on generated files: from the archive to the report."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml

from fl.cli import main

ROOT = Path(__file__).resolve().parents[2]
STUDY = "fedsac-cifar10"
KEPT = ("local", "fedsac")


def write_config(folder: Path, files: Path) -> None:
    """Table 1's study with one partition, a round of two methods, and figure 3's analyses."""
    study = yaml.safe_load((ROOT / "config" / "studies" / f"{STUDY}.yaml").read_text())
    figure = yaml.safe_load((ROOT / "config" / "studies" / "fedsac-figure3.yaml").read_text())
    columns = "homogeneous(clients=10, val=0.2, test=published)"
    for cells in study["published"]:
        cells["rows"] = {label: row for label, row in cells["rows"].items() if label in KEPT}
        cells["columns"] = {text: c for text, c in cells["columns"].items() if text == columns}
    study |= {
        "datasets": [{"cifar10": {"complete": False}}],
        "partitions": study["partitions"][:1],
        "methods": {label: study["methods"][label] for label in KEPT},
        "published": [c for c in study["published"] if c["rows"] and c["columns"]],
        "baseline": "local",
        "seeds": [0],
        "training": {**study["training"], "rounds": 1, "local_steps": 2, "batch_size": 4},
        "analyses": figure["analyses"],
    }
    (folder / "studies").mkdir(parents=True)
    (folder / "published").symlink_to(ROOT / "config" / "published")
    (folder / "studies" / f"{STUDY}.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    settings = {
        "studies": [STUDY],
        "sources": {"cifar10": str(files)},
        "execution": {"backend": "loop", "device": "cpu"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))


def test_from_the_archive_to_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "data"))
    from sources import cifar10

    files = tmp_path / "files"
    files.mkdir()
    cifar10.write(files, size=80)
    write_config(tmp_path / "config", files)
    monkeypatch.chdir(tmp_path)
    assert main.main(["plan", "--write"]) == 0
    planned = json.loads(Path(f"results/plan/studies/{STUDY}.json").read_text())
    for spec in Path("results/plan/datasets").glob("*.json"):
        assert main.main(["download", spec.stem]) == 0
    bundles = [f"results/plan/bundles/{run['bundle']}.json" for run in planned["runs"]]
    assert main.main(["train", *bundles]) == 0
    for analysis in planned["analyses"]:
        assert main.main(["analyse", analysis["analysis"]]) == 0
    assert main.main(["tables", STUDY]) == 0
    assert main.main(["report", STUDY]) == 0
    rows = pd.read_parquet(f"results/tables/{STUDY}.parquet")
    test = rows[(rows["split"] == "test") & (rows["method"] == "fedsac")]
    sizes = test.groupby("metric")["n"]
    assert sizes.sum()["accuracy"] == 80, "the published test images, each at one client"
    assert set(test.loc[test["metric"] == "reweighted_accuracy", "n"]) == {80}
    page = Path(f"results/report/{STUDY}.md").read_text()
    for told in ("70.9", "classes by their shares in its training samples", "complementarity only"):
        assert told in page
