"""What holds of a task other than classification, for every method that serves it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import worlds
from mask_worlds import world

from fl.api.alteration import MIXED
from fl.api.task import Task, serves
from fl.base import registry
from fl.base.errors import Location
from fl.base.schema import GLOBAL, UNSEEN

SEGMENTATION: Task = registry.find("task", "segmentation", Location("test")).instantiate({})
METHODS = [
    one.name for one in registry.components("method") if serves(one.target, SEGMENTATION.name)
]
WHERE = Location("test")

every_method = pytest.mark.parametrize("method", METHODS)


@every_method
def test_stacked_is_loop_and_dice_is_reported(method: str) -> None:
    simulation = world(method, absent_clients=True)
    loop, rows = worlds.run(simulation, "loop")
    stacked, stacked_rows = worlds.run(simulation, "stacked")
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10
    assert worlds.rows_agree(stacked_rows, rows, 1e-10)
    moved = worlds.distance(worlds.tree(loop), worlds.tree(simulation.begin()))
    assert moved > 1e-3 or not simulation.method.passes
    scored = rows[rows["split"] != "train"]
    assert set(scored["metric"]) == {"loss", "dice", "foreground_dice"}
    assert scored.loc[scored["metric"] != "loss", "value"].between(0, 1).all()
    has_model = GLOBAL in simulation.method.views and simulation.client_data.absent_clients
    assert (UNSEEN in set(scored["split"])) == bool(has_model)


def test_what_alters_features_and_labels_goes_with_masks() -> None:
    values = {"layers": ["pool1"], "p": 1.0}
    simulation = world("fedavg", alteration={"name": "moex", **values})
    loop, _ = worlds.run(simulation, "loop")
    stacked, _ = worlds.run(simulation, "stacked")
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10
    plain, _ = worlds.run(world("fedavg"), "loop")
    assert worlds.distance(worlds.tree(plain), worlds.tree(loop)) > 1e-6


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
        said = (p.argmax(1) == k).astype(float)
        hard += np.mean(
            [2 * (f * m).sum() / (f.sum() + m.sum() + eps) for f, m in zip(said, of_k, strict=True)]
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
    scores = SEGMENTATION.conclude(SEGMENTATION.look(outputs, masks), np.array([5]), 3)
    assert scores["loss"] == pytest.approx(loss, abs=1e-12)
    assert scores["dice"] == pytest.approx(dice, abs=1e-5)


def test_the_loss_of_mixed_masks_is_that_of_each_pixels_shares() -> None:
    outputs, masks = outputs_and_masks()
    partner, shares_kept = torch.tensor([1, 0, 3, 2, 4]), torch.tensor([0.7, 0.7, 0.4, 0.4, 1.0])
    weight = torch.ones(5, dtype=torch.float64)
    mixed = ((partner, shares_kept),)
    loss = SEGMENTATION.loss(outputs, {"y": masks, "weight": weight, MIXED: mixed})
    p, log = outputs.softmax(1).numpy(), outputs.log_softmax(1).numpy()
    shares = np.zeros(p.shape)
    for i, share in enumerate(shares_kept.tolist()):
        for k in range(p.shape[1]):
            mine, other = masks[i].numpy() == k, masks[int(partner[i])].numpy() == k
            shares[i, k] = share * mine + (1 - share) * other
    entropy = -(shares * log).sum(1).mean()
    soft = [
        (2 * (p[:, k] * shares[:, k]).sum() + 1e-5) / (p[:, k].sum() + shares[:, k].sum() + 1e-5)
        for k in range(3)
    ]
    assert float(loss) == pytest.approx((entropy + 1 - np.mean(soft)) / 2, abs=1e-7)


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
    scores, wrong = (
        SEGMENTATION.conclude(SEGMENTATION.look(outputs, masks), np.array([1]), 2)
        for outputs in (right, -right)
    )
    assert scores["foreground_dice"] == 1.0
    assert wrong["dice"] == pytest.approx(0, abs=1e-5)


def test_an_image_of_odd_size_is_refused() -> None:
    _, model = registry.component_of(
        "model", {"name": "unet", "width": 2, "levels": 2, "norm": "batch"}
    )
    with pytest.raises(ValueError, match="divisible by 4"):
        model.build((1, 6, 8), 2)
