from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import killing
import pandas as pd
import pytest
import torch
from killing import running

from fl.base.errors import DataError, FedloomError
from fl.store import checkpoint, lease
from fl.store.run_record import PREDICTIONS, WEIGHTS
from fl.store.store import Store
from fl.store.workspace import Attempt, read_attempts

RUN = "fedavg-0a1b"
RECORD = {"method": "fedavg", "seconds": 1.5}


def rows_of(value: float) -> pd.DataFrame:
    return pd.DataFrame({"round": range(500), "value": [value + r / 3 for r in range(500)]})


def weights_of(value: float) -> dict[str, Any]:
    return {"layer": {"w": torch.full((20, 30), value)}}


def store_of(root: Path, patience: float = 60.0) -> Store:
    return Store(root, beat=0.2, patience=patience)


def compute(root: Path, value: float = 1.0, weights: bool = False) -> bool:
    """What a job does: resume or start, save, finish. Whether it had to."""
    with store_of(root).open(RUN, (WEIGHTS,) if weights else ()) as work:
        if work is None:
            return False
        found = checkpoint.load_latest(work.checkpoints)
        round = found.round + 1 if found else 1
        checkpoint.save_checkpoint(work.checkpoints, round, weights_of(value), {}, rows_of(value))
        assert work.finish(RECORD, rows_of(value), weights_of(value) if weights else None)
        return True


def is_whole(root: Path, value: float = 1.0, weights: float = 1.0) -> None:
    store = store_of(root)
    assert store.has(RUN)
    assert store.runs() == [RUN]
    assert store.verify(RUN) == []
    assert {**store.record(RUN), "files": None} == {**RECORD, "files": None}
    pd.testing.assert_frame_equal(store.metrics(RUN), rows_of(value))
    if store.has_weights(RUN):
        assert torch.equal(store.weights(RUN)["layer"]["w"], weights_of(weights)["layer"]["w"])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def until(what: Callable[[], Any], seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


def foreign_lease(root: Path, host: str = "elsewhere") -> Path:
    """A lease file of a process of that host, as it is left if nobody lives to lock it."""
    partial = root / f"{RUN}.partial"
    partial.mkdir(parents=True, exist_ok=True)
    (partial / "lease.json").write_text(json.dumps({"host": host, "pid": os.getpid()}))
    return partial / "lease.json"


# What is in the store


@pytest.mark.parametrize("weights", [False, True])
def test_a_finished_run_reads_back(weights: bool, tmp_path: Path) -> None:
    store = store_of(tmp_path / "deep" / "store")
    assert not store.has(RUN)
    assert not store.has_weights(RUN)
    assert store.runs() == []
    assert compute(store.root, weights=weights)
    is_whole(store.root)
    assert store.has_weights(RUN) is weights
    assert names(store.root) == [RUN]
    kept = ["final.safetensors"] if weights else []
    assert names(store.root / RUN) == [*kept, "metrics.parquet", "run.json"]
    assert not compute(store.root, weights=weights)


@pytest.mark.parametrize("name", ["", "..", "a.partial"])
def test_a_name_that_is_no_identity_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no name of a run"):
        store_of(tmp_path).has(name)


@pytest.mark.parametrize("name", ["run.json", "metrics.parquet", "final.safetensors"])
@pytest.mark.parametrize("harm", ["flip", "cut"])
def test_damage_is_found_and_named(name: str, harm: str, tmp_path: Path) -> None:
    compute(tmp_path, weights=True)
    store, path = store_of(tmp_path), tmp_path / RUN / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content if harm == "flip" else content[:-5])
    (problem,) = store.verify(RUN)
    assert str(path) in problem
    read = {
        "run.json": store.record,
        "metrics.parquet": store.metrics,
        "final.safetensors": store.weights,
    }[name]
    with pytest.raises(DataError, match=r"store verify --remove`, and train it again") as caught:
        read(RUN)
    assert str(path) in str(caught.value)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    with pytest.raises(DataError, match=f"{RUN}: is no finished run"):
        store.record(RUN)
    assert "is no finished run" in store.verify(RUN)[0]
    compute(tmp_path)
    with pytest.raises(DataError, match=r"final.safetensors: was not stored"):
        store.weights(RUN)
    (tmp_path / RUN / "metrics.parquet").unlink()
    assert "metrics.parquet: is missing" in store.verify(RUN)[0]


