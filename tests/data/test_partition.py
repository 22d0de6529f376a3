from __future__ import annotations

import hashlib
import math

import numpy as np
import pandas as pd
import partition
import pytest

from fl.base.errors import DataError
from fl.data.schemes.file import file

LABELS = np.random.default_rng(7).integers(0, 10, 1000)


def sizes(table):
    return table.groupby("client").size().to_numpy()


def split_of(table, split):
    return set(table.loc[table["split"] == split, "sample"])


def class_counts(table, labels):
    """[clients, classes]"""
    return pd.crosstab(table["client"], labels[table["sample"]]).to_numpy()


@pytest.fixture
def table():
    return partition.homogeneous(LABELS, clients=4)


# The split within a client


def test_test_samples_do_not_move_with_the_val_share():
    tests = [
        split_of(partition.homogeneous(LABELS, clients=5, val=val), "test") for val in (0, 0.1, 0.4)
    ]
    assert tests[0] == tests[1] == tests[2]


def test_test_samples_depend_on_what_a_client_holds_and_not_on_the_others():
    groups = np.arange(1000) // 100
    alone = partition.natural(LABELS, groups)
    merged = partition.natural(LABELS, np.where(groups > 3, 9, groups))
    for client in range(4):
        mine = [split_of(t[t["client"] == client], "test") for t in (alone, merged)]
        assert mine[0] == mine[1]


# Homogeneous


def test_homogeneous_sizes_and_classes_differ_by_one_at_most():
    made = partition.homogeneous(LABELS, clients=7, seed=3)
    counts = class_counts(made, LABELS)
    assert np.ptp(counts, axis=0).max() <= 1
    assert np.ptp(counts.sum(axis=1)) <= 1
    assert sorted(made["sample"]) == list(range(1000))


def test_too_many_clients_are_refused():
    for clients in (0, 4):
        with pytest.raises(DataError, match=f"clients is {clients}. Allowed: 1 to 3"):
            partition.homogeneous(np.zeros(11, int), clients=clients)
    with pytest.raises(DataError, match=r"the number of samples is 2. Allowed: at least 3"):
        partition.homogeneous(np.zeros(2, int), clients=1)


# Dirichlet


@pytest.mark.parametrize("alpha", [5e-324, 0.1, 1e300])
@pytest.mark.parametrize("clients", [1, 30, 100])
def test_dirichlet_keeps_every_promise_over_the_grid(alpha, clients):
    made = partition.dirichlet(LABELS, clients=clients, alpha=alpha, redraws=5)
    partition.validate(made, LABELS, source="dirichlet")
    assert sorted(made["sample"]) == list(range(1000))
    assert len(sizes(made)) == clients
    assert sizes(made).min() >= 10
    again = partition.dirichlet(LABELS, clients=clients, alpha=alpha, redraws=5)
    assert again.equals(made)
    assert again.attrs == made.attrs


def test_dirichlet_repair_moves_what_it_says_from_the_largest():
    # Two of these clients have 4 and 7 samples: enough for 3, short of 10 by 9 in all.
    scheme = {"clients": 12, "alpha": 0.1, "redraws": 0, "seed": 8}
    plain = partition.dirichlet(LABELS, min_samples=3, **scheme)
    mended = partition.dirichlet(LABELS, min_samples=10, **scheme)
    assert plain.attrs["notes"] == []
    assert "2 of 12 clients" in mended.attrs["notes"][0]
    assert "moved 9 samples" in mended.attrs["notes"][0]
    change = class_counts(mended, LABELS) - class_counts(plain, LABELS)
    assert change[change > 0].sum() == -change[change < 0].sum() == 9
    before = sizes(plain)
    assert sorted(before)[:2] == [4, 7]
    assert change[before < 10].sum(axis=1).tolist() == (10 - before[before < 10]).tolist()
    assert before[change.sum(axis=1) < 0].tolist() == [before.max()]


def test_dirichlet_refuses_what_no_repair_can_mend():
    with pytest.raises(DataError, match=r"clients is 101. Allowed: 1 to 100, so that each gets"):
        partition.dirichlet(LABELS, clients=101, alpha=1.0)
    with pytest.raises(DataError, match=r"min_samples is 2. Allowed: at least 3"):
        partition.dirichlet(LABELS, clients=5, alpha=1.0, min_samples=2)
    with pytest.raises(DataError, match=r"clients is 1. Allowed: none, as the data set has 5"):
        partition.dirichlet(np.zeros(5, int), clients=1, alpha=1.0)


