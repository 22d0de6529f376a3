"""Methods on a network with a frozen layer: equal in a stack, and in no state is that layer."""

from __future__ import annotations

import pytest
import worlds
from torch import nn

from fl.pytorch.construction import adapt

METHODS = [
    *("fedavg", "fedprox", "scaffold", "fednova", "ditto", "fedper", "fedrep", "fedala"),
    *("apfl", "perfedavg", "pfedme", "feddyn", "fedem", "fedcac", "apple", "elastic", "pfedla"),
]


@pytest.mark.parametrize("method", METHODS)
def test_a_frozen_layer_stays_and_belongs_to_no_client(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = worlds.module
    full_network = worlds.world(method, "cnn").network

    def frozen(model: str) -> nn.Module:
        module = build(model)
        first = next(layer for layer in module.modules() if isinstance(layer, nn.Conv2d))
        first.requires_grad_(False)
        return module

    monkeypatch.setattr(worlds, "module", frozen)
    simulation = worlds.world(method, "cnn")
    constant = set(full_network.names["params"]) - set(simulation.network.names["params"])
    assert constant
    loop, rows = worlds.run(simulation, "loop")
    stacked, stacked_rows = worlds.run(simulation, "stacked")
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10
    assert worlds.rows_agree(stacked_rows, rows, 1e-10)
    assert worlds.distance(worlds.tree(loop), worlds.tree(simulation.begin())) > 1e-3
    state_names = worlds.names(worlds.tree(loop))
    trained = tuple(simulation.network.names["params"])
    assert any(name.endswith(trained) for name in state_names)
    assert not any(
        name.endswith(tuple(f"/{weight}" for weight in constant)) for name in state_names
    )


LORA = {"adapter": {"lora": {"rank": 2, "alpha": 4.0}}}


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "ditto", "fedrep", "perfedavg"])
def test_low_rank_adapters_in_a_stack_equal_the_loop(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = worlds.module
    monkeypatch.setattr(worlds, "module", lambda model: adapt(build(model), LORA))
    simulation = worlds.world(method, "mlp")
    assert [*simulation.network.names["params"]] == ["1.down", "1.up", "3.weight", "3.bias"]
    loop, rows = worlds.run(simulation, "loop")
    stacked, stacked_rows = worlds.run(simulation, "stacked")
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10
    assert worlds.rows_agree(stacked_rows, rows, 1e-10)
    assert worlds.distance(worlds.tree(loop), worlds.tree(simulation.begin())) > 1e-3
