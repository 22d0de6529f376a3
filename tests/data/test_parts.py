"""Parts of clients, one to tune on and one to score, and newcomers with few samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import partition
import pytest
from dealing import GROUPS, KEYS, LABELS, make

from fl.base import registry
from fl.base.errors import DataError, Location
from fl.base.files import read_sealed
from fl.base.folders import partition_folder
from fl.data import partition_table, partitioning, preparation
from fl.data.partitioning import make_partition, partition_id

PARTS = ("tuning", "scored")
SMALL = np.repeat(np.arange(60), 20)
"""Sixty natural clients of twenty samples."""
BLOCK = SMALL % 20 // 3
"""Their blocks: six of nine clients and one of six."""


def origins(table: pd.DataFrame) -> set[int]:
    return set(table["origin"])


def clients_of(table: pd.DataFrame) -> pd.DataFrame:
    """Sample, split and number among all clients."""
    columns = table.rename(columns={"client": "number"}).rename(columns={"origin": "client"})
    return columns[["sample", "client", "split"]]


@pytest.mark.parametrize("scheme", KEYS)
def test_parts_are_disjoint_and_together_all_clients(scheme: str) -> None:
    whole = make(scheme, server=0.1)
    tuning, scored = (make(scheme, server=0.1, part=part) for part in PARTS)
    for part in (tuning, scored):
        partition.validate(part, LABELS, source=scheme)
        numbers = part.groupby("client")["origin"].unique()
        assert all(len(origin) == 1 for origin in numbers)
        assert part["origin"].is_monotonic_increasing and part["origin"].dtype == "int32"
    assert tuning["client"].nunique() == 3 and scored["client"].nunique() == 6
    assert not origins(tuning) & origins(scored)
    both = pd.concat([clients_of(tuning), clients_of(scored)]).sort_values("sample")
    expected = whole[["sample", "client", "split"]].sort_values("sample")
    assert both.reset_index(drop=True).equals(expected.reset_index(drop=True))
    assert "origin" not in whole


@pytest.mark.parametrize("scheme", KEYS)
def test_no_seed_brings_a_sample_of_a_scored_client_to_a_tuning_client(scheme: str) -> None:
    split = np.random.default_rng(5).choice([0, 1], len(LABELS), p=[0.7, 0.3]).astype(np.int8)
    for keys in ({}, {"published": split, "test": "published"}):
        drawn = [make(scheme, seed=seed, part="tuning", division=4, **keys) for seed in (0, 1)]
        assert {*drawn[0]["sample"]} == {*drawn[1]["sample"]}
        scored = make(scheme, seed=2, part="scored", division=4, **keys)
        assert not {*drawn[0]["sample"]} & {*scored["sample"]}
        trained = [{*table.loc[table["split"] == "train", "sample"]} for table in drawn]
        assert trained[0] != trained[1], "splits are those of the seed"


def test_the_division_decides_who_tunes() -> None:
    tuning = [
        origins(partition.natural(np.zeros_like(SMALL), SMALL, part="tuning", division=d, seed=s))
        for d, s in ((0, 0), (0, 1), (1, 0))
    ]
    assert tuning[0] == tuning[1] != tuning[2]
    assert [len(part) for part in tuning] == [20, 20, 20]


@pytest.mark.parametrize(("clients", "tuning"), [(2, 1), (3, 1), (4, 1), (5, 2), (30, 10)])
def test_a_third_is_the_nearest_number(clients: int, tuning: int) -> None:
    part = partition.homogeneous(LABELS, clients=clients, part="tuning")
    assert part["client"].nunique() == tuning


@pytest.mark.parametrize("division", range(5))
def test_blocks_stay_whole(division: int) -> None:
    keys = {"block": BLOCK, "division": division}
    tuning, scored = (
        partition.natural(np.zeros_like(SMALL), SMALL, part=part, **keys) for part in PARTS
    )
    assert not {*BLOCK[tuning["sample"]]} & {*BLOCK[scored["sample"]]}
    assert {*BLOCK[tuning["sample"]]} | {*BLOCK[scored["sample"]]} == {*BLOCK}
    assert len(origins(tuning)) in (18, 24), "as near to twenty as the order of blocks allows"
    assert origins(tuning) | origins(scored) == set(range(60))
    plain = partition.natural(np.zeros_like(SMALL), SMALL)
    blocks = partition.natural(np.zeros_like(SMALL), SMALL, block=BLOCK)
    assert plain.equals(blocks), "without parts they have no effect"


@pytest.mark.parametrize("scheme", KEYS)
def test_a_newcomer_has_few_training_samples(scheme: str) -> None:
    keys = {"unseen": 3, "seed": 2, "server": 0.1}
    whole = make(scheme, **keys)
    few, fewer = (make(scheme, newcomer_samples=most, **keys) for most in (5, 2))
    partition.validate(few, LABELS, source=scheme)
    for table, most in ((few, 5), (fewer, 2)):
        is_newcomers = table["unseen"] & (table["split"] == "train")
        assert (table[is_newcomers].groupby("client").size() == most).all()
        rest = whole[~(whole["unseen"] & (whole["split"] == "train"))]
        assert table[~is_newcomers].reset_index(drop=True).equals(rest.reset_index(drop=True))
    assert {*fewer["sample"]} < {*few["sample"]} < {*whole["sample"]}
    assert make(scheme, newcomer_samples=1000, **keys).equals(whole)
    other = make(scheme, newcomer_samples=5, **{**keys, "seed": 3})
    assert {*other["sample"]} != {*few["sample"]}


def test_newcomers_are_clients_of_the_part() -> None:
    tuning = make("natural", part="tuning", unseen=1, newcomer_samples=4)
    assert partition.unseen_clients(tuning).tolist() in ([0], [1], [2])
    assert (tuning["unseen"] & (tuning["split"] == "train")).sum() == 4
    counts = make("natural", part="scored", modalities=(2, 4)).groupby("client")["modality"].first()
    assert counts.tolist() == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("scheme", "keys", "message"),
    [
        ("homogeneous", {"clients": 1, "part": "tuning"}, "part is tuning, but there is 1 client"),
        ("homogeneous", {"part": "half"}, "part is half. Allowed: all, tuning, scored"),
        ("homogeneous", {"part": "tuning", "unseen": 3}, "unseen is 3. Allowed: .* of the 3 cli"),
        ("homogeneous", {"newcomer_samples": 5}, "newcomer_samples is 5. Allowed: null"),
        ("natural", {"newcomer_samples": 0, "unseen": 2}, "newcomer_samples is 0"),
        ("natural", {"block": np.zeros_like(GROUPS), "part": "scored"}, "part is scored, .* 1 blo"),
        ("natural", {"block": np.arange(1200), "part": "scored"}, "client 0 has samples of 134 bl"),
        ("natural", {"block": np.arange(3), "part": "scored"}, r"block is \[3\]"),
    ],
)
def test_impossible_values_are_refused(scheme: str, keys: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make(scheme, **keys)


def spec_of(kind: str, name: str, keys: dict[str, object]) -> dict[str, object]:
    component = registry.find(kind, name, Location("the test"))
    return {"name": name, **component.parse(keys, Location("the test"))}


def test_a_partition_without_the_keys_has_its_former_id() -> None:
    keys = {"clients": 5, "alpha": 0.5, "seed": 3, "unseen": 0.2}
    spec = spec_of("partition scheme", "dirichlet", keys)
    former = {k: v for k, v in spec.items() if k not in ("part", "division", "newcomer_samples")}
    assert len(former) == len(spec) - 3
    ids = [partition_id(given, "digits-1", lambda root: "code") for given in (spec, former)]
    assert ids[0] == ids[1]
    assert partition_id({**spec, "part": "tuning"}, "digits-1", lambda root: "code") != ids[0]


def test_names_of_clients_follow_a_part(tmp_path: Path) -> None:
    lines = ["x,label,school"]
    lines += [f"{n},{n % 2},school {n % 9:02d}" for n in range(180)]
    (tmp_path / "pupils.csv").write_text("\n".join(lines))
    keys = {"path": str(tmp_path / "pupils.csv"), "label": "label", "client": "school"}
    dataset = spec_of("data set", "table", keys)
    scheme = spec_of("partition scheme", "natural", {"part": "tuning", "division": 2})
    table = make_partition(scheme, dataset, tmp_path / "data", tmp_path / "results")
    folder = partition_folder(
        tmp_path / "results", partition_id(scheme, preparation.dataset_id(dataset))
    )
    record = read_sealed(folder / partitioning.RECORD_FILE)
    numbers = table.groupby("client")["origin"].first()
    assert record["client_names"] == [f"school {number:02d}" for number in numbers]
    assert table.equals(partition_table.read(folder / partitioning.TABLE_FILE))