def test_a_run_is_removed_unless_it_is_computed(tmp_path: Path) -> None:
    compute(tmp_path)
    store = store_of(tmp_path)
    store.remove(RUN)
    assert names(tmp_path) == []
    with store.open(RUN) as work:
        assert work is not None
        with pytest.raises(FedloomError, match=f"process {os.getpid()} on .* is computing"):
            store.remove(RUN)
    assert compute(tmp_path)


# Finishing


def test_an_exception_keeps_the_checkpoints_and_gives_the_lease_back(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), store_of(tmp_path).open(RUN) as work:
        assert work is not None
        checkpoint.save_checkpoint(work.checkpoints, 7, weights_of(7), {}, rows_of(7))
        _ = 1 / 0
    assert names(tmp_path / f"{RUN}.partial") == ["checkpoint"]
    with store_of(tmp_path).open(RUN) as work:
        assert work is not None
        found = checkpoint.load_latest(work.checkpoints)
        assert found is not None
        assert found.round == 7
    with store_of(tmp_path).open("untouched"):
        pass
    assert names(tmp_path) == [f"{RUN}.partial"]


@pytest.mark.parametrize(("there", "ours", "added"), [(0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 1)])
def test_one_that_appeared_meanwhile_is_kept_and_gets_what_it_lacks(
    there: int, ours: int, added: int, tmp_path: Path
) -> None:
    finished(tmp_path, 1.0, weights=bool(there))
    result = tmp_path / f"{RUN}.partial" / "result-0"
    result.parent.mkdir()
    finished(tmp_path / "other", 2.0, weights=bool(ours)).rename(result)
    (tmp_path / "other").rmdir()
    assert store_of(tmp_path).publish(RUN, result) is bool(added)
    assert store_of(tmp_path).has_weights(RUN) is bool(there or added)
    is_whole(tmp_path, 1.0, weights=2.0 if added else 1.0)


def finished(root: Path, value: float, weights: bool = False) -> Path:
    compute(root, value, weights)
    return root / RUN


def test_a_run_without_weights_gets_them_when_they_are_needed(tmp_path: Path) -> None:
    compute(tmp_path, 1.0)
    with store_of(tmp_path).open(RUN, (WEIGHTS,)) as work:
        assert work is not None
        is_whole(tmp_path, 1.0)
        assert work.finish(RECORD, rows_of(2.0), weights_of(2.0))
    is_whole(tmp_path, 1.0, weights=2.0)
    assert store_of(tmp_path).has_weights(RUN)
    assert names(tmp_path) == [RUN]


def test_a_run_gets_predictions_and_weights_one_after_the_other(tmp_path: Path) -> None:
    compute(tmp_path, 1.0)
    store, seen = store_of(tmp_path), pd.DataFrame({"client": [0, 1], "score_0": [0.5, 1.0]})
    with store.open(RUN, (PREDICTIONS,)) as work:
        assert work is not None and work.finish(RECORD, rows_of(2.0), predictions=seen)
    pd.testing.assert_frame_equal(store.predictions(RUN), seen)
    assert not store.has(RUN, (PREDICTIONS, WEIGHTS))
    with store.open(RUN, (PREDICTIONS, WEIGHTS)) as work:
        assert work is not None
        assert work.finish(RECORD, rows_of(3.0), weights_of(3.0), predictions=seen + 1)
    is_whole(tmp_path, 1.0, weights=3.0)
    pd.testing.assert_frame_equal(store.predictions(RUN), seen)
    with store.open(RUN, (PREDICTIONS, WEIGHTS)) as work:
        assert work is None


