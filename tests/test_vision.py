"""torchvision must be importable beside whatever build of torch is installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

USE = """
from fl import vision
import torch
from torchvision import datasets, models
from torchvision.transforms import v2

assert models.resnet18(num_classes=5)(torch.zeros(1, 3, 64, 64)).shape == (1, 5)
assert v2.RandomCrop(4)(torch.zeros(3, 8, 8)).shape == (3, 4, 4)
assert datasets.FakeData(size=2, image_size=(3, 8, 8))[0][0].size == (8, 8)
print("declared" if vision._declared else "untouched")
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_models_datasets_and_transforms_work_and_nothing_is_done_without_need():
    by_itself = run("import torchvision").returncode == 0
    used = run(USE)
    assert used.returncode == 0, used.stderr
    assert used.stdout.split() == ["untouched" if by_itself else "declared"]
