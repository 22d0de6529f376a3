"""What a partition's scheme or table tells before the partition is made."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from fl.base import registry
from fl.base.errors import ConfigError, Location
from fl.data import partition_table
from fl.plan.partition_facts import PartitionFacts
from fl.plan.run_spec import RunSpec


def facts_of(scheme: dict[str, object], dataset: str = "digits", **keys: object) -> PartitionFacts:
    spec = {"name": dataset, **keys}
    return PartitionFacts(scheme, registry.component_of("data set", spec)[1], dataset)


def test_a_users_table_is_read_once_for_all_questions(tmp_path: Path) -> None:
    rows = {
        "sample": range(8),
        "client": [0, 0, 0, 1, 1, 1, 2, 2],
        "split": ["train", "val", "test", "train", "val", "test", "train", "test"],
        "unseen": [False] * 6 + [True] * 2,
    }
    table = pd.DataFrame(rows).astype({"client": "int32"})
    path = tmp_path / "own.parquet"
    partition_table.write(table, path)
    facts = facts_of({"name": "file", "path": str(path)})
    assert facts.clients == 3
    path.unlink()
    assert facts.has_split("val") and not facts.has_split("server")
    assert facts.has_unseen_clients and facts.clients == 3
    assert facts.note.startswith("digits: 1,789 of the 1,797 samples")


def test_keys_of_a_scheme_tell_splits_and_clients() -> None:
    facts = facts_of({"name": "dirichlet", "clients": 6, "val": 0.2, "test": "published"})
    assert facts.clients == 6 and facts.has_split("val") and not facts.has_split("server")
    assert (facts.share("val"), facts.share("test"), facts.share("server")) == (0.2, 0.0, 0.0)
    assert not facts.has_unseen_clients
    by_domain = facts_of(
        {"name": "domain", "clients_per_domain": 2}, "office-caltech10", side=8, complete=True
    )
    assert by_domain.clients == 8, "four domains"
    assert facts_of({"name": "natural"}).clients is None


def test_keys_tell_the_clients_of_a_part() -> None:
    for part, clients in (("all", 20), ("tuning", 7), ("scored", 13)):
        facts = facts_of({"name": "dirichlet", "clients": 20, "part": part})
        assert (facts.clients, facts.clients_of_all_parts) == (clients, 20)
    natural = facts_of({"name": "natural", "part": "tuning"}, "digits-domains")
    assert natural.clients is None, "whole blocks are drawn"
    assert natural.clients_of_all_parts == 5


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"division": 2}, "division"),
        ({"newcomer_samples": 5}, "newcomer_samples"),
        ({"newcomer_samples": 5, "unseen": 0.0, "part": "tuning"}, "newcomer_samples"),
        ({"part": "tuning", "unseen": 3}, "unseen"),
        ({"part": "scored", "clients": 1}, "part"),
    ],
)
def test_a_part_that_cannot_be_made_is_refused(keys: dict[str, object], key: str) -> None:
    scheme = {"name": "homogeneous", "clients": 9, "test": 0.2, **keys}
    with pytest.raises(ConfigError) as error:
        facts_of(scheme).check(Location("study.yaml") / "partition")
    assert str(error.value).startswith(f"study.yaml: partition.{key}: is {keys[key]}")
    facts_of({**scheme, "clients": 9, "part": "scored", "unseen": 3}).check(Location("study.yaml"))


def test_all_that_is_wrong_with_a_partition_is_told_at_once() -> None:
    scheme = {"name": "natural", "test": 0.7, "val": 0.4, "unseen": "published"}
    with pytest.raises(ConfigError) as error:
        facts_of(scheme).check(Location("study.yaml") / "partition")
    lines = str(error.value).splitlines()
    assert len(lines) == 3, "shares, the published split and the clients"
    assert all(line.startswith("study.yaml: partition") for line in lines)


def test_a_run_asks_its_own_data_set() -> None:
    spec = {"dataset": {"name": "digits"}, "partition": {"name": "homogeneous", "clients": 5}}
    run = RunSpec(spec)
    assert run.partition.clients == 5 and run.partition.dataset is run.dataset
