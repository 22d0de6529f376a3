"""A study of a published table, end to end on files in the published format."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import preloaded
import pytest
import yaml

from fl.plan import study_files

ROOT = Path(__file__).resolve().parents[2]
STUDY = "ditto-mmd-cifar10-0.1"
KEPT = ("fedavg", "ditto", "cosine", "mk-mmd-20", "ditto+mk-mmd-1")


def shortened(study: dict[str, Any]) -> dict[str, Any]:
    """The study as it comes along, on a subset: its best values, one round of a small model, two of
    the three numbers of constrained layers.
    """
    methods = {label: study["methods"][label] for label in KEPT}
    keys = methods["mk-mmd-20"]["terms"]["mk-mmd"]
    keys.update(batches=2, layers=keys["layers"][:2])
    best = {label: study["best"]["rows"][label] for label in KEPT}
    for cells in study["published"]:
        cells["rows"] = {label: row for label, row in cells["rows"].items() if label in KEPT}
    return {
        **study,
        "datasets": [{"cifar10": {"complete": False}}],
        "models": [{"cifar-cnn": {"hidden": 32}}],
        "methods": methods,
        "grid": "published",
        "best": {**study["best"], "rows": best},
        "seeds": [2021],
        "training": {**study["training"], "rounds": 1, "local_epochs": 1, "evaluate_every": 1},
    }


@pytest.mark.graph
def test_the_cifar_study_goes_from_the_archive_to_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "data"))
    from sources import cifar10

    files, config = tmp_path / "files", tmp_path / "config"
    files.mkdir()
    (config / "studies").mkdir(parents=True)
    cifar10.write(files, size=40)
    (config / "published").symlink_to(ROOT / "config" / "published")
    study = yaml.safe_load((study_files.file(ROOT / "config", STUDY)).read_text())
    (config / "studies" / f"{STUDY}.yaml").write_text(
        yaml.safe_dump(shortened(study), sort_keys=False)
    )
    settings = {
        "studies": [STUDY],
        "sources": {"cifar10": str(files)},
        "execution": {"backend": "loop", "device": "cpu"},
    }
    (config / "config.yaml").write_text(yaml.safe_dump(settings))
    command = [preloaded.python(), "-m", "snakemake", "--cores", "2", "--directory", str(tmp_path)]
    command += ["--snakefile", str(ROOT / "Snakefile")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = pd.read_parquet(tmp_path / "results" / "tables" / f"{STUDY}.parquet")
    assert set(rows["method"]) == set(KEPT)
    assert np.isfinite(rows["value"]).all()
    test = rows[(rows["split"] == "test") & (rows["metric"] == "accuracy")]
    assert test.groupby(["method", "stage"])["client"].nunique().eq(5).all()
    assert test[test["method"] == "fedavg"]["n"].sum() == 40, "the published test images, no others"
    page = (tmp_path / "results" / "report" / f"{STUDY}.md").read_text()
    assert "84.2" in page, "the published number beside the measured one"
