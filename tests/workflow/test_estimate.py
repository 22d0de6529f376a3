"""Estimates come from runs like those asked for; a shared store may hold others too."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from make_results import write_run
from planning import Planned

from fl.base import registry
from fl.base.errors import Location
from fl.cli import main
from fl.data import partitioning
from fl.engine.client_data import ClientData
from fl.plan.bundle import Bundle
from fl.workflow.estimate import BYTES_PER_ROW, Rates, client_steps, large_metrics

WHERE = Location("a.yaml")


def settled(kind: str, name: str, **values: Any) -> dict[str, Any]:
    return {"name": name, **registry.find(kind, name, WHERE).parse(values, WHERE)}


def spec(
    planned: Callable[..., Planned], dataset: str, partition: dict[str, Any], **training: Any
) -> dict[str, Any]:
    """A run's spec, of FedAvg where nothing else is said."""
    [member] = planned().bundle("fedavg")["runs"]
    changes = {"training": {**member["spec"]["training"], **training}}
    data = settled("data set", dataset)
    return {**member["spec"], **changes, "dataset": data, "partition": partition}


DOMAINS = partial(settled, "partition scheme", "domain", clients_per_domain=3)
NATURAL = partial(settled, "partition scheme", "natural")


@pytest.mark.parametrize(
    ("partition", "clients"),
    [
        (DOMAINS(), 15),
        (DOMAINS(unseen=0.2, val=0.3), 12),
        (NATURAL(unseen=1), 4),
        (DOMAINS(part="scored", unseen=2), 8),
    ],
)
def test_steps_are_those_of_the_partition_that_will_be_made(
    planned: Callable[..., Planned], tmp_path: Path, partition: Any, clients: int
) -> None:
    study = spec(planned, "digits-domains", partition, batch_size=1, rounds=7)
    table = partitioning.make_partition(
        partition, study["dataset"], tmp_path / "data", tmp_path / "made"
    )
    held = ClientData.from_table(table)
    assert len(held.participants) == clients
    steps = 7 * sum(len(held.samples["train"][client]) for client in held.participants)
    assert client_steps(study) == pytest.approx(steps, rel=0.02)
    part = {**study, "training": {**study["training"], "local_steps": 3, "participation": 0.5}}
    assert client_steps(part) == 7 * 3 * round(clients / 2)


def test_steps_of_a_table_of_ones_own_are_counted(
    planned: Callable[..., Planned], tmp_path: Path
) -> None:
    rows = [(0, "train")] * 30 + [(1, "train")] * 10 + [(2, "train")] * 20
    rows += [(client, "test") for client in range(3)]
    table = pd.DataFrame(rows, columns=["client", "split"])
    table.assign(sample=range(len(rows)), unseen=table["client"] == 2).to_parquet(
        tmp_path / "mine.parquet"
    )
    mine = settled("partition scheme", "file", path=str(tmp_path / "mine.parquet"))
    study = spec(planned, "digits", mine, batch_size=5, rounds=1)
    assert client_steps(study) == 2 * 60 / 3 / 5
    clients = [{"train": [*range(30)], "test": [30]}, {"train": [*range(40, 50)], "test": [50]}]
    (tmp_path / "theirs.pkl").write_bytes(pickle.dumps({"data_indices": clients}))
    study["partition"]["path"] = str(tmp_path / "theirs.pkl")
    assert client_steps(study) == 40 / 5


@pytest.mark.parametrize(
    ("dataset", "published"), [("cifar10", 50_000), ("mnist", 60_000), ("fed-isic2019", 18_597)]
)
def test_a_published_test_split_is_not_trained_on(
    planned: Callable[..., Planned], dataset: str, published: int
) -> None:
    keys = {"clients": 5, "alpha": 1.0, "val": 0.1, "test": "published"}
    partition = settled("partition scheme", "dirichlet", **keys)
    study = spec(planned, dataset, partition, batch_size=1, rounds=1)
    assert client_steps(study) == pytest.approx(0.9 * published, rel=0.07)


