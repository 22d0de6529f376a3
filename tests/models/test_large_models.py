"""AlexNet, ResNet-50, DenseNet-100, Swin-T and their normalisation; most are only built."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fl.api import trees
from fl.api.network import Network
from fl.models.alexnet import AlexNet
from fl.models.densenet100 import DenseNet100
from fl.models.digits_cnn import DigitsCNN
from fl.models.logistic import Logistic
from fl.models.mlp import MLP
from fl.models.resnet18 import ResNet18
from fl.models.resnet50 import ResNet50
from fl.models.swin_t import SwinT
from fl.parts.normalisation import Norm, normalisation

CIFAR, LARGE = (3, 32, 32), (3, 256, 256)


def count(model: Any, shape: tuple[int, ...], classes: int) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in model.build(shape, classes).parameters())


def passed(model: Any, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The shapes of what the blocks give for two images in training mode, and of the outputs."""
    network, seen = Network(lambda: model.build(shape, 7)), dict[str, tuple[int, ...]]()
    assert network.blocks

    def note(name: str) -> Any:
        return lambda x: seen.__setitem__(name, tuple(x.shape)) or x

    network.alter(network.blocks)
    variables = network.init(0)
    output = network.train(
        variables["params"],
        variables["buffers"],
        torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)),
        key=torch.arange(2),
        alter={name: note(name) for name in network.blocks},
    )
    assert output.outputs.shape == (2, 7) and output.outputs.isfinite().all()
    assert list(seen) == list(network.blocks), "each once, in this order"
    return {**seen, "features": tuple(output.features.shape)}


def test_alexnet_parameters_by_hand() -> None:
    """FedFA's, of 256 x 256: convolutions with biases, normalised; 9,216 inputs of 1,024 units."""
    sizes = [(3, 64, 11), (64, 192, 5), (192, 384, 3), (384, 256, 3), (256, 256, 3)]
    body = sum(after * (before * k * k + 1) + 2 * after for before, after, k in sizes)
    hidden = sum(1024 * (before + 1) + 2 * 1024 for before in (9216, 1024))
    assert count(AlexNet(), LARGE, 10) == body + hidden + 10 * 1025
    for norm in ("group", "layer"):
        assert count(AlexNet(norm=norm), LARGE, 10) == body + hidden + 10 * 1025


def test_alexnet_blocks() -> None:
    narrow = AlexNet(channels=(4, 6, 8, 6, 6), hidden=5)
    found = passed(narrow, (3, 128, 128))
    # (128 + 4 - 11) / 4 + 1 = 31 -> 15 -> 7 -> 7 -> 7 -> 3
    assert [found[name] for name in ("pool1", "pool2", "relu3", "relu4", "pool5")] == [
        (2, 4, 15, 15),
        (2, 6, 7, 7),
        (2, 8, 7, 7),
        (2, 6, 7, 7),
        (2, 6, 3, 3),
    ]
    small = AlexNet(stem="cifar", channels=(4, 6, 8, 6, 6), hidden=5)
    assert passed(small, (1, 16, 16))["pool5"] == (2, 6, 2, 2)
    assert passed(narrow, (3, 63, 63))["pool5"] == (2, 6, 1, 1)
    with pytest.raises(ValueError, match="at least 63 x 63"):
        narrow.build((3, 62, 70), 10)
    with pytest.raises(ValueError, match="of five blocks, not 2"):
        AlexNet(channels=(4, 4)).build(LARGE, 10)


def test_resnet50_has_the_published_size() -> None:
    assert count(ResNet50("imagenet"), (3, 224, 224), 1000) == 25_557_032
    assert passed(ResNet50(), (3, 16, 16))["layer4"] == (2, 2048, 2, 2)


def test_densenet100_has_the_published_size() -> None:
    """Huang et al. 2017, table 2: 0.8 million parameters."""
    assert count(DenseNet100(), CIFAR, 10) == 769_162
    found = passed(DenseNet100(), (3, 16, 16))
    assert found["features.pool0"] == (2, 24, 16, 16)
    assert found["features.denseblock3"][2:] == (4, 4) and found["features"] == (2, 342)
    with torch.device("meta"):
        large = DenseNet100("imagenet").build((1, 224, 224), 10)
        assert (
            large.features.pool0(large.features.conv0(torch.empty(1, 1, 224, 224))).shape[-1] == 56
        )


