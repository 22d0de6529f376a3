"""Who holds which samples, by client."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fl.engine.client_data import TEST_OWN, TEST_REWEIGHTED, TEST_UNION, ClientData

ROWS = [
    *[(7, 2, "train"), (3, 2, "train"), (5, 0, "train"), (9, 1, "train"), (4, 3, "train")],
    *[(8, 1, "test"), (0, 0, "test"), (6, 2, "test"), (1, 3, "test"), (2, 3, "val")],
]
"""Of four clients, the last of which is held out."""


def of(test: str = TEST_OWN) -> ClientData:
    table = pd.DataFrame(ROWS, columns=["sample", "client", "split"])
    return ClientData.from_table(table.assign(unseen=table["client"] == 3), test)


def lists(data: ClientData, split: str) -> list[list[int]]:
    return [numbers.tolist() for numbers in data.samples[split]]


def test_each_client_has_its_samples_in_ascending_order() -> None:
    data = of()
    assert lists(data, "train") == [[5], [9], [3, 7], [4]]
    assert lists(data, "test") == [[0], [8], [6], []]
    assert lists(data, "unseen") == [[], [], [], [1]]
    assert lists(data, "unseen-val") == [[], [], [], [2]]
    assert data.participants.tolist() == [0, 1, 2]
    assert data.sizes("train").tolist() == [1, 1, 2, 1]
    assert data.sizes("val").tolist() == [0, 0, 0, 0]
    assert [(k, numbers.tolist()) for k, numbers in data.clients_with_samples("unseen")] == [
        (3, [1])
    ]
    assert list(data.clients_with_samples("val")) == []
    with pytest.raises(IndexError):
        data.samples["train"][4]


@pytest.mark.parametrize("test", [TEST_OWN, TEST_UNION, TEST_REWEIGHTED])
def test_of_some_clients_the_others_have_nothing(test: str) -> None:
    whole, some = of(test), of(test).select_clients(np.array([2, 0]))
    for split in whole.samples:
        numbers = lists(whole, split)
        assert lists(some, split) == [numbers[0], [], numbers[2], []]
        assert some.sizes(split).tolist() == [len(its) for its in lists(some, split)]
    assert some.participants.tolist() == [0, 2] and some.absent_clients == (1, 3)
    assert whole.union_test_samples is None or some.union_test_samples.tolist() == [0, 6, 8]


def test_samples_of_all_are_one_array_however_many_are_tested_on_them() -> None:
    """Whoever scores one model on them knows by that to do it once."""
    test = of(TEST_UNION).select_clients(np.array([0, 2])).samples["test"]
    assert test[0] is test[2] and test[0].tolist() == [0, 6, 8]


def test_a_sample_is_of_those_trained_on_and_of_those_held_out() -> None:
    drawn = [of().sample_clients(1, seed).tolist() for seed in range(40)]
    assert all(len(clients) == 2 and clients[1] == 3 for clients in drawn)
    assert {clients[0] for clients in drawn} == {0, 1, 2}
    assert of().sample_clients(9, 0).tolist() == [0, 1, 2, 3]
    for seed in range(40):
        assert set(of().sample_clients(1, seed)) <= set(of().sample_clients(2, seed))
