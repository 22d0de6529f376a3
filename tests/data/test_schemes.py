"""Promises that every scheme keeps, and those of the schemes that fix sizes or shares."""

from __future__ import annotations

import logging

import numpy as np
import partition
import pytest
from dealing import DOMAINS, EVEN, KEYS, LABELS, class_counts, make, sizes

from fl.base import registry
from fl.base.errors import ConfigError, DataError, Location
from fl.base.fields import parse
from fl.data.splitting import take_by_shares
from fl.engine.client_data import ClientData


def test_every_scheme_is_here():
    names = {name.replace("-", "_") for name in registry.names("partition scheme")}
    assert names == {*KEYS, "file"}
    assert all(callable(getattr(partition, name)) for name in names)


@pytest.mark.parametrize("scheme", KEYS)
def test_tables_are_partitions_and_keyed_by_the_seed(scheme):
    made = make(scheme)
    partition.validate(made, LABELS, source=scheme)
    assert len(sizes(made)) == 9
    assert made.equals(make(scheme))
    assert not made["sample"].equals(make(scheme, seed=1)["sample"])
    for _, mine in made.groupby("client"):
        sizes_of = mine["split"].value_counts()
        assert sizes_of["test"] == pytest.approx(0.2 * len(mine), abs=0.5 + 1e-9)
        assert sizes_of["val"] == pytest.approx(0.1 * len(mine), abs=0.5 + 1e-9)


@pytest.mark.parametrize("scheme", KEYS)
def test_keys_of_all_schemes(scheme):
    location = Location("study.yaml")
    given = parse(getattr(partition, scheme), KEYS[scheme], location)
    common = {"seed": 0, "val": 0.1, "test": 0.2, "unseen": 0.0}
    assert {key: given[key] for key in common} == common
    both = {"val": "published", "test": "published", "unseen": "published"}
    given = parse(getattr(partition, scheme), KEYS[scheme] | both, location)
    assert {key: given[key] for key in both} == both
    for key, value in (("test", "publishd"), ("unseen", 1.5), ("val", 2), ("unseen", -1)):
        with pytest.raises(ConfigError, match=f"study.yaml.*{key}"):
            parse(getattr(partition, scheme), KEYS[scheme] | {key: value}, location)
    assert parse(partition.homogeneous, {"clients": 3, "unseen": 1}, location)["unseen"] == 1


def rows(table, split):
    return table[table["split"] == split].reset_index(drop=True)


@pytest.mark.parametrize("scheme", KEYS)
def test_the_server_gets_its_share_of_what_clients_would_train_on(scheme):
    made, plain = make(scheme, server=0.25), make(scheme)
    for split in ("val", "test"):
        assert rows(made, split).equals(rows(plain, split))
    kept = made[made["split"].isin(["train", "server"])].set_index("sample")["client"]
    assert kept.sort_index().equals(
        plain[plain["split"] == "train"].set_index("sample")["client"].sort_index()
    )
    for _, mine in made.groupby("client"):
        share = 0.25 * len(mine)
        assert (mine["split"] == "server").sum() == pytest.approx(share, abs=0.5 + 1e-9)
    partition.validate(made, LABELS, source=scheme)
    data, before = ClientData.from_table(made), ClientData.from_table(plain)
    assert len(before.server) == 0
    assert data.server.tolist() == sorted(rows(made, "server")["sample"])
    assert set(data.samples) == {"train", "val", "test"}


def test_unseen_clients_give_the_server_nothing():
    made = make("dirichlet", server=0.25, unseen=3)
    seen = rows(made[~made["unseen"]], "server")
    assert ClientData.from_table(made).server.tolist() == sorted(seen["sample"])
    with pytest.raises(DataError, match=r"val \+ test \+ server is 1.3. Allowed: a sum < 1"):
        make("dirichlet", server=0.9, val=0.2)


# Taking by shares


def test_take_by_hand():
    left = np.array([10, 10, 10])
    assert take_by_shares(left, 10, np.log([0.5, 0.3, 0.2])).tolist() == [5, 3, 2]
    assert left.tolist() == [5, 7, 8]
    # Of 12, class 0 would give 8 and has 5: what is missing comes 1 to 1 from the others.
    assert take_by_shares(left, 12, np.log([4, 1, 1])).tolist() == [5, 4, 3]
    assert left.tolist() == [0, 3, 5]
    with np.errstate(divide="ignore"):
        assert take_by_shares(left, 12, np.log([1.0, 1.0, 0.0])).tolist() == [0, 3, 0]


def test_take_survives_shares_that_underflow():
    left = np.array([3, 100, 100])
    assert take_by_shares(left, 10, np.array([0.0, -1e5, -1e300])).tolist() == [3, 7, 0]


# Dirichlet with something of every class


@pytest.mark.parametrize(("alpha", "least"), [(5.0, 1), (0.1, 3), (1e-6, 1)])
def test_every_client_has_some_of_every_class(alpha, least):
    keys = {"clients": 5, "alpha": alpha, "min_per_class": least, "redraws": 20}
    made = partition.dirichlet(LABELS, **keys)
    assert class_counts(made).min() >= least
    assert sorted(made["sample"]) == list(range(1200))


