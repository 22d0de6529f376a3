"""Published splits and unseen clients: one mechanism, whatever the scheme."""

from __future__ import annotations

import numpy as np
import pandas as pd
import partition
import pytest
from dealing import DOMAINS, GROUPS, KEYS, LABELS, class_counts, make

from fl.base.errors import DataError
from fl.data.splitting import SPLIT_NUMBERS, deal_in_proportion, round_to_total

DRAW = np.random.default_rng(3)
SPLIT = DRAW.choice([0, 1, 2], 1200, p=[0.7, 0.2, 0.1]).astype(np.int8)


def rows(table, split):
    return table[table["split"] == split]


@pytest.mark.parametrize("scheme", KEYS)
def test_test_samples_are_published_ones_in_the_clients_proportions(scheme):
    made = make(scheme, published=SPLIT, test="published")
    partition.validate(made, LABELS, source=scheme)
    assert (SPLIT[rows(made, "test")["sample"]] == SPLIT_NUMBERS["test"]).all()
    for other in ("train", "val"):
        assert (SPLIT[rows(made, other)["sample"]] != SPLIT_NUMBERS["test"]).all()
    # Of each class, a client's share of the tests is its share of the rest, to a sample or two.
    rest = class_counts(made[made["split"] != "test"])
    kind = {"natural": GROUPS, "domain": DOMAINS, "domain_dirichlet": DOMAINS}.get(scheme)
    tests = rows(made, "test")
    for (client, label), n in np.ndenumerate(rest):
        mine = (tests["client"] == client) & (LABELS[tests["sample"]] == label)
        if kind is None:
            here = label == LABELS
        else:
            sample = made.loc[made["client"] == client, "sample"].iloc[0]
            here = (label == LABELS) & (kind == kind[sample])
        due = (
            n
            * (here & (SPLIT_NUMBERS["test"] == SPLIT)).sum()
            / (here & (SPLIT_NUMBERS["test"] != SPLIT)).sum()
        )
        assert mine.sum() == pytest.approx(due, abs=2)


@pytest.mark.parametrize(
    ("exact", "total", "rounded"),
    [
        ([1.4, 1.3, -1.7], 1, [1, 0, 0]),
        ([0.6, 2.7, 0.7], 4, [0, 3, 1]),
        ([2.2, 3.9, 1.6], 6, [2, 3, 1]),
        ([-0.8, 0.3, 1.5], 3, [0, 1, 2]),
    ],
)
def test_whole_numbers_keep_their_sum(exact: list[float], total: int, rounded: list[int]):
    found = round_to_total(np.array(exact), total, np.random.default_rng(0))
    assert found.tolist() == rounded


@pytest.mark.parametrize("scheme", KEYS)
def test_who_trains_on_what_is_what_the_scheme_deals_of_the_others(scheme):
    """The scheme sees no published test sample: with these left out, it deals the same."""
    made = make(scheme, published=SPLIT, test="published", val=0.25)
    keep = np.flatnonzero(SPLIT_NUMBERS["test"] != SPLIT)
    arrays = {"natural": GROUPS, "domain": DOMAINS, "domain_dirichlet": DOMAINS}
    wanted = [arrays[scheme][keep]] if scheme in arrays else []
    alone = getattr(partition, scheme)(LABELS[keep], *wanted, **KEYS[scheme])
    clients = made[made["split"] != "test"].set_index("sample")["client"].sort_index()
    expected = alone.assign(sample=keep[alone["sample"]]).set_index("sample")["client"].sort_index()
    assert clients.equals(expected)
    share = (rows(made, "val").groupby("client").size() / clients.value_counts()).to_numpy()
    assert share == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize("scheme", KEYS)
def test_published_val_samples_are_dealt_alike(scheme):
    made = make(scheme, published=SPLIT, test="published", val="published")
    for split, code in SPLIT_NUMBERS.items():
        assert (SPLIT[rows(made, split)["sample"]] == code).all()
    partition.validate(made, LABELS, source=scheme)
    assert rows(made, "val")["client"].nunique() == 9


def test_natural_clients_keep_their_own_published_samples():
    """Also of classes that they do not train on."""
    labels = LABELS.copy()
    labels[(GROUPS == 4) & (SPLIT_NUMBERS["test"] == SPLIT)] = 77
    made = partition.natural(labels, GROUPS, SPLIT, test="published", val=0)
    assert len(made) == 1200
    assert (made.sort_values("sample")["client"].to_numpy() == GROUPS).all()
    assert (labels[rows(made, "test")["sample"]] == 77).sum() > 10


def test_what_nobody_trains_on_nobody_tests_on():
    made = partition.pathological(LABELS, SPLIT, clients=3, classes_per_client=2, test="published")
    classes = {s: set(LABELS[rows(made, s)["sample"]]) for s in ("train", "test")}
    assert classes["train"] == classes["test"]
    assert len(classes["train"]) == 6


def test_a_client_that_is_due_nothing_gets_one_and_a_note_says_so():
    client = np.repeat(np.arange(4), (97, 1, 1, 1))
    fine = np.zeros(110, int)
    members = np.arange(100, 110)
    strata = (fine, np.zeros(110, int))
    owner, notes = deal_in_proportion(
        "x", np.append(client, [-1] * 10), strata, np.arange(100), members, 0
    )
    assert np.bincount(owner).tolist() == [7, 1, 1, 1]
    assert notes == ["x: 3 clients were due none of the 10 published samples; each was given one"]
    few = "published samples for client 3 is 0. Allowed: at least one: fewer clients, or a share"
    with pytest.raises(DataError, match=f"x: the number of {few}"):
        deal_in_proportion(
            "x", np.append(client, [-1] * 10), strata, np.arange(100), members[:3], 0
        )