@pytest.mark.parametrize("start", ["nothing", "without weights"])
def test_killed_at_every_touch_of_the_disk(start: str, tmp_path: Path) -> None:
    upgrade = start != "nothing"
    compute(tmp_path / "start")
    kills = 0
    while True:
        root = tmp_path / str(kills)
        if upgrade:
            shutil.copytree(tmp_path / "start", root)
        if not killing.killed_at(kills + 1, compute, root, 1.0, upgrade):
            break
        if upgrade:
            pd.testing.assert_frame_equal(store_of(root).metrics(RUN), rows_of(1.0))
        elif store_of(root).has(RUN):
            is_whole(root)
        else:
            assert store_of(root).runs() == []
        done = store_of(root).has_weights(RUN) if upgrade else store_of(root).has(RUN)
        before = time.monotonic()
        assert compute(root, weights=upgrade) is not done
        assert time.monotonic() - before < 50, (
            "its holder is dead, so nobody waits the patience of 60 s"
        )
        is_whole(root)
        assert store_of(root).has_weights(RUN) is upgrade
        if not done or upgrade:
            assert names(root) == [RUN]
        kills += 1
    assert kills >= 20
    is_whole(root)


def test_a_full_disk_keeps_the_checkpoints(small_disk: Path) -> None:
    store = store_of(small_disk)
    with store.open(RUN, (WEIGHTS,)) as work:
        assert work is not None
        checkpoint.save_checkpoint(work.checkpoints, 1, weights_of(1), {}, rows_of(1))
        with pytest.raises(FedloomError, match=rf"{RUN}.partial.*: the disk is full; free some"):
            work.finish(RECORD, rows_of(1), {"w": torch.zeros(100_000)})
        assert names(work.folder) == ["checkpoint", "lease.json"]
        assert not store.has(RUN)
        assert checkpoint.load_latest(work.checkpoints) is not None
        assert work.finish(RECORD, rows_of(1), weights_of(1))
    is_whole(small_disk)


def test_an_attempt_that_a_full_disk_ends_is_no_kill(small_disk: Path) -> None:
    """Kills raise a job's memory."""
    with store_of(small_disk).open(RUN) as work:
        assert work is not None
        work.begin(Attempt("Slurm", "7", memory_mb=1000))
        with contextlib.suppress(OSError):
            (small_disk / "ballast").write_bytes(bytes(1 << 20))
        work.note(ended="error", error="the disk is full")
        [attempt] = read_attempts(work.folder)
        assert (attempt.job, attempt.ended, attempt.error) == ("7", "error", "the disk is full")


def test_a_disk_that_is_full_or_read_only_from_the_start_is_named(small_disk: Path) -> None:
    compute(small_disk)
    with contextlib.suppress(OSError):
        (small_disk / "ballast").write_bytes(bytes(1 << 20))
    with pytest.raises(FedloomError, match=r"other.partial: the disk is full"):
        store_of(small_disk).open("other").__enter__()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(FedloomError, match=r"other.partial: the file system is read-only"):
        store_of(small_disk).open("other").__enter__()
    assert not compute(small_disk)
    is_whole(small_disk)


# The lease


def compete(root: Path, start: Any, answers: Any) -> None:
    start.wait()
    with store_of(root).open(RUN) as work:
        if work is not None:
            time.sleep(0.3)
            work.finish(RECORD, rows_of(1.0))
    answers.put((work is not None, store_of(root).has(RUN)))


@pytest.mark.parametrize("left", ["nothing", "a dead holder's lease"])
def test_of_several_processes_one_computes(left: str, tmp_path: Path) -> None:
    count = 4
    if left != "nothing":
        foreign_lease(tmp_path, socket.gethostname())
    start, answers = killing.context.Event(), killing.context.Queue()
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(running(compete, tmp_path, start, answers))
        start.set()
        got = [answers.get(timeout=600) for _ in range(count)]
    assert sorted(got) == [(False, True)] * (count - 1) + [(True, True)]
    is_whole(tmp_path)
    assert names(tmp_path) == [RUN]


