from __future__ import annotations

import pytest
import torch
from torch import tensor

from fl.api import trees

A = {"w": tensor([1.0, 2.0]), "inner": {"b": tensor(3.0)}, "none": {}}
B = {"w": tensor([10.0, 20.0]), "inner": {"b": tensor(30.0)}, "none": {}}


def is_tree(found: trees.Tree, expected: trees.Tree) -> bool:
    """Same keys in the same order, and leaves of the same type, shape and value."""
    assert list(found) == list(expected)
    for key, leaf in expected.items():
        if isinstance(leaf, dict):
            assert is_tree(found[key], leaf)
        else:
            assert found[key].dtype == leaf.dtype
            assert found[key].tolist() == leaf.tolist()
    return True


def test_a_leaf_is_laid_out_as_the_model_that_chose_its_layout() -> None:
    tree = {"own": {"w": torch.arange(6.0).reshape(2, 3)}, "v": torch.ones(2, 3)}
    turned = torch.zeros(3, 2).T
    for models in ({"w": turned}, {"base": {"w": turned}, "own": {"w": torch.zeros(2, 3)}}):
        found = trees.match_layout(tree, models)
        assert found["own"]["w"].stride() == (1, 2) and found["v"] is tree["v"]
        assert found["own"]["w"].tolist() == tree["own"]["w"].tolist()


def test_put_replaces_some_and_leaves_the_stack_it_was_given() -> None:
    stack = trees.stack([A, A, A])
    after = trees.replace_clients(stack, tensor([2, 0]), trees.stack([B, A]))
    assert is_tree(after, trees.stack([A, A, B]))
    assert is_tree(stack, trees.stack([A, A, A]))


def test_mean_is_weighted_and_counters_take_the_largest() -> None:
    stack = {
        "w": tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 60.0]]),
        "s": tensor([1.0, 2.0, 4.0]),
        "batches": tensor([4, 9, 2]),
    }
    weights = tensor([1.0, 1.0, 2.0], dtype=torch.float64)
    expected = {"w": tensor([3.5, 31.5]), "s": tensor(2.75), "batches": tensor(9)}
    assert is_tree(trees.mean(stack, weights), expected)


def test_inner_product_is_over_all_leaves() -> None:
    assert float(trees.inner_product(A, A)) == float(trees.squared_norm(A))
    assert float(trees.inner_product(A, trees.zeros_like(A))) == 0.0


def test_gradient_of_a_stack_is_that_of_each_client() -> None:
    stack = {"w": tensor([[1.0, 2.0], [3.0, 4.0]]), "b": tensor([5.0, 6.0])}

    def loss(params: trees.Tree) -> tuple[torch.Tensor, trees.Tree]:
        return (params["w"] ** 3).sum() * params["b"], {"twice": 2 * params["b"]}

    slopes, second = trees.vmap(lambda params: trees.gradient(loss, params), (0,))(stack)
    expected = {
        "w": 3 * stack["w"] ** 2 * stack["b"][:, None],
        "b": (stack["w"] ** 3).sum(1),
    }
    assert is_tree(slopes, expected) and is_tree(second, {"twice": tensor([10.0, 12.0])})
    one, _ = trees.gradient(loss, trees.take(stack, 1))
    assert is_tree(one, trees.take(expected, 1))


@pytest.mark.parametrize("is_stacked", [True, False])
def test_a_gradient_can_be_differentiated(is_stacked: bool) -> None:
    weights = tensor([[1.0, 2.0], [3.0, 4.0]]).requires_grad_()

    def adapted(params: trees.Tree) -> trees.Tree:
        def cubes(its: trees.Tree) -> tuple[torch.Tensor, trees.Tree]:
            # What a loss takes from elsewhere is constant.
            return (its["w"] ** 3).sum() + (params["w"] ** 5).sum(), {}

        slopes, _ = trees.gradient(cubes, params, differentiable=True)
        return {"w": params["w"] - slopes["w"]}

    call = trees.vmap(adapted, (0,)) if is_stacked else adapted
    (found,) = torch.autograd.grad((call({"w": weights})["w"] ** 2).sum(), [weights])
    steps = weights - 3 * weights**2
    assert torch.equal(found, 2 * steps * (1 - 6 * weights))


@pytest.mark.parametrize("differentiable", [True, False])
@pytest.mark.parametrize("is_stacked", [True, False])
def test_gradient_of_a_loss_without_any_weight_is_zero(
    is_stacked: bool, differentiable: bool
) -> None:
    def constant(its: trees.Tree) -> tuple[torch.Tensor, trees.Tree]:
        return torch.ones(()), {"w": its["w"]}

    def call(params: trees.Tree) -> trees.Tree:
        return trees.gradient(constant, params, differentiable)[0]

    stack = {"w": torch.rand(3, 4)}
    slopes = trees.vmap(call, (0,))(stack) if is_stacked else call(stack)
    assert torch.equal(slopes["w"], torch.zeros(3, 4))


def test_gradient_in_a_sweep_is_that_in_training() -> None:
    stack = {"w": torch.rand(3, 4)}

    def call(params: trees.Tree) -> trees.Tree:
        return trees.gradient(lambda its: (its["w"].square().sum(), {}), params)[0]

    with torch.no_grad():
        assert torch.equal(trees.vmap(call, (0,))(stack)["w"], 2 * stack["w"])


def test_gradient_by_weights_that_a_loss_does_not_use_is_zero() -> None:
    stack = {"used": torch.rand(3, 4), "idle": torch.rand(3, 2)}

    def slopes(params: trees.Tree) -> trees.Tree:
        return trees.gradient(lambda its: (its["used"].square().sum(), {}), params)[0]

    for found in (trees.vmap(slopes, (0,))(stack), slopes(stack)):
        assert torch.equal(found["idle"], torch.zeros(3, 2))
        assert torch.allclose(found["used"], 2 * stack["used"])


def test_scratch_takes_what_is_added_and_other_trees_stay() -> None:
    tree = {"w": tensor([1.0, 2.0]), "inner": {"b": tensor(3.0)}}
    addend = {"w": tensor([1.0, 1.0]), "inner": {"b": tensor(1.0)}}
    expected = {"w": tensor([-1.0, 0.0]), "inner": {"b": tensor(1.0)}}
    assert is_tree(trees.add(tree, addend, -2), expected) and tree["w"].tolist() == [1.0, 2.0]
    scratch = trees.Scratch.of(tree, in_place=True)
    assert trees.add(scratch, addend, -2) is scratch
    assert is_tree(dict(scratch), expected) and tree["w"].tolist() == [-1.0, 0.0]


def test_trees_share_memory_if_one_tensor_is_a_view_of_another() -> None:
    view = {"terms": {"part": A["w"][1:]}}
    assert trees.share_memory(A, view)
    assert not trees.share_memory(A, {"terms": {"part": A["w"][1:].clone()}})


def test_squared_distance_is_over_all_leaves() -> None:
    assert float(trees.squared_distance(A, B)) == 9.0**2 + 18.0**2 + 27.0**2
    assert float(trees.squared_distance(A, A)) == 0.0
