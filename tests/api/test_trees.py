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


def test_apply_pairs_leaves_by_name() -> None:
    turned = {"none": {}, "inner": {"b": tensor(30.0)}, "w": tensor([10.0, 20.0])}
    sums = trees.apply(torch.add, A, turned)
    assert is_tree(sums, {"w": tensor([11.0, 22.0]), "inner": {"b": tensor(33.0)}, "none": {}})


def test_leaves_and_unflatten_are_inverse() -> None:
    assert [leaf.tolist() for leaf in trees.leaves(A)] == [[1.0, 2.0], 3.0]
    assert is_tree(trees.unflatten(A, trees.leaves(B)), B)
    assert trees.leaves({"none": {}}) == []


def test_a_stack_has_its_clients_in_front() -> None:
    stacked = trees.stack([A, B])
    expected = {
        "w": tensor([[1.0, 2.0], [10.0, 20.0]]),
        "inner": {"b": tensor([3.0, 30.0])},
        "none": {},
    }
    assert is_tree(stacked, expected)
    assert is_tree(trees.take(stacked, 0), A)
    assert is_tree(trees.take(stacked, 1), B)
    assert is_tree(trees.take(stacked, slice(1, 2)), trees.stack([B]))
    assert is_tree(trees.take(stacked, tensor([1, 0, 1])), trees.stack([B, A, B]))


@pytest.mark.parametrize(
    "index",
    [tensor(2), tensor([3, 0, 0]), tensor([[1, 2], [0, 3]]), tensor([True, False, True, False])],
)
def test_rows_are_what_an_index_gives(index: torch.Tensor) -> None:
    for table in (torch.arange(4), torch.rand(4, 3, 2), torch.zeros(4, 0)):
        assert torch.equal(trees.rows(table, index), table[index])


def test_concatenate_joins_stacks_in_order() -> None:
    joined = trees.concatenate([trees.stack([A]), trees.stack([B, A])])
    assert is_tree(joined, trees.stack([A, B, A]))


def test_scratch_has_memory_of_its_own_for_each_leaf() -> None:
    one, view = torch.zeros(2), torch.zeros(2, 3).T
    assert isinstance(trees.Scratch.of({"a": one, "inner": {"b": view}}), trees.Scratch)
    assert not isinstance(trees.Scratch.of({"a": one, "inner": {"b": one}}), trees.Scratch)
    assert not isinstance(trees.Scratch.of({"a": one[:1].expand(2)}), trees.Scratch)


def test_a_leaf_is_laid_out_as_the_model_that_chose_its_layout() -> None:
    tree = {"own": {"w": torch.arange(6.0).reshape(2, 3)}, "v": torch.ones(2, 3)}
    turned = torch.zeros(3, 2).T
    for models in ({"w": turned}, {"base": {"w": turned}, "own": {"w": torch.zeros(2, 3)}}):
        found = trees.laid_out(tree, models)
        assert found["own"]["w"].stride() == (1, 2) and found["v"] is tree["v"]
        assert found["own"]["w"].tolist() == tree["own"]["w"].tolist()


def test_repeat_makes_copies_of_their_own() -> None:
    copies = trees.repeat(A, 3)
    assert is_tree(copies, trees.stack([A, A, A]))
    copies["w"][0, 0] = -1.0
    assert copies["w"][1, 0] == 1.0
    assert A["w"][0] == 1.0


def test_put_replaces_some_and_leaves_the_stack_it_was_given() -> None:
    stack = trees.stack([A, A, A])
    after = trees.put(stack, tensor([2, 0]), trees.stack([B, A]))
    assert is_tree(after, trees.stack([A, A, B]))
    assert is_tree(stack, trees.stack([A, A, A]))


def test_put_keeps_the_type_of_the_stack() -> None:
    stack = {"steps": tensor([1, 2])}
    after = trees.put(stack, tensor([1]), {"steps": tensor([5.0])})
    assert is_tree(after, {"steps": tensor([1, 5])})


@pytest.mark.parametrize(
    ("scalars", "leaf", "shape"),
    [((), (4, 2), (1, 1)), ((3,), (3, 4, 2), (3, 1, 1)), ((3,), (3,), (3,)), ((), (), ())],
)
def test_align_lets_one_number_per_client_meet_a_leaf(
    scalars: tuple[int, ...], leaf: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    assert trees.align(torch.ones(scalars), torch.ones(leaf)).shape == shape


def test_mean_is_weighted_and_counters_take_the_largest() -> None:
    stack = {
        "w": tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 60.0]]),
        "s": tensor([1.0, 2.0, 4.0]),
        "batches": tensor([4, 9, 2]),
    }
    weights = tensor([1.0, 1.0, 2.0], dtype=torch.float64)
    expected = {"w": tensor([3.5, 31.5]), "s": tensor(2.75), "batches": tensor(9)}
    assert is_tree(trees.mean(stack, weights), expected)


def test_squared_distance_is_over_all_leaves() -> None:
    assert float(trees.squared_distance(A, B)) == 9.0**2 + 18.0**2 + 27.0**2
    assert float(trees.squared_distance(A, A)) == 0.0
