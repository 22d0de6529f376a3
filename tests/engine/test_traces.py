"""Traces of every evaluated round, on their way into the store and out of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import planning
import pytest
import shelving
import torch
from planning import Planned

from fl.store import import_export, run_check
from fl.store.store import Store

Plan = Callable[..., Planned]


def test_a_resumed_run_has_the_traces_of_an_undisturbed_one(planned: Plan) -> None:
    study = planned(
        seeds=[0, 1],
        methods={"pfedgraph": None, "cfl": {"after": 1}, "local": None},
        training={"rounds": 6, "batch_size": 8, "lr": 0.05, "participation": 0.75,
                  "evaluate_every": 2},
    )  # fmt: skip
    for label in ("pfedgraph", "cfl", "local"):
        assert study.train(label, "undisturbed") == 0
        with planning.signalled(after=5):
            assert study.train(label) == 75
        assert study.train(label) == 0
        for run in study.runs(label):
            assert study.files(run) == study.files(run, "undisturbed")
    store = study.store()
    assert [store.traces(run) for run in study.runs("local")] == [{}, {}]
    assert "traces.safetensors" not in study.files(study.runs("local")[0])
    for run in study.runs("cfl"):
        found = store.traces(run)
        assert set(found) == {"round", "cluster"}
        assert found["cluster"].shape == (3, 4)
    for run in study.runs("pfedgraph"):
        found = store.traces(run)
        assert found["round"].tolist() == [2, 4, 6]
        graph = found["cooperation"]
        assert graph.shape == (3, 4, 4)
        for one in graph:
            took_part = one.sum(dim=1) > 0
            assert took_part.sum() == 3, "three of four clients a round"
            assert torch.allclose(one[took_part].sum(dim=1), torch.ones(3))
            assert not one[:, ~took_part].any(), "nobody has a share in who is not there"


def with_traces(store: Store, traces: dict[str, Any]) -> str:
    """A run of 50 rounds that keeps these traces."""
    run = shelving.add(store)
    record, rows = store.record(run), store.metrics(run)
    del record["files"]
    store.remove(run)
    with store.open(run) as work:
        assert work is not None
        work.finish(record, rows, traces=traces)
    return run


TRACES = {"round": torch.tensor([10, 50]), "cluster": torch.tensor([[0, 0], [0, 1]])}


@pytest.mark.parametrize("name", ["folder", "runs.tar"])
def test_traces_go_along_from_store_to_store(tmp_path: Path, name: str) -> None:
    source, target = Store(tmp_path / "source"), Store(tmp_path / "target")
    run = with_traces(source, TRACES)
    assert run_check.find_problems(source, run) == []
    if name == "folder":
        assert import_export.copy_run(run, source, target).outcome == import_export.NEW
    else:
        assert [one.outcome for one in import_export.write_tar([run], source, tmp_path / name)] == [
            "new"
        ]
        with import_export.open_source(tmp_path / name) as unpacked:
            assert import_export.copy_run(run, unpacked, target).outcome == import_export.NEW
    back = target.traces(run)
    assert all(torch.equal(back[key], TRACES[key]) for key in TRACES)
    path = target.folder(run) / "traces.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    [problem] = run_check.find_problems(target, run)
    assert "SHA-256" in problem


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"round": torch.tensor([50, 10])}, "round is [50, 10]"),
        ({"round": torch.tensor([10, 51])}, "from 1 to 50"),
        ({"cluster": torch.zeros(3, 2)}, "'cluster' is of shape [3, 2]"),
    ],
)
def test_traces_that_no_run_writes_are_named(tmp_path: Path, changes: Any, said: str) -> None:
    store = Store(tmp_path)
    [problem] = run_check.find_problems(store, with_traces(store, TRACES | changes))
    assert "traces.safetensors" in problem
    assert said in problem
