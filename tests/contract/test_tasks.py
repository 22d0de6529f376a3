"""What holds of a task other than classification, for every method that serves it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from contract import worlds
from contract.short import short

from fl.api.method import Setting, declared
from fl.api.mixed_labels import MIXED
from fl.api.task import Task, serves
from fl.api.training import Training
from fl.base import fields, registry
from fl.base.errors import Where
from fl.base.schema import GLOBAL, UNSEEN
from fl.engine import engine, simulate
from fl.engine.arrays import Arrays
from fl.engine.assembly import computing
from fl.engine.client_data import ClientData
from fl.engine.simulation import DTYPES, Simulation
from fl.parts.aligned_features import HISTOGRAM
from fl.plan import specs
from fl.train import costs

SEGMENTATION: Task = registry.find("task", "segmentation", Where("test")).make({})
METHODS = [one.name for one in registry.entries("method") if serves(one.target, SEGMENTATION.name)]
SHAPE, CLASSES = (1, 4, 4), 2
WHERE = Where("test")

every_method = pytest.mark.parametrize("method", METHODS)


def data(sizes: tuple[int, ...] = worlds.SIZES, away: tuple[int, ...] = ()) -> Any:
    """Images whose bright pixels are the mask, a little more for each client."""
    draw, first = np.random.default_rng(3), 0
    splits: dict[str, list[np.ndarray]] = {"train": [], "val": [], "test": [], UNSEEN: []}
    for client, size in enumerate(sizes):
        last = UNSEEN if client in away else "test"
        counts = {"train": size, "val": 0, "test": 0, UNSEEN: 0, last: 6}
        for split, count in counts.items():
            splits[split].append(np.arange(first, first + count))
            first += count
    owner = np.repeat(np.arange(len(sizes)), [size + 6 for size in sizes])
    masks = draw.random((first, *SHAPE[1:])) < 0.2 + 0.1 * owner[:, None, None]
    x = masks[:, None] + draw.normal(0, 0.3, (first, *SHAPE)) + owner[:, None, None, None] / 4
    return x, masks.astype(np.uint8), ClientData(splits, away)


def world(
    method: str,
    seed: int = 5,
    away: tuple[int, ...] = (),
    alterations: dict[str, Any] | None = None,
    values: dict[str, Any] | None = None,
    **training: Any,
) -> Simulation:
    """A method on masks and a U-Net of one level, whose blocks are altered where layers are to be
    named; ``away``: clients that are held out; ``features``: one alteration, with its name.
    """
    found = registry.find("method", method, WHERE)
    target = declared(found.target)
    given = {**worlds.TRAINING, "local_epochs": 1, **training}
    settled = Training(**Training.settle(fields.parse(Training, given, WHERE), WHERE))
    _, model = registry.entry_of(
        "model", {"name": "unet", "width": 2, "levels": 1, "norm": "batch"}
    )
    network = computing(lambda: model.build(SHAPE, CLASSES), settled)
    x, masks, held = data(away=() if target.alone else away)
    setting = Setting(
        *(network, settled, CLASSES, held.clients, SHAPE, seed),
        away=len(held.away),
        task=SEGMENTATION,
    )
    # Without layers they are the model's blocks.
    shorter = {key: value for key, value in short(method).items() if key != "layers"}
    spec = {
        "method": {"name": method, **found.parse({**shorter, **(values or {})}, WHERE)},
        "terms": [],
        "alterations": [alterations] if alterations else [],
    }
    return Simulation(
        method=specs.build(spec, setting),
        network=network,
        training=settled,
        arrays=Arrays(x, masks, worlds.NORMALISATION, dtype=DTYPES[settled.precision]),
        client_data=held,
        classes=CLASSES,
        seed=seed,
        task=SEGMENTATION,
    )


def test_the_methods_that_the_prostate_study_compares_serve_masks() -> None:
    assert {"local", "fedavg", "fedavgm", "fedprox", "fedbn", "ditto", "finetune"} <= set(METHODS)
    assert {"fedfa", "fedrobust"} <= set(METHODS)
    assert not {"fedproto", "fedfm", "fedrod", "knn-per", "fedrep", "fpl", "fedsr"} & set(METHODS)


@every_method
def test_stacked_is_loop_and_dice_is_reported(method: str) -> None:
    simulation = world(method, away=(3,))
    loop, rows = worlds.run(simulation, "loop")
    stacked, stacked_rows = worlds.run(simulation, "stacked")
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10
    assert worlds.rows_agree(stacked_rows, rows, 1e-10)
    moved = worlds.distance(worlds.tree(loop), worlds.tree(simulation.begin()))
    assert moved > 1e-3 or not simulation.method.passes
    scored = rows[rows["split"] != "train"]
    assert set(scored["metric"]) == {"loss", "dice", "foreground_dice"}
    assert scored.loc[scored["metric"] != "loss", "value"].between(0, 1).all()
    has_model = GLOBAL in simulation.method.views and simulation.client_data.away
    assert (UNSEEN in set(scored["split"])) == bool(has_model)


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedfa"])
def test_resumed_and_stacked_with_other_seeds_a_run_is_what_it_is_alone(method: str) -> None:
    runs = {seed: world(method, seed=seed) for seed in (5, 6)}
    worlds.together(runs)
    alone, _ = worlds.run(runs[5], "stacked")
    first = next(simulate.rounds(runs[5], runs[5].begin(), 0, "stacked"))
    [second] = simulate.rounds(runs[5], first.state, 1, "stacked")
    assert worlds.same(worlds.tree(second.state), worlds.tree(alone))


ALTERATIONS: dict[str, dict[str, Any]] = {
    "mixup": {},
    "m-mixup": {"layers": ["pool1", "bottleneck"]},
    "mixstyle": {"layers": ["pool1"], "p": 1.0},
    "moex": {"layers": ["pool1"], "p": 1.0},
    "dac-sc": {"layers": ["pool1"], "p": 1.0},
}


@pytest.mark.parametrize("name", ALTERATIONS)
def test_what_alters_features_goes_with_masks(name: str) -> None:
    keys = registry.find("alteration", name, WHERE).parse(ALTERATIONS[name], WHERE)
    simulation = world("fedfa", alterations={"name": name, **keys})
    loop, _ = worlds.run(simulation, "loop")
    stacked, _ = worlds.run(simulation, "stacked")
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10
    plain, _ = worlds.run(world("fedfa"), "loop")
    assert worlds.distance(worlds.tree(plain), worlds.tree(loop)) > 1e-6


def test_histograms_of_a_model_without_a_classifier_are_of_its_last_block() -> None:
    plain = world("fedavg", participation=1.0, rounds=1)
    histograms = {"augment": "none", "histograms": True}
    aligned = world("fedfa", values=histograms, participation=1.0, rounds=1)
    state, again = (
        engine.run_round(one.method, one.begin(), one.plan(1), "loop")[0]
        for one in (aligned, plain)
    )
    # In the first round there is no histogram to hold features to.
    assert worlds.distance(again.server, {k: state.server[k] for k in again.server}) < 1e-12
    assert state.server[HISTOGRAM].shape == (4, 8)
    torch.testing.assert_close(
        state.server[HISTOGRAM].sum(1), torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-9
    )
    # After a ReLU no value is below 0, which is the edge of bins 3 and 4.
    assert (state.server[HISTOGRAM][:, 3:].sum(1) > 0.99).all()


def test_fedavg_costs_two_models_and_learns_the_mask() -> None:
    training = {"optimizer": "adamw", "lr": 0.05, "momentum": 0.0, "local_epochs": 2}
    simulation = world("fedavg", rounds=15, schedule="constant", evaluate_every=15, **training)
    state, rows = worlds.run(simulation, "stacked")
    weights = simulation.begin().server
    size = sum(t.numel() * t.element_size() for kind in weights.values() for t in kind.values())
    found = costs.measure(simulation, state)
    assert (found.bytes_down, found.bytes_up) == (size, size)
    dice = rows[(rows["metric"] == "foreground_dice") & (rows["split"] == "test")]
    assert dice["value"].mean() > 0.7
    assert (simulation.counts() == 0).all()


# The loss and the metrics


def by_hand(p: np.ndarray, masks: np.ndarray, eps: float = 1e-5) -> tuple[float, float]:
    """The loss of HarmoFL's formula over images that all count, and its Dice, in plain loops."""
    n, classes, h, w = p.shape
    entropy = -np.mean(
        [np.log(p[i, masks[i, r, c], r, c]) for i in range(n) for r in range(h) for c in range(w)]
    )
    soft, hard = 0.0, 0.0
    for k in range(classes):
        of_k = (masks == k).astype(float)
        soft += (2 * (p[:, k] * of_k).sum() + eps) / (p[:, k].sum() + of_k.sum() + eps)
        found = (p.argmax(1) == k).astype(float)
        hard += np.mean(
            [
                2 * (f * m).sum() / (f.sum() + m.sum() + eps)
                for f, m in zip(found, of_k, strict=True)
            ]
        )
    return (entropy + 1 - soft / classes) / 2, hard / classes


