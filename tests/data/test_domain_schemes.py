from __future__ import annotations

import numpy as np
import pandas as pd
import partition
import pytest

from fl.base.errors import DataError, Location
from fl.base.fields import parse
from fl.data import partitioning, preparation

RNG = np.random.default_rng(5)
LABELS = RNG.integers(0, 10, 1200)
DOMAINS = RNG.choice([0, 1, 2], 1200, p=[0.5, 0.3, 0.2])
DIGITS = {"name": "digits"}

SCHEMES = {
    "domain": lambda seed: partition.domain(LABELS, DOMAINS, clients_per_domain=3, seed=seed),
    "domain_dirichlet": lambda seed: partition.domain_dirichlet(
        LABELS, DOMAINS, clients_per_domain=3, alpha=0.4, seed=seed
    ),
}


# Both


@pytest.mark.parametrize("scheme", SCHEMES)
def test_clients_are_numbered_domain_by_domain_and_hold_one_each(scheme):
    made = SCHEMES[scheme](0)
    assert sorted(made["sample"]) == list(range(1200))
    assert set(made["client"]) == set(range(9))
    assert (DOMAINS[made["sample"]] == made["client"] // 3).all()
    assert (made["domain"] == made["client"] // 3).all()
    partition.validate(made, LABELS, source=scheme)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_domain_is_dealt_alike_whatever_the_others_hold(scheme):
    # Domain 2 loses half of its samples: who holds what in the others stays.
    made = SCHEMES[scheme](0).set_index("sample")["client"]
    keep = np.flatnonzero((DOMAINS != 2) | (np.arange(1200) % 2 == 0))
    function = getattr(partition, scheme)
    extra = {"alpha": 0.4} if scheme == "domain_dirichlet" else {}
    fewer = function(LABELS[keep], DOMAINS[keep], clients_per_domain=3, **extra)
    fewer = fewer[fewer["domain"] < 2]
    assert (fewer["client"].to_numpy() == made.loc[keep[fewer["sample"]]].to_numpy()).all()


@pytest.mark.parametrize("scheme", ["domain", "domain_dirichlet"])
def test_refusals(scheme):
    function, name = getattr(partition, scheme), scheme.replace("_", "-")
    extra = {"alpha": 1.0} if scheme == "domain_dirichlet" else {}
    least = 10 if extra else 3
    with pytest.raises(DataError, match=f"partition {name}: the data set has no domains. Try"):
        function(LABELS, None, clients_per_domain=1, **extra)
    n = int((DOMAINS == 2).sum())
    with pytest.raises(DataError) as error:
        function(LABELS, DOMAINS, clients_per_domain=n // least + 1, **extra)
    for part in (
        f"partition {name}: clients_per_domain is {n // least + 1}",
        f"Allowed: 1 to {n // least}, as domain 2 has {n} samples and each client needs {least}",
    ):
        assert part in str(error.value)


def test_distances_between_domains_lie_beside_the_partition(tmp_path):
    spec = {"name": "domain", **parse(partition.domain, {}, Location("x"))}
    domains = {"name": "digits-domains"}
    partitioning.make_partition(spec, domains, tmp_path, tmp_path)
    [path] = (tmp_path / "partitions").glob("*/domains.parquet")
    found = pd.read_parquet(path, partitioning=None)
    names = preparation.prepare_dataset(domains, tmp_path).domains
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    assert list(zip(found["domain"], found["other"], strict=True)) == pairs
    assert (found["mmd2"] > 0.01).all()
    plain = {"name": "homogeneous", **parse(partition.homogeneous, {"clients": 3}, Location("x"))}
    partitioning.make_partition(plain, DIGITS, tmp_path, tmp_path)
    assert len(list((tmp_path / "partitions").glob("*/domains.parquet"))) == 1


# Homogeneous within a domain


def test_one_client_a_domain_is_the_natural_partition():
    made = partition.domain(LABELS, DOMAINS)
    assert made.drop(columns="domain").equals(partition.natural(LABELS, DOMAINS))


# Dirichlet within a domain


def test_dirichlet_keeps_the_least_size_and_says_which_domain_was_repaired():
    scheme = {"clients_per_domain": 12, "alpha": 1e-3, "redraws": 1}
    made = partition.domain_dirichlet(LABELS, DOMAINS, **scheme, min_samples=15)
    assert made.groupby("client").size().min() == 15
    assert [note.split(" with")[0] for note in made.attrs["notes"]] == [
        f"domain {d}: dirichlet:" for d in range(3)
    ]
    assert (
        partition.domain_dirichlet(LABELS, DOMAINS, clients_per_domain=2, alpha=5.0).attrs["notes"]
        == []
    )
