"""Clients whose samples have several inputs each: every method that takes any, over two of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from contract import worlds
from contract.short import short
from contract.test_modalities import prepared
from torch import Tensor, nn

from fl.api import trees
from fl.api.method import declared
from fl.api.network import Network
from fl.api.training import Training
from fl.base import fields, registry
from fl.base.errors import FedloomError, Where
from fl.data import materials
from fl.data.modality import Modality
from fl.engine import assembly, simulate
from fl.engine.arrays import Arrays, SeveralArrays, augmented
from fl.engine.assembly import Parts
from fl.engine.simulation import Simulation
from fl.plan import specs
from fl.train import costs

WHERE = Where("test")
KINDS = (Modality("slow", "x", (2, 4)), Modality("fast", "input_fast", (5,)))
TOKENS = (Modality("image", "x", (1, 4, 4)), Modality("text", "text", (4,), 7))
MODELS: dict[str, dict[str, Any]] = {
    "fusion": {"features": 4, "channels": [3], "kernel": 3, "hidden": 4},
    "image-text": {
        **{"features": 4, "channels": [2], "tokens": 7, "width": 3, "kernels": [1, 2]},
        "filters": 2,
    },
}
ENTRIES = {one.name: one for one in registry.entries("method")}
TAKES = [name for name, one in ENTRIES.items() if not declared(one.target).one_input]
PICKY = {
    "fedfa",
    "fedbn",
    "fedl2p",
    "finetune-l2p",
    "l2p",
}
"""Those that ask for a model with something that `fusion` does not have."""

every_method = pytest.mark.parametrize("method", TAKES)


def table(served: bool = False) -> tuple[pd.DataFrame, int]:
    """Who holds what, and of how many samples; ``served``: the server, too."""
    rows, first = [], 0
    for client, size in enumerate(worlds.SIZES):
        for split, count in {"train": size, "val": 3, "test": 6, "server": 3 * served}.items():
            rows += [(first + i, client, split) for i in range(count)]
            first += count
    return pd.DataFrame(rows, columns=["sample", "client", "split"]), first


def world(
    method: str,
    model: str = "fusion",
    seed: int = 5,
    values: Mapping[str, Any] | None = None,
    alterations: Sequence[tuple[str, Mapping[str, Any]]] = (),
    terms: Sequence[tuple[str, Mapping[str, Any]]] = (),
    **training: Any,
) -> Simulation:
    """A method over clients that all have two inputs."""
    found = ENTRIES[method]
    given = {**worlds.TRAINING, "local_epochs": 1, **training}
    about = registry.find("model", model, WHERE)
    spec = {
        "model": {"name": model, **about.parse(MODELS[model], WHERE)},
        "method": {
            "name": method,
            **found.parse({**short(method), **(values or {})}, WHERE),
        },
        "terms": [{"name": n, **registry.find("term", n, WHERE).parse(k, WHERE)} for n, k in terms],
        "alterations": [
            {"name": n, **registry.find("alteration", n, WHERE).parse(k, WHERE)}
            for n, k in alterations
        ],
        "training": Training.settle(fields.parse(Training, given, WHERE), WHERE),
        "seed": seed,
    }
    held, count = table(declared(found.target).server_data)
    draw = np.random.default_rng(2)
    y = draw.integers(0, 3, count)
    kinds = KINDS if model == "fusion" else TOKENS
    x = y[:, None, None] + draw.normal(size=(count, 2, 4))
    fast = draw.normal(size=(count, 5)) - y[:, None]
    if model == "fusion":
        norms = {"input_fast": {"scale": 1.0, "mean": 0.5, "sd": 2.0}}
        data = prepared(x, y, inputs={"input_fast": fast}, normalisations=norms)
    else:
        text = (2 * y[:, None] + draw.integers(0, 3, (count, 4))) % 7
        data = prepared(np.repeat(x, 2, 2).reshape(-1, 1, 4, 4), y, text=text)
    made = materials.entry_of("model", spec["model"])[1]
    parts = Parts(made, specs.composed(spec), modalities=kinds)
    return assembly.assemble(spec, parts, data, held, torch.device("cpu"))


def built(method: str, **given: Any) -> Simulation:
    """The world of a method; skipped where the method refuses the model itself."""
    try:
        return world(method, **given)
    except FedloomError:
        if method in PICKY:
            pytest.skip("asks for another model")
        raise


@every_method
def test_stacked_is_loop_to_rounding(method: str) -> None:
    simulation = built(method, rounds=1)
    loop, rows = worlds.run(simulation, "loop")
    stacked, stacked_rows = worlds.run(simulation, "stacked")
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10
    assert worlds.rows_agree(stacked_rows, rows, 1e-10)
    assert set(rows.loc[rows["split"] == "test", "client"]) == {0, 1, 2, 3}


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedsac", "fedfm", "moon", "perfedavg"])
def test_resumed_and_stacked_with_other_seeds_a_run_is_what_it_is_alone(method: str) -> None:
    runs = {seed: world(method, seed=seed) for seed in (5, 6)}
    together = worlds.together(runs)
    [second] = simulate.rounds(runs[5], together[0][5].state, 1, "stacked")
    alone, _ = worlds.run(runs[5], "stacked")
    assert worlds.distance(worlds.tree(second.state), worlds.tree(alone)) < 1e-12


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedrep", "finetune", "knn-per"])
def test_one_of_the_inputs_may_be_tokens(method: str) -> None:
    simulation = world(method, "image-text")
    loop, _ = worlds.run(simulation, "loop")
    stacked, _ = worlds.run(simulation, "stacked")
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10


def test_both_inputs_are_normalised_and_both_are_learnt_from() -> None:
    simulation = world("fedavg", participation=1.0)
    index = torch.arange(3)
    slow, fast = (simulation.arrays.inputs(index)[kind.name] for kind in KINDS)
    assert (slow.shape, fast.shape) == ((3, 2, 4), (3, 5))
    batch = simulation.arrays.batch(index, torch.ones(3))
    raw = (fast * 2 + 0.5).numpy()
    _, count = table()
    draw = np.random.default_rng(2)
    y = draw.integers(0, 3, count)
    draw.normal(size=(count, 2, 4))
    np.testing.assert_allclose(raw, (draw.normal(size=(count, 5)) - y[:, None])[:3], atol=1e-12)
    state, _ = worlds.run(simulation)
    params, buffers = state.server["params"], state.server["buffers"]
    begun = simulation.begin().server["params"]
    for name in ("slow.0.weight", "fast.0.weight"):
        assert not torch.allclose(params[name], begun[name])
    outputs = simulation.network.eval(params, buffers, batch["x"]).outputs
    for name in ("slow", "fast"):
        without = {**batch["x"], name: torch.zeros_like(batch["x"][name])}
        assert not torch.allclose(
            simulation.network.eval(params, buffers, without).outputs, outputs
        )


class Joined(nn.Module):
    """A model of one input that cuts it into two for a model of two."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        parts = {"slow": x[:, :8].unflatten(1, (2, 4)), "fast": x[:, 8:]}
        found: Tensor = self.whole(parts)
        return found


