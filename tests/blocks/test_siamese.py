"""Siamese augmentation: each kind beside what it does in plain words, and its gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fl.blocks import siamese_augmentation
from fl.blocks.siamese_augmentation import AUGMENTATIONS, Change

DRAW = torch.Generator().manual_seed(3)
X = torch.randn(2, 3, 3, 8, 6, generator=DRAW, dtype=torch.float64)


def changed(kind: str, first: float = 0.0, second: float = 0.0, third: float = 0.0) -> Tensor:
    """Both groups changed in one way."""
    numbers = [torch.full((2,), u, dtype=torch.float64) for u in (first, second, third)]
    return siamese_augmentation.augment_groups(
        X, Change(torch.full((2,), AUGMENTATIONS.index(kind)), *numbers)
    )


def test_colours() -> None:
    one = X[1, 2] + (0.75 - 0.5)
    grey = one.mean(0)
    one = (one - grey) * (0.25 * 2) + grey
    one = (one - one.mean()) * (0.1 + 0.5) + one.mean()
    torch.testing.assert_close(changed("colour", 0.75, 0.25, 0.1)[1, 2], one)


def test_groups_by_themselves_are_all_kinds_with_one_chosen() -> None:
    x = X.repeat(6, 1, 1, 1, 1).clone().requires_grad_()
    change = siamese_augmentation.draw_change(torch.arange(12))
    assert len(set(change.kind.tolist())) > 3
    found, whole = (
        siamese_augmentation.augment_groups(x, change),
        siamese_augmentation._augment_by_choice(x, change),
    )
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)
    weight = torch.randn(x.shape, generator=DRAW, dtype=torch.float64)
    grads = [torch.autograd.grad((one * weight).sum(), x)[0] for one in (found, whole)]
    torch.testing.assert_close(*grads, rtol=0, atol=1e-12)
    stacked = torch.func.vmap(siamese_augmentation.augment_groups)(
        x.detach()[None], Change(*(p[None] for p in change))
    )
    assert stacked[0].equal(whole)


def test_a_crop_shifts_and_leaves_zeros() -> None:
    # Sides 8 and 6 move by up to one pixel: draws 0 and .99 are -1 and +1.
    found = changed("crop", 0.0, 0.99)
    torch.testing.assert_close(found[..., 1:, :-1], X[..., :-1, 1:])
    assert not found[..., 0, :].any()
    assert not found[..., :, -1].any()
    torch.testing.assert_close(changed("crop", 0.5, 0.5), X)


def test_a_flip_is_of_columns_and_for_every_second_draw() -> None:
    torch.testing.assert_close(changed("flip", 0.2), X.flip(-1))
    torch.testing.assert_close(changed("flip", 0.7), X)


def test_a_cutout_is_half_as_wide_and_high_and_stays_inside() -> None:
    hole = changed("cutout", 0.5, 0.5)[0, 0, 0] == 0
    assert hole.sum() == 4 * 3
    rows, columns = hole.any(1).nonzero(), hole.any(0).nonzero()
    assert rows.flatten().tolist() == [2, 3, 4, 5]
    assert columns.flatten().tolist() == [2, 3, 4]
    corner = changed("cutout", 0.0, 0.0)[0, 0, 0] == 0
    assert corner.sum() == 2 * 2
    assert corner[:2, :2].all()


@pytest.mark.parametrize("first", [0.0, 0.3, 0.9])
def test_scale_and_rotation_are_those_of_a_sampled_grid(first: float) -> None:
    def sampled(theta: list[list[float]]) -> Tensor:
        flat = X.reshape(6, 3, 8, 6)
        matrix = torch.tensor(theta, dtype=torch.float64).expand(6, 2, 3)
        grid = F.affine_grid(matrix, list(flat.shape), align_corners=False)
        return F.grid_sample(flat, grid, align_corners=False).reshape(X.shape)

    high, wide = (u * (1.2 - 1 / 1.2) + 1 / 1.2 for u in (first, 0.6))
    expected = sampled([[wide, 0, 0], [0, high, 0]])
    torch.testing.assert_close(changed("scale", first, 0.6), expected)
    angle = torch.tensor((first - 0.5) * 30).deg2rad()
    c, s = float(angle.cos()), float(angle.sin())
    torch.testing.assert_close(
        changed("rotate", first), sampled([[c, -s, 0], [s, c, 0]]), atol=1e-6, rtol=0
    )


def test_images_of_a_group_are_changed_alike_and_groups_apart() -> None:
    change = siamese_augmentation.draw_change(torch.arange(60))
    assert set(change.kind.tolist()) == set(range(6))
    again = siamese_augmentation.draw_change(torch.arange(60))
    assert all(a.equal(b) for a, b in zip(change, again, strict=True))
    same = X[0, :1].expand(60, 3, 3, 8, 6)
    found = siamese_augmentation.augment_groups(same, change)
    torch.testing.assert_close(found[:, 0], found[:, 2])
    assert len({tuple(one.flatten().tolist()) for one in found[:, 0]}) > 20