def test_no_client_is_given_a_sample_of_another_kind():
    split = np.where(GROUPS == 5, SPLIT_NUMBERS["train"], SPLIT)
    with pytest.raises(DataError, match="natural: the number of published samples for client 5"):
        partition.natural(LABELS, GROUPS, split, test="published")
    # Of many clients a domain, some are due nothing: what they are given is of their domain.
    split = (np.arange(1200) % 24 == 0).astype(int)
    made = partition.domain_dirichlet(
        LABELS, DOMAINS, split, clients_per_domain=8, alpha=0.02, test="published"
    )
    assert "clients were due none of the 50 published samples" in made.attrs["notes"][-1]
    assert (made["domain"] == made["client"] // 8).all()
    partition.validate(made, LABELS, source="x")


def test_a_data_set_without_such_a_split_is_refused():
    for keys in ({"test": "published"}, {"val": "published"}, {"unseen": "published"}):
        (key,) = keys
        with pytest.raises(DataError, match=f"homogeneous: {key} is published, but the data set"):
            partition.homogeneous(LABELS, clients=3, **keys)
    with pytest.raises(DataError, match=r"number of samples is 2. Allowed: at least 3 that are"):
        partition.homogeneous(np.zeros(10, int), np.arange(10) > 1, clients=1, test="published")


# Unseen clients


@pytest.mark.parametrize("scheme", KEYS)
def test_clients_are_held_out_and_nothing_else_changes(scheme):
    made, plain = make(scheme, unseen=0.34), make(scheme)
    assert made.drop(columns="unseen").equals(plain)
    assert made["unseen"].dtype == bool
    away = made.groupby("client")["unseen"].agg(["min", "max"])
    assert (away["min"] == away["max"]).all()
    assert away["max"].sum() == 3
    partition.validate(made, LABELS, source=scheme)
    assert "unseen" not in plain


def test_clients_without_published_training_samples_are_held_out():
    split = np.where(GROUPS >= 6, 1 + GROUPS % 2, 0)
    split[np.flatnonzero(GROUPS == 6)[0]] = 0
    made = partition.natural(LABELS, GROUPS, split, unseen="published")
    assert partition.unseen_clients(made).tolist() == [7, 8]
    with pytest.raises(DataError, match=r"unseen is published. Allowed: some client without"):
        partition.natural(LABELS, GROUPS, np.arange(1200) % 2, unseen="published")


def test_published_samples_of_clients_without_others_are_counted_in_a_note():
    split = np.where(GROUPS >= 7, 1, np.arange(1200) % 4 == 0).astype(np.int8)
    made = partition.natural(LABELS, GROUPS, split, test="published")
    assert made["client"].nunique() == 7
    count, total = int((GROUPS >= 7).sum()), int((split == 1).sum())
    start = f"natural: {count} of the {total} published test samples are left out, as they are of "
    [note] = made.attrs["notes"]
    assert note.startswith(f"{start}2 clients without")
    assert len(rows(made, "test")) == total - count
    domains = np.where(GROUPS >= 7, 2, GROUPS % 2)
    made = partition.domain(LABELS, domains, split, clients_per_domain=2, test="published")
    [note] = made.attrs["notes"]
    assert f"{count} of the {total} published test samples" in note and "1 domain without" in note


def test_clients_of_published_test_samples_alone_are_held_out():
    """Others keep what they have without them; theirs are divided by the default shares."""
    split = np.where(np.isin(GROUPS, [0, 7]), 1, np.arange(1200) % 4 == 0).astype(np.int8)
    made = partition.natural(LABELS, GROUPS, split, test="published", unseen="published")
    partition.validate(made, LABELS, source="natural")
    assert partition.unseen_clients(made).tolist() == [0, 7]
    assert (GROUPS[made["sample"]] == made["client"]).all() and len(made) == 1200
    for client in (0, 7):
        sizes = made[made["client"] == client]["split"].value_counts()
        n = int((client == GROUPS).sum())
        assert sizes["test"] == round(0.2 * n) and sizes["val"] == round(0.1 * n)
    [note] = made.attrs["notes"]
    assert "2 unseen clients" in note and "val 0.1" in note and "test 0.2" in note
    plain = partition.natural(LABELS, GROUPS, split, test="published")
    names = np.flatnonzero(~np.isin(np.arange(9), [0, 7]))
    kept = made[~made["unseen"]].drop(columns="unseen").reset_index(drop=True)
    assert plain.assign(client=names[plain["client"]].astype(np.int32)).equals(kept)


@pytest.mark.parametrize("unseen", [9, 0.01])
def test_all_clients_or_no_whole_client_cannot_be_held_out(unseen):
    with pytest.raises(
        DataError, match=f"unseen is {unseen}. Allowed: 0, or as many as make 1 to 8"
    ):
        make("natural", unseen=unseen)


def test_tables_with_unseen_clients_are_stored_hashed_and_checked(tmp_path):
    made, plain = make("natural", unseen=2), make("natural")
    partition.write(made, tmp_path / "p.parquet")
    back = partition.read(tmp_path / "p.parquet")
    assert back.equals(made)
    assert partition.content_hash(back) != partition.content_hash(plain)
    assert partition.content_hash(plain.assign(unseen=False)) == partition.content_hash(plain)
    other = made.assign(unseen=made["client"] == 0)
    assert partition.content_hash(other) != partition.content_hash(made)

    def refused(table: pd.DataFrame, message: str) -> None:
        with pytest.raises(DataError, match=f"^mine: {message}"):
            partition.validate(table, LABELS, source="mine")

    refused(
        made.assign(unseen=(made["split"] == "test").to_numpy(bool)),
        "client 0 differs in 'unseen' from row to row",
    )