@pytest.mark.parametrize("backend", ["loop", "stacked"])
def test_two_inputs_train_as_one_that_the_model_cuts_in_two(backend: str) -> None:
    """The same numbers by the way of single inputs, which nothing here touches."""
    simulation = world("fedavg")
    _, count = table()
    inputs = simulation.arrays.inputs(torch.arange(count))
    joined = torch.cat([inputs["slow"].flatten(1), inputs["fast"]], dim=1)
    labels = simulation.arrays.labels(torch.arange(count))
    about = registry.find("model", "fusion", WHERE)
    model = about.make(about.parse(MODELS["fusion"], WHERE))
    shapes = {kind.name: kind.shape for kind in KINDS}
    network = Network(lambda: Joined(model.build(shapes, 3)), torch.float64)
    arrays = Arrays(joined.numpy(), labels.numpy(), worlds_identity(), dtype=torch.float64)
    plain = assembly._simulation(
        Parts(None, specs.composed({"method": {"name": "fedavg"}, "terms": []})),
        *(network, simulation.training, arrays, simulation.client_data, 3, 5),
    )
    state, rows = worlds.run(simulation, backend)
    expected, plain_rows = worlds.run(plain, backend)
    for name, leaf in state.server["params"].items():
        other = expected.server["params"][f"whole.{name}"]
        torch.testing.assert_close(leaf, other, rtol=0, atol=1e-12)
    assert worlds.rows_agree(rows, plain_rows, 1e-12)


