"""Which weights of a model are trained, and low-rank adapters in their place."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fl.api import trees
from fl.api.network import Network
from fl.base.errors import ConfigError, FedloomError, Location
from fl.base.registry import find
from fl.pytorch.construction import LoraLinear, adapt, check_head

VIT = {"dim": 16, "depth": 1, "heads": 2}
LORA = {"adapter": {"lora": {"rank": 2}}}
IMAGES = torch.arange(4 * 64.0).sin().reshape(4, 1, 8, 8)


def built_network(model: str, keys: Any) -> Network:
    component = find("model", model, Location("test"))
    values = component.parse(keys, Location("test"))
    instance = component.instantiate(values)
    network = Network(lambda: adapt(instance.build((1, 8, 8), 3), values))
    network.probe(IMAGES)
    return network


def outputs(network: Network, variables: Any) -> torch.Tensor:
    return network.eval(variables["params"], variables["buffers"], IMAGES).outputs


def test_weights_that_no_pattern_matches_are_frozen() -> None:
    network = built_network("cnn", {"trainable": ["9.*", "1.weight"]})
    assert network.names["params"] == ["1.weight", "9.weight", "9.bias"]
    # Running statistics of frozen layers are buffers as before.
    assert {"1.running_mean", "5.running_mean"} <= {*network.names["buffers"]}


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"trainable": ["10.*"]}, "trainable: '10.*' matches no weight of the model. Allowed: 0.w"),
        ({"adapter": {"lora": {"layers": ["9"]}}}, "'9' matches no linear layer before the head"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused(keys: Any, message: str) -> None:
    with pytest.raises(FedloomError) as error:
        built_network("cnn", keys)
    assert message in str(error.value)


def test_adapters_start_as_the_plain_model_and_send_less() -> None:
    plain, adapted = built_network("vit", VIT), built_network("vit", {**VIT, **LORA})
    first, variables = plain.init(0), adapted.init(0)
    assert torch.equal(outputs(adapted, variables), outputs(plain, first))
    assert trees.nbytes(variables["params"]) < trees.nbytes(first["params"]) / 4
    assert adapted.head_names == plain.head_names == ("classifier",)
    for name in ("layers.0.linear1.up", "layers.0.self_attn.out_proj.up"):
        weight = variables["params"][name]
        changed = {**variables["params"], name: weight + torch.rand(weight.shape)}
        moved = outputs(adapted, {**variables, "params": changed})
        assert not torch.allclose(moved, outputs(plain, first))


def test_the_keys_of_every_model_are_in_a_spec_only_if_they_are_set() -> None:
    component, location = find("model", "cnn", Location("test")), Location("test")
    assert {*component.parse({}, location)} == {"channels", "projection"}
    assert component.parse({"trainable": ["0.*"]}, location)["trainable"] == ("0.*",)
    values = component.parse({"adapter": {"lora": {"rank": 4}}}, location)
    assert values["adapter"] == {"lora": {"rank": 4, "alpha": 16.0, "layers": ("*",)}}
    with pytest.raises(ConfigError, match="did you mean 'trainable'"):
        component.parse({"trainble": ["0.*"]}, location)
    with pytest.raises(ConfigError, match="rank: is 0"):
        component.parse({"adapter": {"lora": {"rank": 0}}}, location)


class HeadFirst(torch.nn.Module):
    """A network whose head is registered before its body."""

    head_layer: str

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = torch.nn.Linear(5, 3), torch.nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x.flatten(1)).relu())


def test_a_head_that_was_adapted_in_place_of_the_body_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Network(lambda: adapt(HeadFirst(), LORA))
    network.probe(IMAGES)
    with pytest.raises(FedloomError, match="head makes the outputs, but was not registered last"):
        check_head(network.layers(LoraLinear), network.head_names)
    monkeypatch.setattr(HeadFirst, "head_layer", "head", raising=False)
    network = Network(lambda: adapt(HeadFirst(), LORA))
    network.probe(IMAGES)
    check_head(network.layers(LoraLinear), network.head_names)
    assert network.layers(LoraLinear) == ["body"]


class Tied(torch.nn.Module):
    """Layers ``e`` and ``f`` that share a matrix, layer ``g`` that is also ``h``, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.f, self.g = (torch.nn.Linear(4, 4) for _ in "efg")
        self.f.weight, self.h = self.e.weight, self.g
        self.head = torch.nn.Linear(4, 2)


def test_a_weight_that_layers_share_is_trained_by_each_of_its_names() -> None:
    for pattern, names in [
        ("f.*", {"e.weight", "f.bias"}),
        ("e.*", {"e.weight", "e.bias"}),
        ("h.*", {"g.weight", "g.bias"}),
    ]:
        module = adapt(Tied(), {"trainable": [pattern]})
        trained = {name for name, weight in module.named_parameters() if weight.requires_grad}
        assert trained == names


@pytest.mark.parametrize(
    ("layer", "names"),
    [("e", ("e.weight", "f.weight")), ("f", ("f.weight", "e.weight")), ("h", ("h.w", "g.w"))],
)
def test_a_layer_that_shares_a_weight_is_not_adapted(layer: str, names: tuple[str, ...]) -> None:
    with pytest.raises(FedloomError) as error:
        adapt(Tied(), {"adapter": {"lora": {"layers": [layer], "rank": 2}}})
    assert all(name in str(error.value) for name in names)


@pytest.mark.parametrize(("rank", "is_right"), [(3, True), (4, False)])
def test_a_rank_is_at_most_the_smaller_side_of_each_matrix(rank: int, is_right: bool) -> None:
    layers = [torch.nn.Linear(5, 5), torch.nn.Linear(5, 3), torch.nn.Linear(3, 2)]
    keys = {"adapter": {"lora": {"rank": rank}}}
    if is_right:
        adapt(torch.nn.Sequential(*layers), keys)
    else:
        with pytest.raises(FedloomError, match=r"rank: is 4, .* layer 1 .*Allowed: 1 to 3"):
            adapt(torch.nn.Sequential(*layers), keys)