# Pathological


@pytest.mark.parametrize(("clients", "each"), [(5, 2), (20, 3), (3, 10)])
def test_pathological_clients_hold_that_many_classes_in_even_shards(clients, each):
    for seed in range(3):
        made = partition.pathological(LABELS, clients=clients, classes_per_client=each, seed=seed)
        counts = class_counts(made, LABELS)
        assert ((counts > 0).sum(axis=1) == each).all()
        holders = (counts > 0).sum(axis=0)
        assert len(holders) == 10
        assert np.ptp(holders) <= 1
        for column in counts.T:
            assert np.ptp(column[column > 0]) <= 1
        assert sorted(made["sample"]) == list(range(1000))
        assert made.attrs["notes"] == []


def test_pathological_blocks_make_pairs_that_share_all_or_nothing():
    """Ten clients of two classes: client i and client i + 5 hold classes 2i and 2i + 1."""
    made = partition.pathological(LABELS, clients=10, classes_per_client=2, dealt="blocks")
    holds = class_counts(made, LABELS) > 0
    for client, row in enumerate(holds):
        assert np.flatnonzero(row).tolist() == [2 * (client % 5), 2 * (client % 5) + 1]
    assert sorted(made["sample"]) == list(range(1000))


@pytest.mark.parametrize(
    ("clients", "each", "message"),
    [
        (10, 3, "classes_per_client is 3. Allowed: a number that divides the 10 classes"),
        (7, 2, "clients is 7. Allowed: a multiple of 5"),
    ],
)
def test_pathological_refuses_blocks_that_do_not_come_out(clients, each, message):
    with pytest.raises(DataError, match=message):
        partition.pathological(LABELS, clients=clients, classes_per_client=each, dealt="blocks")


def test_pathological_notes_unused_classes():
    made = partition.pathological(LABELS, clients=3, classes_per_client=2)
    used = set(LABELS[made["sample"]])
    assert len(used) == 6
    unused = sorted(set(range(10)) - used)
    lost = int(np.isin(LABELS, unused).sum())
    assert made.attrs["notes"] == [
        f"pathological: nobody holds class {', '.join(map(str, unused))}; {lost} samples are unused"
    ]
    assert len(made) == 1000 - lost


def test_pathological_refuses_counts_that_do_not_fit():
    for each in (0, 11):
        with pytest.raises(DataError, match=f"classes_per_client is {each}. Allowed: 1 to 10"):
            partition.pathological(LABELS, clients=5, classes_per_client=each)
    rare = np.repeat([0, 1], (100, 2))
    with pytest.raises(DataError, match="each of the 5 holders of class 1 gets one of its 2"):
        partition.pathological(rare, clients=5, classes_per_client=2)
    with pytest.raises(DataError, match=r"samples of client 1 is 1. Allowed: at least 3"):
        partition.pathological(rare, clients=5, classes_per_client=1)


# Natural


def test_natural_keeps_the_groups():
    groups = np.random.default_rng(0).choice([3, 8, 40], 1000)
    made = partition.natural(LABELS, groups)
    assert len(made) == 1000
    renumbered = made["client"].map({0: 3, 1: 8, 2: 40}).to_numpy()
    assert (renumbered == groups[made["sample"]]).all()


def test_natural_refusals():
    with pytest.raises(DataError, match="has no natural clients"):
        partition.natural(LABELS, None)
    with pytest.raises(DataError, match=r"groups is \[3\]. Allowed: the shape \[1000\]"):
        partition.natural(LABELS, np.zeros(3, int))
    with pytest.raises(DataError, match=r"number of samples of client 1 is 2. Allowed: at least 3"):
        partition.natural(LABELS, (np.arange(1000) < 2).astype(int))
    with pytest.raises(DataError, match=r"client 7 is 1, and 2 other clients have too few\. Allo"):
        partition.natural(LABELS, np.repeat([7, 8, 9, 10], [1, 2, 2, 995]))


# Files


def test_round_trip_keeps_values_types_notes_and_extra_columns(tmp_path):
    made = partition.dirichlet(LABELS, clients=30, alpha=1e-3, redraws=1)
    made["domain"] = np.where(made["client"] < 3, "sketch", "photo")
    partition.write(made, tmp_path / "deep" / "p.parquet")
    back = partition.read(tmp_path / "deep" / "p.parquet")
    assert back.drop(columns="domain").equals(made.drop(columns="domain"))
    assert list(back["domain"]) == list(made["domain"])
    assert len(back.attrs["notes"]) == 1
    assert back.attrs["notes"] == made.attrs["notes"]
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["p.parquet"]