def outputs_and_masks() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    outputs = torch.randn(5, 3, 4, 6, generator=draw, dtype=torch.float64)
    return outputs, torch.arange(5 * 24).reshape(5, 4, 6) * 7 % 3


def test_the_loss_and_dice_are_those_of_the_formula() -> None:
    outputs, masks = outputs_and_masks()
    loss, dice = by_hand(outputs.softmax(1).numpy(), masks.numpy())
    batch = {"y": masks, "weight": torch.ones(5, dtype=torch.float64)}
    assert float(SEGMENTATION.loss(outputs, batch)) == pytest.approx(loss, abs=1e-12)
    found = SEGMENTATION.conclude(SEGMENTATION.look(outputs, masks), 3)
    assert found["loss"] == pytest.approx(loss, abs=1e-12)
    assert found["dice"] == pytest.approx(dice, abs=1e-5)


def test_the_loss_of_mixed_masks_is_that_of_each_pixels_shares() -> None:
    outputs, masks = outputs_and_masks()
    partner, own = torch.tensor([1, 0, 3, 2, 4]), torch.tensor([0.7, 0.7, 0.4, 0.4, 1.0])
    weight = torch.ones(5, dtype=torch.float64)
    found = SEGMENTATION.loss(outputs, {"y": masks, "weight": weight, MIXED: ((partner, own),)})
    p, log = outputs.softmax(1).numpy(), outputs.log_softmax(1).numpy()
    shares = np.zeros(p.shape)
    for i, share in enumerate(own.tolist()):
        for k in range(p.shape[1]):
            mine, other = masks[i].numpy() == k, masks[int(partner[i])].numpy() == k
            shares[i, k] = share * mine + (1 - share) * other
    entropy = -(shares * log).sum(1).mean()
    soft = [
        (2 * (p[:, k] * shares[:, k]).sum() + 1e-5) / (p[:, k].sum() + shares[:, k].sum() + 1e-5)
        for k in range(3)
    ]
    assert float(found) == pytest.approx((entropy + 1 - np.mean(soft)) / 2, abs=1e-7)
    alone = {"y": masks, "weight": weight, MIXED: ((partner, torch.ones(5)),)}
    plain = SEGMENTATION.loss(outputs, {"y": masks, "weight": weight})
    assert float(SEGMENTATION.loss(outputs, alone)) == pytest.approx(float(plain), abs=1e-12)