def worlds_identity() -> dict[str, float]:
    return {"scale": 1.0, "mean": 0.0, "sd": 1.0}


def test_what_alters_inputs_alters_each_of_them() -> None:
    plain = world("fedavg", rounds=1)
    for name, keys in {"mixup": {}, "m-mixup": {"layers": []}}.items():
        altered = world("fedavg", rounds=1, alterations=[(name, keys)])
        loop, _ = worlds.run(altered, "loop")
        stacked, _ = worlds.run(altered, "stacked")
        assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10
        assert worlds.distance(loop.server, worlds.run(plain)[0].server) > 1e-4


def test_terms_see_features_of_what_both_inputs_come_to() -> None:
    terms = [("cosine", {"layers": ["classifier"], "mu": 0.5})]
    state, _ = worlds.run(world("fedavg", terms=terms))
    assert worlds.distance(state.server, worlds.run(world("fedavg"))[0].server) > 1e-6


def test_costs_and_train_on_some() -> None:
    simulation = world("fedavg")
    found = costs.measure(simulation, simulation.begin())
    assert found.flops > 0
    assert found.bytes_up == trees.nbytes(simulation.begin().server)


def test_images_alone_are_augmented() -> None:
    draw = np.random.default_rng(0)
    image = Modality("image", "x", (3, 8, 8))
    kinds = (image, Modality("series", "input_series", (2, 8)), Modality("text", "text", (4,), 5))
    assert [*augmented(kinds, "crop-flip").values()] == ["crop-flip", "none", "none"]
    parts = {
        kind.name: Arrays(
            draw.normal(size=(6, *kind.shape)), np.zeros(6), None, augmentation=chosen
        )
        for kind, chosen in augmented(kinds, "crop-flip").items()
    }
    arrays, index = SeveralArrays(parts), torch.arange(6)
    assert arrays.random
    assert arrays.shape == ()
    plain, moved = arrays.inputs(index), arrays.inputs(index, torch.arange(6))
    assert not torch.equal(plain["image"], moved["image"])
    assert torch.equal(plain["series"], moved["series"])


def test_a_network_that_draws_at_random_is_probed_with_all_inputs() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.out = nn.Dropout(0.5), nn.Linear(5, 3)

        def forward(self, x: Mapping[str, Tensor]) -> Tensor:
            found: Tensor = self.out(self.drop(x["fast"]) + x["slow"].sum((1, 2))[:, None])
            return found

    network = Network(Dropping)
    network.probe({"slow": torch.zeros(1, 2, 4), "fast": torch.zeros(1, 5)})
    assert network.random


def test_a_method_of_one_input_says_so() -> None:
    for name in ("vhl", "fedmix", "fedlgd", "fedrobust", "fedharmo", "warm-up"):
        assert name not in TAKES


def test_classifiers_of_their_own_are_for_clients_of_one_input_each() -> None:
    about = registry.find("model", "fusion", WHERE)
    values = about.parse({**MODELS["fusion"], "classifier": "own"}, WHERE)
    whole = about.make(values).build({"fast": (5,)}, 3)
    with pytest.raises(FedloomError, match="classifier: is own, but clients hold all inputs"):
        whole({"fast": torch.zeros(1, 5)})
