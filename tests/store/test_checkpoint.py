from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import killing
import numpy as np
import pandas as pd
import pytest
import torch

from fl.base import files
from fl.base.errors import DataError, FedloomError
from fl.base.row_file import Place, RowFile, read_rows
from fl.store import checkpoint
from fl.store.run_record import SAVED_RECORD, SAVED_ROWS, SAVED_STATE

FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64"]
INTEGERS = ["int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def any_bits(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A tensor of arbitrary bits, so with NaNs of every kind, infinities and subnormals."""
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    size = torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(0, 256, (*shape, size), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def modality_state(round: int) -> checkpoint.Tree:
    """A state that tells which round it is of."""
    generator = torch.Generator().manual_seed(round)
    return {
        "server": {"w": torch.randn(60, 50, generator=generator), "n": torch.tensor(round)},
        "clients": {},
    }


def rows_of(round: int) -> pd.DataFrame:
    return pd.DataFrame({"round": range(round), "value": [r / 3 for r in range(round)]})


def save(folder: Path, round: int) -> None:
    checkpoint.save_checkpoint(
        folder, round, modality_state(round), {"round": round}, rows_of(round)
    )


def is_of(found: checkpoint.Checkpoint | None, round: int) -> bool:
    """Whether everything in a checkpoint is of that round."""
    if found is None:
        return False
    assert bits(found.state["server"]["w"]) == bits(modality_state(found.round)["server"]["w"])
    assert int(found.state["server"]["n"]) == found.round
    assert found.state["clients"] == {}
    pd.testing.assert_frame_equal(found.rows, rows_of(found.round))
    assert found.extra == {"round": found.round}
    return found.round == round


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", FLOATS + INTEGERS)
def test_every_type_survives_to_the_bit(name: str, tmp_path: Path) -> None:
    dtype = getattr(torch, name)
    tree = {
        "matrix": any_bits(dtype, 7, 5),
        "scalar": any_bits(dtype, 1)[0],
        "none": any_bits(dtype, 0, 3),
        "turned": any_bits(dtype, 4, 6).T,
    }
    checkpoint.save_tree(tree, tmp_path / "tree")
    back = checkpoint.load_tree(tmp_path / "tree")
    assert list(back) == list(tree)
    for key, tensor in tree.items():
        assert back[key].dtype == dtype
        assert back[key].shape == tensor.shape
        assert bits(back[key]) == bits(tensor), key


def test_order_layout_and_empty_dicts_survive(tmp_path: Path) -> None:
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    column = torch.randn(5, 4)[:, 1]
    tree = {
        "z": {"b": image, "a": {"deep": {}}},
        "empty": {},
        "a": {"x": column, "expanded": torch.ones(1).expand(3)},
        "grad": torch.ones(2, requires_grad=True),
    }
    checkpoint.save_tree(tree, tmp_path / "tree")
    back = checkpoint.load_tree(tmp_path / "tree")
    assert [*back, *back["z"], *back["a"]] == [*tree, *tree["z"], *tree["a"]]
    assert back["z"]["a"] == {"deep": {}}
    assert back["empty"] == {}
    assert back["z"]["b"].stride() == image.stride()
    assert torch.equal(back["z"]["b"], image)
    assert back["a"]["x"].stride() == (1,)
    assert torch.equal(back["a"]["x"], column)
    assert torch.equal(back["a"]["expanded"], torch.ones(3))
    assert not back["grad"].requires_grad


def test_tensors_that_share_memory_come_back_apart(tmp_path: Path) -> None:
    base = torch.arange(10.0)
    checkpoint.save_tree({"all": base, "same": base, "part": base[3:6]}, tmp_path / "tree")
    back = checkpoint.load_tree(tmp_path / "tree")
    back["all"].zero_()
    assert torch.equal(back["same"], base)
    assert torch.equal(back["part"], base[3:6])


def test_a_loaded_tree_outlives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    checkpoint.save_tree({"w": torch.arange(100_000)}, path)
    back = checkpoint.load_tree(path)
    path.write_bytes(bytes(path.stat().st_size))
    assert torch.equal(back["w"], torch.arange(100_000))


@pytest.mark.parametrize("tree", [{"a/b": torch.ones(1)}, {"": torch.ones(1)}, {1: torch.ones(1)}])
def test_a_key_that_cannot_be_a_name_is_refused(tree: checkpoint.Tree, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="key"):
        checkpoint.save_tree(tree, tmp_path / "tree")
    assert names(tmp_path) == []


def test_the_newest_are_kept_and_the_newest_is_loaded(tmp_path: Path) -> None:
    assert checkpoint.load_latest(tmp_path / "none") is None
    for round in (5, 10, 100, 1_000_000):
        save(tmp_path, round % 7)
    assert names(tmp_path) == ["round-000003", "round-000005"]
    assert is_of(checkpoint.load_latest(tmp_path), 5)
    save(tmp_path, 1_000_000)
    assert names(tmp_path) == ["round-000005", "round-1000000"]
    assert is_of(checkpoint.load_latest(tmp_path), 1_000_000)


@pytest.mark.parametrize("name", [SAVED_STATE, SAVED_ROWS, SAVED_RECORD])
@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_one_is_removed(
    name: str, harm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for round in (10, 20):
        save(tmp_path, round)
    path = tmp_path / "round-000020" / name
    content = bytearray(path.read_bytes())
    place = len(content) // 2
    if harm == "flip":
        content[place] ^= 1
    path.write_bytes(content if harm == "flip" else content[:place])
    if harm == "remove":
        path.unlink()

    with caplog.at_level(logging.WARNING):
        assert is_of(checkpoint.load_latest(tmp_path), 10)
    assert names(tmp_path) == ["round-000010"]
    (warning,) = caplog.messages
    assert str(tmp_path / "round-000020") in warning
    assert name in warning

    save(tmp_path, 20)
    assert is_of(checkpoint.load_latest(tmp_path), 20)


def test_no_flipped_bit_in_a_record_goes_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record = {"round": 3, "text": "é", "list": [0.1, None, True], "nan": float("nan")}
    files.write_sealed(path, record)
    good, before = path.read_bytes(), json.dumps(files.read_sealed(path))
    for place in range(len(good)):
        for bit in (0, 5):
            bad = bytearray(good)
            bad[place] ^= 1 << bit
            path.write_bytes(bad)
            try:
                after = files.read_sealed(path)
            except DataError:
                continue
            assert json.dumps(after) == before  # Another spelling of the same thing.


def test_when_all_are_damaged_there_is_none(tmp_path: Path) -> None:
    save(tmp_path, 10)
    (tmp_path / "round-000010" / SAVED_RECORD).write_text("{")
    assert checkpoint.load_latest(tmp_path) is None
    assert names(tmp_path) == []


def save_next(folder: Path) -> None:
    newest = checkpoint.load_latest(folder)
    save(folder, newest.round + 1 if newest else 1)


def save_again(folder: Path) -> None:
    save(folder, 2)


@pytest.mark.parametrize("act", [save_next, save_again])
def test_killed_at_every_touch_of_the_disk(
    act: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path / "start", 1)
    save(tmp_path / "start", 2)
    kills = 0
    while True:
        folder = tmp_path / str(kills)
        shutil.copytree(tmp_path / "start", folder)
        if not killing.killed_at(kills + 1, act, folder):
            break
        newest = checkpoint.load_latest(folder)
        assert is_of(newest, 2) or is_of(newest, 3 if act is save_next else 1)
        assert not [name for name in names(folder) if name.endswith(".tmp")]
        kills += 1
    assert kills >= 10
    assert caplog.messages == []
    newest = checkpoint.load_latest(folder)
    assert is_of(newest, 3 if act is save_next else 2)


SIZE = 5000


def table_of(round: int) -> np.ndarray:
    """The rows of clients after a round, which changes those of the first ``round % 6``."""
    last = [max((r for r in range(1, round + 1) if k < r % 6), default=0) for k in range(6)]
    return np.random.default_rng(0).integers(0, 99, (6, SIZE), np.uint8) + np.uint8([last]).T


def save_in_file(folder: Path, rounds: Sequence[int]) -> None:
    """Save checkpoints as a process does that has the clients of its run in a file."""
    file, places, held = RowFile(SIZE), list[Place](), list[list[Place]]()
    file.folder = folder.parent
    folder.mkdir(exist_ok=True)
    for round in rounds:
        changed = round % 6 if places else 6
        places = [*file.write(table_of(round)[:changed]), *places[changed:]]
        file.seal(places)
        clients = {
            "places": torch.tensor([place.number for place in places]),
            "digests": torch.tensor([list(place.digest) for place in places], dtype=torch.uint8),
        }
        state = {"run": {**modality_state(round), "clients": clients}}
        checkpoint.save_checkpoint(folder, round, state, {}, rows_of(round), {"run": file})
        held = [*held, places][-checkpoint.MAX_CHECKPOINTS :]


def round_in_file(folder: Path) -> int:
    """The round of the newest checkpoint, all of whose rows are of that round."""
    found = checkpoint.load_latest(folder)
    assert found is not None
    numbers = found.state["run"]["clients"]["places"].tolist()
    rows = np.concatenate([*read_rows(found.row_files["run"], SIZE, numbers)])
    assert (rows == table_of(found.round)).all()
    return found.round


def test_clients_in_a_file_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    save_in_file(tmp_path, range(1, 9))
    assert names(tmp_path) == ["round-000007", "round-000008"]
    stored = [(tmp_path / name / "run.rows").stat() for name in names(tmp_path)]
    assert stored[0].st_ino == stored[1].st_ino, "one file of two names"
    assert stored[0].st_size <= (6 + 3 * 5) * SIZE
    assert round_in_file(tmp_path) == 8
    shutil.rmtree(tmp_path / "round-000008")
    assert round_in_file(tmp_path) == 7, "later rounds wrote nothing to its places"


def test_killed_at_every_touch_of_the_disk_with_clients_in_a_file(tmp_path: Path) -> None:
    kills = 0
    save_in_file(tmp_path / "start", [1, 2])
    while True:
        folder = tmp_path / str(kills)
        shutil.copytree(tmp_path / "start", folder)
        if not killing.killed_at(kills + 1, save_in_file, folder, [3, 4]):
            break
        assert round_in_file(folder) in (2, 3, 4)
        assert not [name for name in names(folder) if name.startswith(".round")]
        kills += 1
    assert kills >= 20
    assert round_in_file(folder) == 4


@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_row_of_a_client_is_noticed(
    harm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for rounds in ([1], [2]):  # Two processes, each with a file of its own.
        save_in_file(tmp_path, rounds)
    path = tmp_path / "round-000002" / "run.rows"
    content = bytearray(path.read_bytes())
    found = checkpoint.load_latest(tmp_path)
    assert found is not None
    last = max(found.state["run"]["clients"]["places"].tolist())
    if harm == "flip":
        content[last * SIZE + 7] ^= 1
    path.unlink()
    if harm != "remove":
        path.write_bytes(content if harm == "flip" else content[: last * SIZE])
    assert round_in_file(tmp_path) == 1
    assert names(tmp_path) == ["round-000001"]
    assert "run.rows" in caplog.text


def test_a_file_of_clients_is_copied_where_it_cannot_get_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    save_in_file(tmp_path, range(1, 5))
    assert round_in_file(tmp_path) == 4


def test_a_full_disk_leaves_the_ones_before(small_disk: Path) -> None:
    folder = small_disk / "checkpoint"
    for round in (1, 2):
        save(folder, round)
    big = {"w": torch.zeros(200, 200, dtype=torch.float64)}
    with pytest.raises(FedloomError, match="round-000003: the disk is full; free some space"):
        checkpoint.save_checkpoint(folder, 3, big, {}, rows_of(3))
    assert names(folder) == ["round-000001", "round-000002"]
    assert is_of(checkpoint.load_latest(folder), 2)
    save(folder, 3)
    assert is_of(checkpoint.load_latest(folder), 3)