def test_images_without_weight_do_not_count() -> None:
    outputs, masks = outputs_and_masks()
    whole = {"y": masks, "weight": torch.tensor([1, 1, 0, 1, 0], dtype=torch.float64)}
    kept = whole["weight"].bool()
    some = {"y": masks[kept], "weight": whole["weight"][kept]}
    assert torch.equal(SEGMENTATION.loss(outputs, whole), SEGMENTATION.loss(outputs[kept], some))
    nothing = {"y": masks, "weight": torch.zeros(5, dtype=torch.float64)}
    assert float(SEGMENTATION.loss(outputs, nothing)) == 0.0


def test_a_class_that_is_nowhere_is_found() -> None:
    masks = torch.zeros(1, 2, 2, dtype=torch.int64)
    right = torch.stack([torch.ones(1, 2, 2), -torch.ones(1, 2, 2)], dim=1)
    assert SEGMENTATION.conclude(SEGMENTATION.look(right, masks), 2)["foreground_dice"] == 1.0
    wrong = SEGMENTATION.conclude(SEGMENTATION.look(-right, masks), 2)
    assert wrong["dice"] == pytest.approx(0, abs=1e-5)


def test_an_image_of_odd_size_is_refused() -> None:
    _, model = registry.entry_of(
        "model", {"name": "unet", "width": 2, "levels": 2, "norm": "batch"}
    )
    with pytest.raises(ValueError, match="divisible by 4"):
        model.build((1, 6, 8), 2)