@pytest.mark.parametrize(
    ("stem", "sides"), [("imagenet", (8, 8, 4, 2, 1)), ("cifar", (16, 16, 8, 4, 2))]
)
def test_swin_t_has_the_published_size_and_gives_images(stem: Any, sides: tuple[int, ...]) -> None:
    if stem == "imagenet":
        assert count(SwinT(), (3, 224, 224), 1000) == 28_288_354
    found = passed(SwinT(stem), CIFAR)
    widths = (96, 96, 192, 384, 768)
    expected = [(2, width, side, side) for width, side in zip(widths, sides, strict=True)]
    assert [found[f"block{number}"] for number in range(1, 6)] == expected
    assert found["features"] == (2, 768)


def test_swin_t_is_torchvisions() -> None:
    from fl.pytorch.vision import torchvision

    theirs, ours = torchvision.models.swin_t(num_classes=5).eval(), SwinT().build(CIFAR, 5).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(1, *CIFAR, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))
    with pytest.raises(ValueError, match="weights are of patches of 4x4"):
        SwinT("cifar", weights="imagenet").build(CIFAR, 5)


@pytest.mark.parametrize(("norm", "axes"), [("group", (2, 3, 4)), ("layer", (1, 2, 3, 4))])
def test_group_and_layer_normalisation_by_hand(norm: Norm, axes: tuple[int, ...]) -> None:
    """Of 64 channels groups are of two, 7 channels are one group; every sample alone."""
    layer = normalisation(norm, 64)
    x = 3 + torch.randn(5, 64, 4, 4, generator=torch.Generator().manual_seed(0))
    apart = x.reshape(5, 32, 2, 4, 4)
    mean = apart.mean(axes, keepdim=True)
    sd = (apart.var(axes, correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(layer(x), ((apart - mean) / sd).reshape(x.shape))
    torch.testing.assert_close(layer(x)[1:2], layer(x[1:2]))
    assert normalisation("group", 7).num_groups == 1
    vectors = normalisation("layer", 6, dims=0)(x[:, :6, 0, 0])
    torch.testing.assert_close(vectors, nn.LayerNorm(6)(x[:, :6, 0, 0]))


@pytest.mark.parametrize("make", [ResNet18, AlexNet])
def test_batch_normalisation_is_there_under_its_key_alone(make: Any) -> None:
    for norm in ("batch", "group", "layer"):
        with torch.device("meta"):
            network = make(norm=norm).build((3, 64, 64), 3)
        there = any(
            isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in network.modules()
        )
        assert there == (norm == "batch")
    if make is ResNet18:
        with pytest.raises(ValueError, match="norm is group, but weights"):
            ResNet18(norm="group", weights="imagenet").build(CIFAR, 3)


def test_digits_cnn_parameters_by_hand() -> None:
    """FedBN's, of 28 x 28: three convolutions of 5 x 5, 128 x 7 x 7 inputs of 2,048 units."""
    body = sum(after * (before * 25 + 3) for before, after in ((3, 64), (64, 64), (64, 128)))
    hidden = 2048 * (128 * 49 + 3) + 512 * (2048 + 3)
    assert count(DigitsCNN(), (3, 28, 28), 10) == body + hidden + 10 * 513
    assert passed(DigitsCNN(), (3, 12, 8))["relu3"] == (2, 128, 3, 2)


def test_a_perceptron_is_normalised_by_a_key() -> None:
    plain, normed = (count(MLP((8,), norm), (5,), 3) for norm in (None, "batch"))
    assert (plain, normed) == (8 * 6 + 3 * 9, 8 * 6 + 16 + 3 * 9)


def test_logistic_regression_is_one_layer() -> None:
    network = Network(lambda: Logistic(zero=True).build((1, 4, 4), 3))
    variables = network.init(0)
    assert [tuple(leaf.shape) for leaf in trees.leaves(variables["params"])] == [(3, 16), (3,)]
    assert all((leaf == 0).all() for leaf in trees.leaves(variables["params"]))
    assert not all((leaf == 0).all() for leaf in Logistic().build((1, 4, 4), 3).parameters())
