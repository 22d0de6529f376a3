"""Clients whose samples have several inputs each: every method that takes any, over two of them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import worlds
from golden import adapter
from golden import worlds as golden
from short import short
from torch import Tensor, nn

from fl.api.method import declaration_of
from fl.api.network import Network
from fl.base import registry
from fl.base.errors import FedloomError, Location
from fl.data.dataset import Modality
from fl.engine.run_setup import RunSetup
from fl.engine.sample_arrays import Arrays, SeveralArrays, augmentation_by_modality
from fl.engine.simulation import Simulation
from fl.plan.run_spec import RunSpec

WHERE = Location("test")
FUSION = {
    "name": "fusion",
    "features": 4,
    "channels": [3],
    "kernel": 3,
    "hidden": 4,
    "classifier": "shared",
}
ENTRIES = {entry.name: entry for entry in registry.components("method")}
PICKY = {"fedfa", "fedbn", "fedl2p", "finetune-l2p", "l2p"}
"""Methods that ask for a model with something that `fusion` does not have."""
TAKES = [
    name
    for name, entry in ENTRIES.items()
    if name not in PICKY and not declaration_of(entry.target).one_input
]


def world(
    method: str,
    data: str = "sensors",
    alteration: str | None = None,
    **training: Any,
) -> Simulation:
    """A method over clients that all have two inputs."""
    spec = {
        "data": data,
        "model": FUSION if data == "sensors" else golden.IMAGE_TEXT,
        "method": {"name": method, **short(method)},
        "alterations": [{"name": alteration}] if alteration else [],
        "training": {**worlds.TRAINING, "local_epochs": 1, **training},
        "server": worlds.SERVED * declaration_of(ENTRIES[method].target).needs_server_data,
    }
    table = golden.table(spec)
    return adapter.simulated(spec, golden.arrays(data, table), table)


@pytest.mark.parametrize("method", TAKES)
def test_stacked_is_loop_to_rounding(method: str) -> None:
    simulation = world(method, rounds=1)
    loop, rows = worlds.run(simulation, "loop")
    stacked, stacked_rows = worlds.run(simulation, "stacked")
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10
    assert worlds.rows_agree(stacked_rows, rows, 1e-10)
    assert set(rows.loc[rows["split"] == "test", "client"]) == set(range(len(golden.SIZES)))


def test_one_of_the_inputs_may_be_tokens() -> None:
    simulation = world("ditto", "two")
    loop, _ = worlds.run(simulation, "loop")
    stacked, _ = worlds.run(simulation, "stacked")
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10


class Joined(nn.Module):
    """A model of one input that cuts it into two for a model of two."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.whole({"acc": x[:, 0], "gyro": x[:, 1]})
        return outputs


def test_two_inputs_train_as_one_that_the_model_cuts_in_two() -> None:
    """The same numbers by the way of single inputs, which nothing here touches."""
    simulation = world("fedavg")
    index = torch.arange(sum(map(len, itertools.chain(*simulation.client_data.samples.values()))))
    inputs = simulation.arrays.inputs(index)
    joined = torch.stack([inputs["acc"], inputs["gyro"]], dim=1)
    labels = simulation.arrays.labels(index)
    _, model = registry.component_of("model", FUSION)
    shapes = {"acc": (2, 9), "gyro": (2, 9)}
    network = Network(lambda: Joined(model.build(shapes, 3)), torch.float64)
    arrays = Arrays(
        joined.numpy(), labels.numpy(), {"scale": 1.0, "mean": 0.0, "sd": 1.0}, dtype=torch.float64
    )
    plain = Simulation.of(
        RunSpec({"method": {"name": "fedavg"}, "terms": []}).method_components,
        RunSetup(network, simulation.training, arrays, simulation.client_data, 3),
        seed=5,
    )
    state, rows = worlds.run(simulation)
    expected, plain_rows = worlds.run(plain)
    for name, leaf in state.server["params"].items():
        other = expected.server["params"][f"whole.{name}"]
        torch.testing.assert_close(leaf, other, rtol=0, atol=1e-12)
    assert worlds.rows_agree(rows, plain_rows, 1e-12)


def test_what_alters_inputs_alters_each_of_them() -> None:
    plain = world("fedavg", rounds=1)
    altered = world("fedavg", rounds=1, alteration="mixup")
    loop, _ = worlds.run(altered, "loop")
    stacked, _ = worlds.run(altered, "stacked")
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10
    assert worlds.distance(loop.server, worlds.run(plain)[0].server) > 1e-4


def test_images_alone_are_augmented() -> None:
    draw = np.random.default_rng(0)
    image = Modality("image", "x", (3, 8, 8))
    kinds = (image, Modality("series", "input_series", (2, 8)), Modality("text", "text", (4,), 5))
    assert [*augmentation_by_modality(kinds, "crop-flip").values()] == ["crop-flip", "none", "none"]
    parts = {
        kind.name: Arrays(
            draw.normal(size=(6, *kind.shape)), np.zeros(6), None, augmentation=chosen
        )
        for kind, chosen in augmentation_by_modality(kinds, "crop-flip").items()
    }
    arrays, index = SeveralArrays(parts), torch.arange(6)
    assert arrays.random
    assert arrays.shape == ()
    plain, moved = arrays.inputs(index), arrays.inputs(index, torch.arange(6))
    assert not torch.equal(plain["image"], moved["image"])
    assert torch.equal(plain["series"], moved["series"])


def test_classifiers_of_their_own_are_for_clients_of_one_input_each() -> None:
    _, model = registry.component_of("model", {**FUSION, "classifier": "own"})
    whole = model.build({"fast": (5,)}, 3)
    with pytest.raises(FedloomError, match="classifier: is own, but clients hold all inputs"):
        whole({"fast": torch.zeros(1, 5)})
