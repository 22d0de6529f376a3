"""Training on virtual images of another entry, and on some real ones: in plan and in store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import worlds
from planning import Planned

from fl.api.method import REAL
from fl.base.errors import ConfigError, FedloomError
from fl.blocks import local_images
from fl.engine import assembly, engine

HELD = [{"dirichlet": {"clients": 3, "alpha": 5.0, "min_samples": 60, "min_per_class": 4}}]
METHODS: dict[str, Any] = {
    "warm-up": {"images": 2, "steps": 3, "real": 8, "rounds": 2},
    "fedavg": {"train_on": "warm-up"},
    "few": {"method": "fedavg", "train_on": 2},
    "all": {"method": "fedavg"},
    "fedlgd": {
        **{"train_on": "warm-up", "warmup": 0, "initial": "real", "images": 2},
        **{"global_images": 2, "every": 2, "real": 4, "client_steps": 1, "server_steps": 1},
    },
}
STUDY: dict[str, Any] = {
    **{"datasets": ["digits"], "models": [{"convnet": {"width": 4}}], "partitions": HELD},
    **{"seeds": [3, 4], "training": {"rounds": 2, "batch_size": 8, "lr": 0.05}},
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    import planning

    found = planning.make(tmp_path_factory.mktemp("train-on"), **STUDY, methods=METHODS)
    for label in METHODS:
        assert found.train(label) == 0
    return found


def test_images_are_made_once_and_name_the_runs_on_them(study: Planned) -> None:
    [maker] = study.bundle("warm-up")["runs"]
    assert maker["spec"]["seed"] == 3
    members = study.bundle("fedavg")["runs"]
    assert [one["spec"]["seed"] for one in members] == [3, 4]
    for one in members:
        assert one["start"] == one["spec"]["train_on"] == maker["run"]
        assert one["spec"]["start"] is None
    assert study.bundle("fedavg")["after"]
    assert study.bundle("few")["runs"][0]["spec"]["train_on"] == 2
    assert "train_on" not in study.bundle("all")["runs"][0]["spec"]
    names = {run for label in METHODS for run in study.runs(label)}
    assert len(names) == 1 + 2 * 4


def test_clients_train_on_as_many_images_and_are_tested_on_real_ones(study: Planned) -> None:
    store = study.store()
    [whole] = [store.metrics(run) for run in study.runs("all")[:1]]
    for label in ("fedavg", "few", "fedlgd"):
        rows = store.metrics(study.runs(label)[0])
        test = rows[rows["split"] == "test"]
        expected = whole[whole["split"] == "test"]
        assert test["n"].tolist() == expected["n"].tolist()
        if label != "fedlgd":
            assert set(rows.loc[rows["split"] == "train", "n"]) == {20}
    images = store.weights(study.runs("warm-up")[0])["personal"]["images"]
    assert images.shape == (3, 20, 1, 8, 8)
    kept = store.traces(study.runs("fedlgd")[0])["local"]
    by_class = images.reshape(3, 10, 2, 1, 8, 8)
    # FedLGD begins with these very images: before its first refresh they are what its clients have.
    for client in range(3):
        for c in range(10):
            assert any(kept[0, client, c].equal(one) for one in by_class[client, c])


def test_a_run_without_its_images_says_so(study: Planned) -> None:
    assert study.train("fedavg", "elsewhere") == 1


def world(**given: Any) -> Any:
    return worlds.world("fedavg", "cnn", sizes=(40, 30, 50, 40), participation=1.0, **given)


def test_virtual_images_come_after_the_samples_and_real_ones_stay_at_hand() -> None:
    simulation, draw = world(), torch.Generator().manual_seed(0)
    found = torch.randn(4, 6, 1, 4, 4, generator=draw, dtype=torch.float64)
    on = assembly.train_on_images(simulation, found)
    size = simulation.arrays.size
    for client in range(4):
        own = on.client_data.samples["train"][client]
        index = torch.from_numpy(own)
        assert own.tolist() == list(range(size + 6 * client, size + 6 * client + 6))
        assert on.arrays.inputs(index).equal(found[client])
        assert on.arrays.labels(index).tolist() == [0, 0, 1, 1, 2, 2]
        real = on.client_data.samples[REAL][client]
        assert real.tolist() == simulation.client_data.samples["train"][client].tolist()
    mixed = torch.tensor([[3, size + 7], [size, 5]])
    inputs = on.arrays.inputs(mixed)
    assert inputs[0, 0].equal(simulation.arrays.inputs(torch.tensor([3]))[0])
    assert inputs[0, 1].equal(found[1, 1])
    assert on.class_counts().eq(2).all()
    state, _ = engine.run_round(on.method, on.begin(), on.round_schedule(1), "stacked")
    other, _ = engine.run_round(on.method, on.begin(), on.round_schedule(1), "loop")
    assert worlds.distance(worlds.tree(state), worlds.tree(other)) < 1e-10


def test_some_real_samples_are_as_many_of_every_class_and_the_same_for_all_seeds() -> None:
    one, other = (assembly.train_on_subset(world(seed=seed), 2) for seed in (5, 6))
    assert one.class_counts().eq(2).all()
    for mine, theirs, all_ in zip(
        one.client_data.samples["train"],
        other.client_data.samples["train"],
        one.client_data.samples[REAL],
        strict=True,
    ):
        assert mine.tolist() == theirs.tolist()
        assert np.isin(mine, all_).all()
    with pytest.raises(FedloomError, match=r"train_on: is 30, but client 0 has .* of class 0"):
        assembly.train_on_subset(world(), 30)
    with pytest.raises(FedloomError, match="there are 5 images for each of 4 clients"):
        assembly.train_on_images(world(), torch.zeros(4, 5, 1, 4, 4))


def test_distribution_matching_sees_real_samples_whatever_is_trained_on() -> None:
    simulation = worlds.world("fedlgd", "cnn", {"initial": "real"}, sizes=(40, 30, 50, 40))
    on = assembly.train_on_images(simulation, torch.zeros(4, 3, 1, 4, 4, dtype=torch.float64))
    _, warmup = on.round_schedule(1).phases[0].schedules
    assert warmup.index[warmup.weight].max() < simulation.arrays.size
    assert on.method.phases[0].passes[1].sampling.split == REAL
    assert local_images.statistics_sweep(_setting(on), 1, "noise").split == REAL


def _setting(simulation: Any) -> Any:
    from fl.api.method import BuildContext

    return BuildContext(simulation.network, simulation.training, 3, 4, (1, 4, 4), 5)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (
            {
                "a": {**METHODS["warm-up"], "method": "warm-up", "train_on": 3},
                "fedavg": {"train_on": "a"},
            },
            "'a' does not train on all samples itself",
        ),
        (
            {
                **{"warm-up": METHODS["warm-up"], "fedavg": None},
                "ft": {"method": "finetune", "start": "fedavg", "train_on": "warm-up"},
            },
            "methods.ft.train_on: is set beside start. Try: set one of both",
        ),
    ],
)
def test_what_cannot_be_trained_on_is_refused(
    methods: dict[str, Any], message: str, planned: Callable[..., Planned]
) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(**STUDY, methods=methods)
