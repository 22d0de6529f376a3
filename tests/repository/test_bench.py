"""The benchmarks measure what there is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from bench import (
    arithmetic,
    cooperation,
    evaluation,
    gpu,
    local_steps,
    population,
    whole_runs,
)
from bench.workloads import CLASSES, WORKLOADS, Workload
from fl.engine import engine
from fl.methods.ditto import Ditto
from fl.models.cnn import CNN
from fl.models.mlp import MLP

ROOT = Path(__file__).resolve().parents[2]

needs_a_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="no card here")


@pytest.mark.parametrize("name", WORKLOADS)
def test_fedloom_trains_the_network_that_others_are_held_to(name: str) -> None:
    work, model = WORKLOADS[name], local_steps.MODELS[name]()
    assert sum(w.numel() for w in model.parameters()) == work.weights
    assert model(torch.zeros(2, *work.shape)).shape == (2, CLASSES)
    x, y = work.draw()
    assert x.shape == (sum(work.sizes), *work.shape) and len(x) == len(y)
    assert len(work.sizes) == work.clients and max(work.sizes) == work.samples


def test_the_stack_by_hand_trains_what_the_stacked_backend_trains() -> None:
    work, model = WORKLOADS["W4"], local_steps.MODELS["W4"]
    run = local_steps.simulation(work, model, "cpu")
    state, plan = run.begin(), run.plan(1)
    start = state.server["params"]
    module = model()
    module.load_state_dict(dict(start))
    stack = local_steps.by_hand(work, module, run, steps=30)
    after, _ = engine.run_round(run.method, state, plan, "stacked")
    shares = torch.from_numpy(work.sizes / work.sizes.sum()).float()
    for (name, begun), own in zip(start.items(), stack, strict=True):
        mean = torch.tensordot(shares, own, dims=1)
        torch.testing.assert_close(after.server["params"][name], mean, rtol=0, atol=1e-6)
        assert (mean - begun).abs().max() > 1e-4


@pytest.mark.parametrize(("limit", "steps"), [(3, 3), (5, 5), (12, 10), (25, 25), (400, 25)])
def test_steps_of_several_epochs_are_whole_epochs(limit: int, steps: int) -> None:
    assert WORKLOADS["W3"].steps(limit) == steps


def test_every_way_to_compute_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (1, 8, 8)
    tiny = Workload("tiny", clients=2, samples=8, shape=shape, batch=4, epochs=1)
    monkeypatch.setitem(arithmetic.SIDES, "tiny", (tiny, lambda: CNN().build(shape, CLASSES)))
    times = arithmetic.measure("tiny", "cpu", "loop", steps=1, tries=1)
    assert list(times) == ["float32", "channels-last", "mixed", "mixed, channels-last"]
    assert all(seconds > 0 for seconds in times.values())


def test_workloads_need_neither_fedloom_nor_torch() -> None:
    code = "import sys, bench.workloads; sys.exit(bool({'fl', 'torch'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_others_are_measured_with_the_same_torch() -> None:
    locked = (ROOT / "requirements.lock").read_text().splitlines()
    peers = (ROOT / "bench" / "requirements-peers.txt").read_text().splitlines()
    [torch_version] = [line for line in peers if line.startswith("torch==")]
    assert torch_version in locked


def test_cooperation_is_measured_by_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooperation, "SAMPLES", 64)
    monkeypatch.setattr(cooperation, "BATCH", 2)
    found = cooperation.phases(clients=4, tries=1)
    assert next(iter(found)) == "local training"
    assert all(value > 0 for value in found.values())
    share = cooperation.share({"local training": 9.0, "angles": 0.75, "weights": 0.25})
    assert share == pytest.approx(0.1)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_a_card)])
def test_what_is_promised_of_a_card_is_checked(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "METHODS", ("fedavg",))
    bench = gpu.Bench(device, gpu.TINY)
    rows = [*bench.contract(), *bench.beside_cpu()]
    assert len(rows) == 4 and all("| holds: " in row for row in rows)
    monkeypatch.setattr(gpu, "LIMITS", {"float32": -1.0})
    assert "DOES NOT HOLD" in next(bench.contract())


def test_a_part_that_fails_on_a_card_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: gpu.Bench) -> Iterator[str]:
        raise ValueError("no such card")
        yield ""

    monkeypatch.setattr(gpu.Bench, "cifar", failing)
    monkeypatch.setattr(gpu.Bench, "resnet", lambda self: iter(["a row"]))
    found = list(gpu.table(gpu.Bench("cpu", gpu.TINY), only=("cifar", "resnet")))
    assert found == ["cifar | ValueError: no such card", "a row"]
    late = list(gpu.table(gpu.Bench("cpu", gpu.TINY), minutes=0.0, only=("cifar",)))
    assert late == ["cifar | left out: 0 minutes are over"]


def test_a_folder_without_pfllib_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(whole_runs, "planned", lambda *_: [])
    monkeypatch.setattr(sys, "argv", ["whole_runs", "--pfllib", str(tmp_path)])
    whole_runs.main()
    assert "has no system/main.py" in capsys.readouterr().out
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "main.py").touch()
    whole_runs.main()
    assert "has no system/main.py" not in capsys.readouterr().out


def test_pfllib_gets_the_samples_of_every_client(tmp_path: Path) -> None:
    partition = pd.DataFrame(
        {
            "sample": [2, 0, 3, 1],
            "client": [0, 0, 1, 1],
            "split": ["train", "train", "test", "train"],
        }
    )
    (tmp_path / "results" / "partitions" / "p").mkdir(parents=True)
    partition.to_parquet(tmp_path / "results" / "partitions" / "p" / "partition.parquet")
    prepared = tmp_path / "data" / "prepared" / "digits"
    prepared.mkdir(parents=True)
    np.save(prepared / "x.npy", np.arange(8, dtype=np.uint8).reshape(4, 2))
    np.save(prepared / "y.npy", np.arange(4))
    about = {"normalisation": {"scale": 0.5, "mean": 1.0, "sd": 2.0}}
    (prepared / "dataset.json").write_text(json.dumps(about))
    whole_runs.write_for_peer(tmp_path)
    folder = tmp_path / "dataset" / "MNIST"
    found = np.load(folder / "train" / "0.npz", allow_pickle=True)["data"].tolist()
    assert found["y"].tolist() == [0, 2]
    np.testing.assert_allclose(found["x"], [[-0.5, -0.25], [0.5, 0.75]])
    assert sorted(path.name for path in folder.glob("t*/*")) == ["0.npz", "1.npz", "1.npz"]


def test_an_evaluation_is_measured_beside_a_round() -> None:
    run = evaluation.simulation(Ditto, lambda: MLP((4,)).build((3,), CLASSES), [6, 9], (3,), 4, 1)
    assert [len(own) for own in run.held.samples["test"]] == [2, 3]
    rounds, scores = evaluation.measure(run, ["loop", "stacked"], 1)
    assert set(rounds) == {"loop", "stacked"}
    assert all(0 < seconds < float("inf") for seconds in (*rounds.values(), scores))


def test_rounds_of_many_clients_are_measured() -> None:
    case = population.Case("SCAFFOLD", clients=40, samples=8, taking=3, rounds=4, every=2)
    found = population.measure(case)
    assert 3 < found["took part"] <= 12
    assert found["seconds"] > 0 < found["memory"]