def test_a_run_whose_record_is_damaged_is_passed_over_and_named(
    planned: Callable[..., Planned], capsys: pytest.CaptureFixture[str]
) -> None:
    study = planned(seeds=[0, 1])
    store = study.store()
    write_run(store.root, "whole", [], spec=study.bundle("fedavg")["runs"][0]["spec"])
    write_run(store.root, "torn", [], spec={})
    (store.root / "torn" / "run.json").write_text('{"run": "to')
    rates = Rates(store)
    assert rates.damaged == ["torn"]
    assert rates.seconds([study.bundle("fedavg")["runs"][0]["spec"]]) == pytest.approx(1.5)
    told = "torn: its run.json is damaged and is ignored. Try: `fedloom store verify --remove`"
    config = ["--config", str(study.root / "config")]
    assert main.main(["plan", "--write", *config]) == 0
    assert told in capsys.readouterr().out
    assert main.main(["status", *config]) == 0
    said = capsys.readouterr().out
    assert told in said and "0 of 2 runs done" in said


def test_a_run_of_what_is_not_known_here_is_passed_over(planned: Callable[..., Planned]) -> None:
    study = planned()
    spec = study.bundle("fedavg")["runs"][0]["spec"]
    store = study.store()
    assert Rates(store).seconds([spec]) is None
    strange = {**spec, "dataset": {"name": "of-a-plugin"}}
    older = {**spec, "dataset": {"name": "synthetic"}}
    for run, found in (("strange", strange), ("older", older), ("like", spec)):
        write_run(store.root, run, [], spec=found, seconds=3.0 if run == "like" else 99.0)
    assert client_steps(spec) > 0
    assert Rates(store).seconds([spec, spec]) == pytest.approx(6.0)


def test_a_term_is_told_by_runs_with_that_term(planned: Callable[..., Planned]) -> None:
    study = planned()
    plain, store = study.bundle("fedavg")["runs"][0]["spec"], study.store()

    def added(**keys: Any) -> dict[str, Any]:
        return {**plain, "terms": [settled("term", "mk-mmd", layers=["1"], **keys)]}

    write_run(store.root, "plain", [], spec=plain, seconds=3.0)
    assert Rates(store).seconds([plain]) == pytest.approx(3.0)
    assert Rates(store).seconds([plain, added()]) is None
    mixed = {**plain, "alterations": [settled("alteration", "mixstyle", layers=["1"])]}
    assert Rates(store).seconds([mixed]) is None
    write_run(store.root, "added", [], spec=added(), seconds=30.0)
    assert Rates(store).seconds([plain, added(mu=0.7)]) == pytest.approx(33.0)
    assert Rates(store).seconds([added(update="periodic")]) is None


@pytest.mark.parametrize(("method", "stages"), [("fedavg", 1), ("ditto", 2)])
def test_evaluation_that_fills_the_memory_of_a_job_is_told(
    planned: Callable[..., Planned], method: str, stages: int
) -> None:
    """100,000 clients, 2 splits, 3 metrics, 100 of 200 rounds, 2 seeds."""
    study = planned(methods={method: None}, seeds=[0, 1])

    def told(**training: Any) -> tuple[int, int] | None:
        def edit(bundle: dict[str, Any]) -> None:
            for member in bundle["runs"]:
                member["spec"]["partition"]["clients"] = 100_000
                member["spec"]["training"] |= {"rounds": 200, "evaluate_every": 2, **training}

        study.change(method, edit)
        return large_metrics(Bundle.from_json(study.bundle(method), WHERE))

    rows = 100_000 * 2 * 3 * 100 * 2 * stages
    assert told() == (rows, rows * BYTES_PER_ROW // 2**20)
    assert told(evaluate_clients=100_001) == told()
    assert told(evaluate_clients=1000) is None
    assert told(evaluate_clients=None, evaluate_every=100) is None
