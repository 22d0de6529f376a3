"""The benchmarks measure what there is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench import local_steps, partitions
from bench.workloads import CLASSES, WORKLOADS
from fl import registry

ROOT = Path(__file__).resolve().parents[1]


def test_every_scheme_is_measured_and_makes_as_many_clients_as_asked() -> None:
    found = partitions.calls(samples=3_000, clients=50)
    names = {text.partition("(")[0].replace("_", "-") for text in found}
    assert names == set(registry.names("partition scheme")) - {"file"}
    for text, call in found.items():
        assert call()["client"].nunique() == 50, text


@pytest.mark.parametrize("name", WORKLOADS)
def test_fedloom_trains_the_network_that_others_are_held_to(name: str) -> None:
    work, model = WORKLOADS[name], local_steps.MODELS[name]()
    assert sum(w.numel() for w in model.parameters()) == work.weights
    assert model(torch.zeros(2, *work.shape)).shape == (2, CLASSES)
    x, y = work.draw()
    assert x.shape == (work.clients * work.samples, *work.shape) and len(x) == len(y)


@pytest.mark.parametrize(("limit", "steps"), [(3, 3), (5, 5), (12, 10), (25, 25), (400, 25)])
def test_steps_of_several_epochs_are_whole_epochs(limit: int, steps: int) -> None:
    assert WORKLOADS["W3"].steps(limit) == steps


def test_workloads_need_neither_fedloom_nor_torch() -> None:
    code = "import sys, bench.workloads; sys.exit(bool({'fl', 'torch'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_others_are_measured_with_the_same_torch() -> None:
    locked = (ROOT / "requirements.lock").read_text().splitlines()
    peers = (ROOT / "bench" / "requirements-peers.txt").read_text().splitlines()
    [torch_version] = [line for line in peers if line.startswith("torch==")]
    assert torch_version in locked