def hold(root: Path) -> None:
    with store_of(root).open(RUN) as work:
        assert work is not None
        checkpoint.save_checkpoint(work.checkpoints, 3, weights_of(3), {}, rows_of(3))
        (root / "holding").touch()
        until(lambda: work.lost)
        (root / "lost").touch()
        published = work.finish(RECORD, rows_of(3))
        (root / ("published" if published else "dropped")).touch()


def test_a_killed_holder_is_followed_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(hold, tmp_path) as child:
        until((tmp_path / "holding").exists)
        killed: list[float] = []

        def kill() -> None:
            until(lambda: any("waiting for" in message for message in caplog.messages))
            child.kill()
            killed.append(time.monotonic())

        threading.Thread(target=kill).start()
        with caplog.at_level(logging.INFO), store_of(tmp_path).open(RUN) as work:
            waited = time.monotonic() - killed[0]
            assert work is not None
            found = checkpoint.load_latest(work.checkpoints)
            assert found is not None
            assert found.round == 3
    assert waited < 50, "the patience is 60 s"
    told = [m for m in caplog.messages if "waiting for" in m]
    assert len(told) == 1
    assert f"process {child.pid} on" in told[0]


def test_a_suspended_holder_is_followed_and_overwrites_nobody(tmp_path: Path) -> None:
    with running(hold, tmp_path) as child:
        until((tmp_path / "holding").exists)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGSTOP)
        with store_of(tmp_path, patience=0.6).open(RUN) as work:
            assert work is not None
            assert work.finish(RECORD, rows_of(1.0))
            os.kill(child.pid, signal.SIGCONT)
            until((tmp_path / "dropped").exists)
    assert (tmp_path / "lost").exists()
    for flag in ("holding", "lost", "dropped"):
        (tmp_path / flag).unlink()
    is_whole(tmp_path, 1.0)


def test_a_holder_on_another_host_is_given_its_time(tmp_path: Path) -> None:
    path, stop = foreign_lease(tmp_path), threading.Event()

    def beat() -> None:
        while not stop.wait(0.1):
            os.utime(path)

    thread = threading.Thread(target=beat)
    thread.start()
    before = time.monotonic()
    threading.Timer(1.5, stop.set).start()
    with store_of(tmp_path, patience=0.6).open(RUN) as work:
        waited = time.monotonic() - before
        assert work is not None
    thread.join()
    assert 1.5 + 0.4 < waited < 60


@pytest.mark.parametrize(("host", "gone"), [(socket.gethostname(), True), ("elsewhere", False)])
def test_who_is_known_to_be_gone(host: str, gone: bool, tmp_path: Path) -> None:
    path = foreign_lease(tmp_path, host)
    taken = lease.take(path, lambda: False, beat=1, patience=60, wait=False)
    assert (taken is not None) is gone
    assert lease.live_holder(path, patience=60) is not None
    assert lease.live_holder(path, patience=-1) is None
    if taken is not None:
        assert lease.take(path, lambda: False, beat=1, patience=60, wait=False) is None
        taken.release()
        assert not path.exists()


def test_a_run_that_was_finished_before_the_lease_was_there_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, take = finished(tmp_path / "other", 1.0), lease.take

    def late(*args: Any, **options: Any) -> lease.Lease | None:
        held = take(*args, **options)
        if not (tmp_path / RUN).exists():
            shutil.copytree(other, tmp_path / RUN)
        return held

    monkeypatch.setattr(lease, "take", late)
    with store_of(tmp_path).open(RUN) as work:
        assert work is None
    assert names(tmp_path) == [RUN, "other"]


@pytest.mark.parametrize("content", [b'{"pid": 1}', b"\xff\x00"])
def test_a_damaged_lease_counts_as_silent(content: bytes, tmp_path: Path) -> None:
    path = foreign_lease(tmp_path)
    path.write_bytes(content)
    before = time.monotonic()
    with store_of(tmp_path, patience=0.3).open(RUN) as work:
        assert work is not None
    assert time.monotonic() - before >= 0.29
