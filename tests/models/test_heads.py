"""The head of a model: the layer that makes the outputs, wherever it was declared."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fl.api import trees
from fl.api.network import Network
from fl.base import registry
from fl.base.errors import FedloomError, Location

IMAGES, TEXTS = (3, 32, 32), (12,)
TOKEN_MODELS = ("lstm", "matrix-factorisation", "neural-lm", "text-cnn", "text-transformer")
FROM_FILES = {"timm", "transformers"}
SHAPES = {
    "alexnet": (3, 64, 64),
    "conv1d": (6, 100),
    "fusion": {"vector": (6,), "series": (2, 8), "image": (1, 8, 8)},
    "image-text": {"image": (3, 16, 16), "text": (2, 6)},
    "swin-t": (3, 64, 64),
    **dict.fromkeys(TOKEN_MODELS, TEXTS),
}


def inputs(name: str, shape: tuple[int, ...]) -> Tensor:
    is_text = name in TOKEN_MODELS or name == "text"
    return torch.zeros(2, *shape, dtype=torch.int64 if is_text else torch.float32)


@pytest.mark.parametrize("name", sorted({*registry.names("model")} - FROM_FILES))
def test_the_head_of_every_model_is_its_last_linear_layer(name: str) -> None:
    model = registry.find("model", name, Location("")).target()
    shape = SHAPES.get(name, IMAGES)
    network = Network(lambda: model.build(shape, 7))
    expected = network.layers(nn.Linear)[-1:]
    assert bool(expected) == (name != "unet")
    if isinstance(shape, dict):
        network.probe({key: inputs(key, own_shape) for key, own_shape in shape.items()})
    else:
        network.probe(inputs(name, shape))
    assert list(network.head_layers) == expected
    assert network.head == {
        weight for weight in network.names["params"] if weight.startswith(tuple(expected) or ("?",))
    }


class HeadFirst(nn.Module):
    """A model whose head is declared before its body, and one layer is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(5, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.body(x)))
        return torch.log_softmax(out, 1)


class Unused(HeadFirst):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(2, 2)


class Cosine(nn.Module):
    """A classifier that is no linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 5))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, nn.functional.normalize(self.weight))


class Scaled(nn.Module):
    """A model that scales what its head gives, changes it in place, and has a tuple inside."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.classifier, self.body = Cosine(), nn.LSTM(4, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.body(x[:, None])
        return self.classifier(states[:, -1]).mul_(self.scale)


class Named(HeadFirst):
    head_layer = "body"


class Misnamed(HeadFirst):
    head_layer = "boddy"


class Bare(nn.Module):
    """A model whose last weights belong to no layer of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = nn.Linear(4, 5), nn.Parameter(torch.randn(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) @ self.last
        return out


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)),
        nn.Conv2d(1, 4, 1),
        nn.ReLU(),
        nn.Conv2d(4, 3, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def normed() -> nn.Module:
    """A body and a head whose weights are computed from others."""
    norm = nn.utils.parametrizations.weight_norm
    return nn.Sequential(norm(nn.Linear(4, 5)), nn.ReLU(), norm(nn.Linear(5, 3)))


X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("build", "layers", "width"),
    [
        (HeadFirst, ("head",), 5),
        (Unused, ("head",), 5),
        (Scaled, ("classifier",), 5),
        (Named, ("body",), 4),
        (convolutional, ("3",), 4),
        (normed, ("2",), 5),
        (lambda: nn.Sequential(HeadFirst(), nn.BatchNorm1d(3)), ("0.head",), 5),
    ],
)
def test_the_head_is_the_layer_that_makes_the_outputs(
    build: Callable[[], nn.Module], layers: tuple[str, ...], width: int
) -> None:
    network = Network(build)
    early_view = network.view()
    early_view.tap([next(name for name, _ in network._module.named_modules() if name)])
    network.probe(X)
    variables = network.init(0)
    for each in (network, early_view, network.view()):
        assert each.head_layers == layers
        assert each.head == {
            name for name in network.names["params"] if name.startswith(f"{layers[0]}.")
        }
        output = each.eval(variables["params"], variables["buffers"], X)
        assert output.features.shape[1] == width


def test_weights_of_no_layer_can_be_the_head() -> None:
    network = Network(Bare)
    network.probe(X)
    assert (network.head, network.head_layers) == ({"last"}, ())


def test_a_head_that_does_not_exist_is_refused() -> None:
    with pytest.raises(FedloomError, match=r"head_layer: the model has no layer 'boddy'. Allowed:"):
        Network(Misnamed)


@pytest.mark.parametrize("name", ["0", "2", "5"])
def test_a_stack_of_a_sequence_has_the_features_of_the_head(name: str) -> None:
    """Its layers are called at once, and the head need not be the last linear layer."""

    def build() -> nn.Module:
        layers = [nn.Conv2d(1, 4, 1), nn.ReLU(), nn.Conv2d(4, 3, 1), nn.AdaptiveAvgPool2d(1)]
        module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(3, 3))
        module.head_layer = name  # type: ignore[assignment]
        return module

    network = Network(build)
    assert network.is_sequence and network.head_layers == (name,)
    stack, images = trees.stack([network.init(seed) for seed in (0, 1)]), X.reshape(6, 1, 2, 2)
    stacked = trees.vmap(
        lambda variables, x: {"features": network.eval(variables["params"], {}, x["x"]).features},
        (0, 0),
    )(stack, {"x": torch.stack([images, images + 1])})["features"]
    for row in range(2):
        alone = network.eval(trees.take(stack, row)["params"], {}, images + row).features
        torch.testing.assert_close(stacked[row], alone)