def test_what_redraws_do_not_bring_is_moved_class_by_class(caplog):
    keys = {"clients": 12, "alpha": 0.02, "redraws": 0, "seed": 4}
    with caplog.at_level(logging.WARNING):
        plain = partition.dirichlet(LABELS, **keys, min_per_class=1)
    (note, *_) = plain.attrs["notes"]
    assert "12 of 12 clients had fewer than 1 samples of a class after 0 redraws; moved" in note
    assert note in [r.getMessage() for r in caplog.records]
    assert class_counts(plain).min() == 1
    assert class_counts(plain).sum(axis=0).tolist() == np.bincount(LABELS).tolist()


# Dirichlet of every client


@pytest.mark.parametrize("alpha", [1e-8, 0.1, 1000.0])
@pytest.mark.parametrize("clients", [1, 60])
def test_client_dirichlet_deals_everything_in_equal_sizes(alpha, clients):
    for seed in range(3):
        made = partition.client_dirichlet(LABELS, clients=clients, alpha=alpha, seed=seed)
        assert sorted(made["sample"]) == list(range(1200))
        assert np.ptp(sizes(made)) <= 1
        assert made.attrs["notes"] == []


# Dominant classes


def test_dominant_is_what_fedfm_has_for_ten_clients():
    """There 2,300 of 5,000 are of the dominant class, 300 of each of the others; here 1 in 10."""
    labels = np.repeat(np.arange(10), 500)
    made = partition.dominant(labels, clients=10)
    counts = class_counts(made, labels)
    assert (np.sort(counts, axis=1) == [30] * 9 + [230]).all()
    assert sorted(counts.argmax(axis=1)) == list(range(10))
    assert made.attrs["notes"] == []


def test_dominant_says_when_a_class_runs_out(caplog):
    rare = np.repeat([0, 1, 2], (560, 20, 20))
    with caplog.at_level(logging.WARNING):
        made = partition.dominant(rare, clients=6, share=0.9)
    (note,) = made.attrs["notes"]
    assert note.startswith("dominant: 4 of 6 clients got less than the share 0.9 of their dominant")
    assert [r.getMessage() for r in caplog.records] == [note]
    assert np.ptp(sizes(made)) <= 1


# Power law


@pytest.mark.parametrize("each", [1, 2, 10])
def test_power_law_sizes_are_skewed_and_no_client_is_too_small(each):
    made = partition.power_law(LABELS, clients=30, classes_per_client=each)
    counts = class_counts(made)
    assert ((counts > 0).sum(axis=1) <= each).all()
    assert counts.sum(axis=1).min() >= 10
    assert sorted(made["sample"]) == list(range(1200))
    assert counts.sum(axis=1).max() > 3 * np.median(counts.sum(axis=1))


def test_power_law_notes_unused_classes_and_refuses_what_does_not_fit():
    made = partition.power_law(LABELS, clients=3, classes_per_client=2)
    unused = sorted(set(range(10)) - set(LABELS[made["sample"]]))
    assert len(unused) == 4
    names = ", ".join(map(str, unused))
    assert made.attrs["notes"][0].startswith(f"power-law: nobody holds class {names};")
    rare = np.repeat([0, 1], (1000, 12))
    with pytest.raises(DataError, match="few enough that each gets 10 samples of its classes"):
        partition.power_law(rare, clients=8, classes_per_client=1)


# Missing classes


def test_all_classes_but_some_are_the_missing_classes_of_fedfm():
    made = partition.pathological(EVEN, clients=10, classes_per_client=7)
    counts = class_counts(made, EVEN)
    assert ((counts == 0).sum(axis=1) == 3).all()
    assert np.ptp(sizes(made)) <= 7
    assert sorted(made["sample"]) == list(range(1200))


# Equal domains, equal clients within them


@pytest.mark.parametrize("scheme", ["domain", "domain_dirichlet"])
def test_equal_domains_use_as_much_of_each_as_the_smallest_has(scheme):
    made = make(scheme, equal_domains=True)
    smallest = np.bincount(DOMAINS).min()
    assert np.bincount(made["domain"]).tolist() == [smallest] * 3
    other = make(scheme, equal_domains=True, seed=1)
    assert set(made["sample"]) != set(other["sample"])


@pytest.mark.parametrize(
    ("corruptions", "each", "keys"),
    [
        (10, 25, {"alpha": 0.5, "equal_clients": True}),
        (19, 3, {"alpha": 2.0, "min_per_class": 20}),
    ],
)
def test_cifar_10_c_of_the_papers(corruptions, each, keys):
    """250 and 57 clients, here of a tenth of the samples."""
    labels = np.tile(np.repeat(np.arange(10), 100), corruptions)
    domains = np.repeat(np.arange(corruptions), 1000)
    made = partition.domain_dirichlet(labels, domains, clients_per_domain=each, **keys)
    assert made["client"].nunique() == corruptions * each
    assert len(made) == len(labels)
    if "min_per_class" in keys:
        assert class_counts(made, labels).min() >= 20
    else:
        assert (sizes(made) == 40).all()
