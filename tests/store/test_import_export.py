"""Runs arrive whole or not at all, and what is there stays."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import killing
import pytest
import shelving

from fl.base import files
from fl.base.errors import DataError, FedloomError
from fl.store import import_export, run_check
from fl.store.checkpoint import save_tree
from fl.store.import_export import BUSY, CONFLICT, DAMAGED, EXISTING, NEW
from fl.store.store import Store


@pytest.fixture
def ours(tmp_path: Path) -> Store:
    return Store(tmp_path / "ours", beat=0.2)


@pytest.fixture
def theirs(tmp_path: Path) -> Store:
    return Store(tmp_path / "theirs", beat=0.2)


def content(store: Store, run: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.folder(run).iterdir()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("weights", [False, True])
def test_a_run_arrives_as_it_is(ours: Store, theirs: Store, weights: bool):
    run = shelving.add(ours, weights=weights)
    assert import_export.copy_run(run, ours, theirs).outcome == NEW
    assert content(theirs, run) == content(ours, run)
    assert theirs.has_weights(run) is weights
    assert import_export.copy_run(run, ours, theirs).outcome == EXISTING
    assert names(theirs.root) == [run]


@pytest.mark.parametrize(("theirs_is", "outcome"), [(1.5 + 1e-6, EXISTING), (1.5001, CONFLICT)])
def test_the_same_run_may_differ_in_last_digits(
    ours: Store, theirs: Store, theirs_is: float, outcome: str
):
    run = shelving.add(ours, value=1.5, weights=True)
    assert shelving.add(theirs, value=theirs_is, weights=True) == run
    before = content(theirs, run)
    assert before["metrics.parquet"] != content(ours, run)["metrics.parquet"]
    moved = import_export.copy_run(run, ours, theirs)
    assert moved.outcome == outcome
    assert ("differs from" in moved.reason) is (outcome == CONFLICT)
    assert content(theirs, run) == before


def test_other_numbers_of_another_stack_are_told_and_what_is_there_stays(
    ours: Store, theirs: Store
):
    run = shelving.add(ours, value=1.5)
    shelving.add(theirs, value=1.6)
    path = theirs.folder(run) / "run.json"
    record = files.read_sealed(path)
    described = record.pop("files")
    record["execution"]["stack"] = [run, "0123456789abcdef"]
    files.write_described(path, record, described)
    before = content(theirs, run)
    moved = import_export.copy_run(run, ours, theirs)
    assert moved.outcome == EXISTING
    assert moved.reason.endswith("(metrics.parquet), because its stack differs; it stays")
    assert content(theirs, run) == before


@pytest.mark.parametrize(
    ("theirs_is", "processor", "torch", "outcome"),
    [
        (1.5, "a", "2.0", EXISTING),
        (1.5 + 1e-9, "a", "2.0", CONFLICT),
        (1.6, "b", "2.0", CONFLICT),
        (1.6, "b", "2.1", EXISTING),
    ],
)
def test_portable_runs_are_equal_to_the_last_digit_on_all_processors(
    ours: Store, theirs: Store, theirs_is: float, processor: str, torch: str, outcome: str
):
    run = shelving.add(ours, value=1.5)
    shelving.add(theirs, value=theirs_is)
    for store, name, version in ((ours, "a", "2.0"), (theirs, processor, torch)):
        path = store.folder(run) / "run.json"
        record = files.read_sealed(path)
        described = record.pop("files")
        record["execution"]["arithmetic"] = "portable"
        record["environment"] = {"processor": name}
        record["versions"] = {"torch": version}
        files.write_described(path, record, described)
    moved = import_export.copy_run(run, ours, theirs)
    assert moved.outcome == outcome
    assert ("both runs are portable" in moved.reason) == (outcome == CONFLICT)
    assert ("torch" in moved.reason) == (torch == "2.1")


@pytest.mark.parametrize(("change", "outcome"), [(1e-7, EXISTING), (0.1, CONFLICT)])
def test_weights_are_compared_by_value(ours: Store, theirs: Store, change: float, outcome: str):
    run = shelving.add(ours, weights=True)
    shelving.add(theirs, weights=True)
    folder = theirs.root / run
    tree = theirs.weights(run)
    save_tree(
        {key: _plus(value, change) for key, value in tree.items()}, folder / "final.safetensors"
    )
    record = files.read_sealed(folder / "run.json")
    del record["files"]
    files.write_sealed(folder / "run.json", record, ("metrics.parquet", "final.safetensors"))
    assert import_export.copy_run(run, ours, theirs).outcome == outcome


def _plus(value: Any, change: float) -> Any:
    if isinstance(value, dict):
        return {key: _plus(inner, change) for key, inner in value.items()}
    return value + change


def test_weights_are_added_to_the_same_numbers(ours: Store, theirs: Store):
    run = shelving.add(theirs)
    assert shelving.add(ours, weights=True) == run
    assert import_export.copy_run(run, ours, theirs).outcome == NEW
    assert theirs.has_weights(run)
    assert import_export.copy_run(run, theirs, ours).outcome == EXISTING


@pytest.mark.parametrize("name", ["run.json", "metrics.parquet", "final.safetensors"])
def test_what_is_damaged_does_not_arrive(ours: Store, theirs: Store, name: str):
    run = shelving.add(ours, weights=True)
    path = ours.root / run / name
    os.truncate(path, path.stat().st_size - 2)
    moved = import_export.copy_run(run, ours, theirs)
    assert (moved.outcome, theirs.runs()) == (DAMAGED, [])
    assert name in moved.reason


def test_a_run_under_the_name_of_another_does_not_arrive(ours: Store, theirs: Store):
    run = shelving.add(ours)
    wrong = "0123456789abcdef"
    (ours.root / run).rename(ours.root / wrong)
    moved = import_export.copy_run(wrong, ours, theirs)
    assert moved.outcome == DAMAGED
    assert f"its record is that of run {run}" in moved.reason


def test_a_run_that_is_being_computed_is_passed_over(ours: Store, theirs: Store):
    run = shelving.add(ours)
    with theirs.open(run) as work:
        assert work is not None
        assert import_export.copy_run(run, ours, theirs).outcome == BUSY
        assert not work.lost
    assert theirs.runs() == []
    assert import_export.copy_run(run, ours, theirs).outcome == NEW


def bring_all(source: Path, target: Path) -> None:
    store = Store(source)
    for run in store.runs():
        import_export.copy_run(run, store, Store(target, beat=0.2))


def test_killed_at_every_touch_of_the_disk(ours: Store, tmp_path: Path):
    run = shelving.add(ours, weights=True)
    kills = 0
    # Every third touch: `test_store` has them all.
    while killing.killed_at(3 * kills + 1, bring_all, ours.root, tmp_path / str(kills)):
        target = Store(tmp_path / str(kills), beat=0.2)
        assert not target.has(run) or target.verify(run) == []
        bring_all(ours.root, target.root)
        assert content(target, run) == content(ours, run)
        kills += 1
    assert kills >= 4


# Tar files


def packed(store: Store, path: Path) -> Path:
    assert {moved.outcome for moved in import_export.write_tar(store.runs(), store, path)} == {NEW}
    return path


def test_through_a_tar_file_and_back(ours: Store, theirs: Store, tmp_path: Path):
    runs = [shelving.add(ours, seed, weights=seed == 1) for seed in range(3)]
    path = packed(ours, tmp_path / "deep" / "runs.tar")
    assert path.read_bytes() == packed(ours, tmp_path / "again.tar").read_bytes()
    with import_export.open_source(path) as source:
        assert [import_export.copy_run(run, source, theirs).outcome for run in source.runs()] == [
            NEW
        ] * 3
    assert all(content(theirs, run) == content(ours, run) for run in runs)
    with pytest.raises(FedloomError, match=r"runs\.tar: exists already"):
        list(import_export.write_tar(runs, ours, path))


def test_a_tar_file_that_is_cut_short_brings_nothing(ours: Store, tmp_path: Path):
    shelving.add(ours)
    path = packed(ours, tmp_path / "runs.tar")
    os.truncate(path, 1500)
    with pytest.raises(DataError, match=r"runs\.tar: .*is truncated"):
        import_export.open_source(path).__enter__()


@pytest.mark.parametrize(
    "name",
    [
        *("../evil", "run/other.txt", "a/b/run.json", "/run.json", "a b/run.json"),
    ],
)
def test_a_tar_file_with_anything_else_is_refused(name: str, tmp_path: Path):
    path = tmp_path / "runs.tar"
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo(name)
        info.size = 4
        tar.addfile(info, io.BytesIO(b"evil"))
    with pytest.raises(DataError, match=r"Allowed: files RUN/run\.json"):
        import_export.open_source(path).__enter__()
    assert not Path("/run.json").exists()


@pytest.mark.parametrize("time", ["1e400", "-1e400", "nan", "99999999999999999999", "-1"])
def test_a_time_that_no_machine_has_does_not_matter(
    ours: Store, theirs: Store, tmp_path: Path, time: str
):
    run, path = shelving.add(ours), tmp_path / "runs.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for file in ours.folder(run).iterdir():
            info = tar.gettarinfo(file, f"{run}/{file.name}")
            info.pax_headers = {"mtime": time}
            tar.addfile(info, io.BytesIO(file.read_bytes()))
    with import_export.open_source(path) as source:
        assert import_export.copy_run(run, source, theirs).outcome == NEW
    assert content(theirs, run) == content(ours, run)


def test_a_tar_file_of_too_many_files_is_refused(
    ours: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shelving.add(ours)
    path = packed(ours, tmp_path / "runs.tar")
    monkeypatch.setattr(import_export, "MAX_MEMBERS", 1)
    with pytest.raises(DataError, match=r"runs\.tar: has too many files. Allowed: at most 1"):
        import_export.open_source(path).__enter__()


@pytest.mark.usefixtures("hurry")
def test_a_place_that_is_a_pipe_or_no_tar_is_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.tar")
    (tmp_path / "text.tar").write_bytes(b"no tar" * 1000)
    (tmp_path / "runs").write_bytes(b"no folder")
    for name, problem in (("pipe.tar", "a pipe"), ("text.tar", "no tar file"), ("runs", "Allowed")):
        with pytest.raises(FedloomError, match=f"{name}: .*{problem}"):
            import_export.open_source(tmp_path / name).__enter__()


@pytest.fixture
def hurry() -> Iterator[None]:
    """An alarm for what may never end."""
    signal.alarm(30)
    yield
    signal.alarm(0)


def described(folder: Path, name: object, entry: object) -> None:
    """Put a file of one's own into a run's record, with a seal that fits."""
    record = files.read_sealed(folder / "run.json")
    record["files"][name] = entry
    seal = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    (folder / "run.json").write_text(json.dumps({**record, "seal": seal}))


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize(
    ("name", "entry", "problem"),
    [
        ("/dev/zero", {"size": 0, "sha256": ""}, "has a file '/dev/zero'. Allowed: names of"),
        ("metrics.parquet", None, "describes 'metrics.parquet' without its size and sha256"),
        ("pipe", {"size": 0, "sha256": ""}, "pipe: is a folder, a pipe or a device"),
        ("round", {"size": 0, "sha256": ""}, "round: cannot be opened as a file"),
        ("\ud800", {"size": 0, "sha256": ""}, "surrogates not allowed"),
    ],
)
def test_a_record_names_files_of_its_folder(
    ours: Store, theirs: Store, name: str, entry: object, problem: str
):
    run = shelving.add(ours)
    folder = ours.root / run
    os.mkfifo(folder / "pipe")
    (folder / "round").symlink_to("round")
    os.mknod(folder / "socket", stat.S_IFSOCK | 0o600)
    described(folder, name, entry)
    moved = import_export.copy_run(run, ours, theirs)
    assert (moved.outcome, theirs.runs()) == (DAMAGED, [])
    assert problem in moved.reason


@pytest.mark.usefixtures("hurry")
def test_a_record_that_is_a_pipe_or_has_no_end_is_no_run(ours: Store):
    run = shelving.add(ours)
    (ours.root / run / "run.json").unlink()
    os.mkfifo(ours.root / run / "run.json")
    assert ours.runs() == []
    (ours.root / run / "run.json").unlink()
    (ours.root / run / "run.json").write_bytes(b"[" * 100_000)
    assert run_check.find_problems(ours, run) != []
    os.truncate(ours.root / run / "run.json", 1 << 40)
    assert "too long for a record" in run_check.find_problems(ours, run)[0]


@pytest.mark.parametrize("name", ["runs.tar.gz", "runs.zip"])
def test_packing_that_brings_nothing_is_refused(name: str):
    with pytest.raises(FedloomError, match=r"Allowed: a folder, or a file named \*\.tar"):
        import_export.is_tar(Path(name))