def test_read_takes_other_widths_and_folder_names(tmp_path, table):
    folder = tmp_path / "domain=9"
    folder.mkdir()
    wide = table.astype({"client": "int64", "sample": "uint16", "split": object})
    wide.to_parquet(folder / "mine.parquet")
    back = file(LABELS, path=str(folder / "mine.parquet"))
    assert back.equals(table)
    assert back.attrs["notes"] == []


def put(table, row, **values):
    table = table.copy()
    for column, value in values.items():
        table.loc[row, column] = value
    return table


BROKEN = {
    "column": (lambda t: t.drop(columns="split"), "column 'split' is missing"),
    "float": (lambda t: t.astype({"sample": float}), "column 'sample' is float64. Allowed: int64"),
    "number": (lambda t: t.assign(split=1), "column 'split' is int64. Allowed: text"),
    "empty": (lambda t: t.iloc[:0], "the table has no rows"),
    "twice": (
        lambda t: put(t, 9, sample=t["sample"].iloc[3]),
        r"sample \d+ \(row 9\) occurs twice. Allowed: every sample at most once",
    ),
    "split": (lambda t: put(t, 0, split="dev"), "has split 'dev'. Allowed: train, val, test"),
    "gap": (lambda t: t[t["client"] != 2], "client 2 has no samples, but client 3 has"),
    "negative": (lambda t: put(t, 0, client=-4), "there is a client -4. Allowed: clients numbered"),
    "untested": (
        lambda t: t[(t["client"] != 1) | (t["split"] != "test")],
        "client 1 has no test samples. Allowed: at least one train and one test sample",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_validate_names_source_fault_and_what_is_allowed(table, fault):
    breaking, message = BROKEN[fault]
    with pytest.raises(DataError, match=f"^mine.parquet: .*{message}"):
        partition.validate(breaking(table), LABELS, source="mine.parquet")


# Content hash


def test_content_hash_sees_values_only(tmp_path, table):
    expected = partition.content_hash(table)
    shuffled = table.sample(frac=1, random_state=1)
    shuffled.attrs["notes"] = ["another"]
    shuffled["domain"] = 3
    assert partition.content_hash(shuffled) == expected
    shuffled.to_parquet(tmp_path / "p.parquet", compression="gzip")
    assert partition.content_hash(partition.read(tmp_path / "p.parquet")) == expected
    assert len(expected) == 64


def test_content_hash_is_pinned():
    table = pd.DataFrame({"sample": [1, 0], "client": [0, 0], "split": ["test", "train"]})
    bytes_of = "0000000000000000 0100000000000000 00000000 00000000"
    expected = hashlib.sha256(bytes.fromhex(bytes_of) + b"train\ntest").hexdigest()
    assert partition.content_hash(table) == expected


# Statistics


def test_statistics_match_hand_computed_values():
    labels = np.array([0, 0, 0, 1, 1, 2, 2, 2])
    table = pd.DataFrame(
        {
            "sample": np.arange(8),
            "client": np.array([0, 0, 0, 0, 1, 1, 1, 1], "int32"),
            "split": ["train", "train", "test", "train", "test", "train", "train", "train"],
        }
    )
    told = partition.statistics(table, labels, 4)
    assert list(told["client"]) == [0, 0, 1, 1]
    assert list(told["split"]) == ["train", "test", "train", "test"]
    assert list(told["n"]) == [3, 1, 3, 1]
    counts = told[["class_0", "class_1", "class_2", "class_3"]].to_numpy().tolist()
    assert counts == [[2, 1, 0, 0], [1, 0, 0, 0], [0, 0, 3, 0], [0, 1, 0, 0]]
    assert told["majority_share"].tolist() == pytest.approx([2 / 3, 1, 1, 1])
    entropy = math.log(3) - 2 / 3 * math.log(2)
    assert told["label_entropy"].tolist() == pytest.approx([entropy, 0, 0, 0])
    # Population 3/8, 2/8, 3/8, 0.
    emd = [7 / 24 + 1 / 12 + 3 / 8, 10 / 8, 10 / 8, 12 / 8]
    assert told["emd"].tolist() == pytest.approx(emd)
