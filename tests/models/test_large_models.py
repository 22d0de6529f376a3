"""AlexNet, Swin-T, normalisation by a key, and logistic regression."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fl.api import trees
from fl.api.network import Network
from fl.blocks.norm_layers import Norm, norm_layer
from fl.models.alexnet import AlexNet
from fl.models.logistic import Logistic
from fl.models.swin_t import SwinT

CIFAR, LARGE = (3, 32, 32), (3, 256, 256)


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


def test_alexnet_blocks() -> None:
    narrow = AlexNet(channels=(4, 6, 8, 6, 6), hidden=5)
    sizes = passed(narrow, (3, 128, 128))
    # (128 + 4 - 11) / 4 + 1 = 31 -> 15 -> 7 -> 7 -> 7 -> 3
    assert [sizes[name] for name in ("pool1", "pool2", "relu3", "relu4", "pool5")] == [
        (2, 4, 15, 15),
        (2, 6, 7, 7),
        (2, 8, 7, 7),
        (2, 6, 7, 7),
        (2, 6, 3, 3),
    ]
    small = AlexNet(stem="cifar", channels=(4, 6, 8, 6, 6), hidden=5)
    assert passed(small, (1, 16, 16))["pool5"] == (2, 6, 2, 2)
    assert passed(narrow, (3, 63, 63))["pool5"] == (2, 6, 1, 1)


@pytest.mark.parametrize(
    ("stem", "sides"), [("imagenet", (8, 8, 4, 2, 1)), ("cifar", (16, 16, 8, 4, 2))]
)
def test_swin_t_gives_images(stem: Any, sides: tuple[int, ...]) -> None:
    sizes = passed(SwinT(stem), CIFAR)
    widths = (96, 96, 192, 384, 768)
    expected = [(2, width, side, side) for width, side in zip(widths, sides, strict=True)]
    assert [sizes[f"block{number}"] for number in range(1, 6)] == expected
    assert sizes["features"] == (2, 768)


def test_swin_t_is_torchvisions() -> None:
    from fl.pytorch.vision import torchvision

    theirs, ours = torchvision.models.swin_t(num_classes=5).eval(), SwinT().build(CIFAR, 5).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(1, *CIFAR, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize(("norm", "axes"), [("group", (2, 3, 4)), ("layer", (1, 2, 3, 4))])
def test_group_layer_and_instance_normalisation_by_hand(norm: Norm, axes: tuple[int, ...]) -> None:
    """Of 64 channels groups are of two, 7 channels are one group; every sample alone."""
    layer = norm_layer(norm, 64)
    x = 3 + torch.randn(5, 64, 4, 4, generator=torch.Generator().manual_seed(0))
    apart = x.reshape(5, 32, 2, 4, 4)
    mean = apart.mean(axes, keepdim=True)
    sd = (apart.var(axes, correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(layer(x), ((apart - mean) / sd).reshape(x.shape))
    torch.testing.assert_close(layer(x)[1:2], layer(x[1:2]))
    assert norm_layer("group", 7).num_groups == 1
    instance = nn.InstanceNorm2d(64)
    torch.testing.assert_close(norm_layer("instance", 64)(x), instance(x))
    vectors = norm_layer("layer", 6, dims=0)(x[:, :6, 0, 0])
    torch.testing.assert_close(vectors, nn.LayerNorm(6)(x[:, :6, 0, 0]))


def test_logistic_regression_is_one_layer() -> None:
    network = Network(lambda: Logistic(zero=True).build((1, 4, 4), 3))
    variables = network.init(0)
    assert [tuple(leaf.shape) for leaf in trees.leaves(variables["params"])] == [(3, 16), (3,)]
    assert all((leaf == 0).all() for leaf in trees.leaves(variables["params"]))
    assert not all((leaf == 0).all() for leaf in Logistic().build((1, 4, 4), 3).parameters())
