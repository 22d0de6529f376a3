"""torchvision must be importable beside whatever build of torch is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fl.base.errors import FedloomError
from fl.models.efficientnet_b0 import EfficientNetB0
from fl.models.resnet18 import ResNet18
from fl.pytorch.vision import torchvision

USE = """
from fl.pytorch import vision  # Declares what is missing.
import torch
from torchvision import datasets, models
from torchvision.transforms import v2

assert models.resnet18(num_classes=5)(torch.zeros(1, 3, 64, 64)).shape == (1, 5)
assert v2.RandomCrop(4)(torch.zeros(3, 8, 8)).shape == (3, 4, 4)
assert datasets.FakeData(size=2, image_size=(3, 8, 8))[0][0].size == (8, 8)
"""


def test_models_datasets_and_transforms_work() -> None:
    command = [sys.executable, "-c", USE]
    used = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert used.returncode == 0, used.stderr


def test_weights_are_loaded_from_a_file_or_the_cache_and_never_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    made = ResNet18(weights="imagenet")
    with pytest.raises(
        FedloomError, match=r"resnet18-\w+\.pth does not exist. Try: download https://\S+"
    ):
        made.build((3, 32, 32), 7)
    source = torchvision.models.resnet18()
    place = tmp_path / "hub" / "checkpoints"
    place.mkdir(parents=True)
    file = place / Path(torchvision.models.ResNet18_Weights.DEFAULT.url).name
    torch.save(source.state_dict(), file)
    for weights in ("imagenet", str(file)):
        built = ResNet18("imagenet", weights).build((3, 32, 32), 7)
        assert torch.equal(built.layer1[0].conv1.weight, source.layer1[0].conv1.weight)
        assert built.fc.weight.shape == (7, 512)
    other = tmp_path / "other.pth"
    torch.save({"weight": torch.zeros(1)}, other)
    for content in (other.read_bytes(), b"no weights"):
        other.write_bytes(content)
        with pytest.raises(FedloomError, match=r"other\.pth cannot be loaded into EfficientNet"):
            EfficientNetB0(str(other)).build((3, 32, 32), 7)
