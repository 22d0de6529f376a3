"""Entries that run on a data set or a partition of their own, from which others start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import planning
import pytest

from fl.base.errors import ConfigError
from fl.plan import plan

OTHER = {"synthetic": {"clients": 4, "samples": 40, "alpha": 0.0}}
"""A data set of the study's shape and classes."""

HALVES = {"homogeneous": {"clients": 2}}


def methods(**own: Any) -> dict[str, Any]:
    before = {"method": "fedavg", "rounds": 2, **own}
    return {"before": before, "tuned": {"method": "finetune", "start": "before", "rounds": 1}}


def test_an_entry_runs_on_its_own_data_and_others_start_from_it(tmp_path: Path) -> None:
    alphas = [{"dirichlet": {"clients": 4, "alpha": [0.5, 5.0], "min_samples": 5}}]
    study = {"partitions": alphas, "methods": methods(dataset=OTHER, partition=HALVES)}
    found = plan.make(planning.write_config(tmp_path, study), checked=False)
    runs = {run.method: [] for run in found.studies["tiny"].runs}
    for run in found.studies["tiny"].runs:
        runs[run.method].append(run)
    [before] = runs["before"]  # Once, however many partitions the study has.
    assert before.dataset == "synthetic(alpha=0.0, clients=4, samples=40)"
    assert before.partition == "homogeneous(clients=2)"
    assert [run.start for run in runs["tuned"]] == [before.run] * 2
    assert {run.dataset for run in runs["tuned"]} == {"synthetic(alpha=1.0, clients=4, samples=40)"}
    assert len({bundle.dataset for bundle in found.bundles.values()}) == 2
    assert len({bundle.partition for bundle in found.bundles.values()}) == 3


def test_what_it_is_trained_on_is_part_of_what_starts_from_it(tmp_path: Path) -> None:
    names = []
    for number, alpha in enumerate((0.0, 0.5)):
        other = {"synthetic": {**OTHER["synthetic"], "alpha": alpha}}
        config = planning.write_config(tmp_path / str(number), {"methods": methods(dataset=other)})
        runs = plan.make(config, checked=False).studies["tiny"].runs
        names.append({run.method: run.run for run in runs})
    assert names[0]["before"] != names[1]["before"]
    assert names[0]["tuned"] != names[1]["tuned"]


def test_a_model_of_one_data_set_is_trained_further_on_another(tmp_path: Path) -> None:
    planned = planning.make(tmp_path, methods=methods(dataset=OTHER, partition=HALVES))
    assert planned.train("before") == 0 and planned.train("tuned") == 0
    [before], [tuned] = planned.runs("before"), planned.runs("tuned")
    store = planned.store()
    metrics = store.metrics(tuned)
    assert set(store.metrics(before)["client"]) == {0, 1}
    assert set(metrics["client"]) == {0, 1, 2, 3}
    assert set(metrics["round"]) == {0, 1}


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (
            {"dataset": "digits"},
            "methods.tuned.start: 'before' is trained on digits, inputs of 1 x 8 x 8 in 10 "
            "classes, but synthetic(alpha=1.0, clients=4, samples=40) has inputs of 60 in 10 ",
        ),
        (
            {"dataset": {"synthetic": {"alpha": [0.0, 1.0]}}},
            "methods.before.dataset.synthetic: 2 points are asked for. Allowed: 1 ",
        ),
        (
            {"partition": {"homogeneous": {"clients": 100}}},
            "methods.before.partition.homogeneous.clients: is 100, too many for the",
        ),
        (
            {"dataset": "prostate-mri"},
            "methods.before.dataset.prostate-mri: prostate-mri is for segmentation, but the study",
        ),
    ],
)
def test_what_does_not_fit_is_said_with_its_place(
    tmp_path: Path, own: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan.make(planning.write_config(tmp_path, {"methods": methods(**own)}), checked=False)
    assert said in str(caught.value)


def test_images_are_of_the_clients_that_train_on_them(tmp_path: Path) -> None:
    split = {"homogeneous": {"clients": 2}}
    entries = {"images": {"method": "warm-up", "partition": split}}
    entries["avg"] = {"method": "fedavg", "train_on": "images"}
    study = {"datasets": ["digits"], "models": ["convnet"], "methods": entries}
    with pytest.raises(ConfigError, match=r"methods\.avg\.train_on: 'images' makes images for oth"):
        plan.make(planning.write_config(tmp_path, study), checked=False)
