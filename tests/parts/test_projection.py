"""The projection head that models take before their classifier."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fl.api.network import Network
from fl.base import registry
from fl.base.errors import Where

SHAPES = {"lenet": (3, 16, 16), "cnn": (1, 8, 8), "resnet18": (3, 8, 8)}


def built(name: str, projection: int | None) -> Network:
    entry = registry.find("model", name, Where("test"))
    model = entry.make(entry.parse({"projection": projection}, Where("test")))
    return Network(lambda: model.build(SHAPES[name], 5))


@pytest.mark.parametrize("name", SHAPES)
def test_features_are_what_the_head_gives_and_the_rest_is_as_before(name: str) -> None:
    plain, projected = built(name, None), built(name, 7)
    variables, x = projected.init(0), torch.ones(2, *SHAPES[name])
    seen = projected.eval(variables["params"], variables["buffers"], x)
    assert seen.features.shape == (2, 7)
    assert seen.outputs.shape == (2, 5)
    before = plain.init(0)
    width = plain.eval(before["params"], before["buffers"], x).features.shape[1]
    added = [p.numel() for p in variables["params"].values()]
    there = [p.numel() for p in before["params"].values()]
    assert sum(added) - sum(there) == width * width + width + width * 7 + 7 + 7 * 5 - width * 5
    head = [variables["params"][n] for n in projected.names["params"] if n in projected.head]
    assert isinstance(nn.functional.linear(seen.features, *head), torch.Tensor)
    torch.testing.assert_close(nn.functional.linear(seen.features, *head), seen.outputs)
