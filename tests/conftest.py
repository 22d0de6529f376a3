"""Settings and fixtures of the tests of all rooms."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fl.base import arithmetic, plugins
from fl.base.errors import Location

arithmetic.choose()  # Before NumPy and PyTorch are imported.

import mounting  # noqa: E402
import planning  # noqa: E402
import preloaded  # noqa: E402
import torch  # noqa: E402

# A plugin's own methods come under the contract: FEDLOOM_PLUGINS=mylab pytest tests/contract
plugins.use(filter(None, os.environ.get("FEDLOOM_PLUGINS", "").split(os.pathsep)), Location("env"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # In the background a shell ignores Ctrl-C, for tests and what they start alike.
    signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)  # On tensors as small as these, more threads only wait for one another.


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: there is always a test that waits, for Slurm or for a disk."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_xdist_setupnodes() -> None:
    """Before the workers are started: what they start from a preloaded Python has one server."""
    preloaded.share()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes begins first, so that no worker is left alone with it at the end.

    Each worker gets a stretch of the list, and from the ends of others' when it has none left. The
    tests of Slurm, which mostly wait, are the first ones of the first worker; those of an emulator,
    which mostly compute, the first ones of the other workers.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    if workers == 1:
        return
    waiting, computing = (
        [item for item in items if item.get_closest_marker(name)]
        for name in ("cluster", "emulator")
    )
    items[:] = waiting + [item for item in items if item not in {*waiting, *computing}]
    for i, item in enumerate(computing):
        worker = 1 + i % (workers - 1)
        # One behind the first: stretches differ in length by a test.
        items.insert(worker * len(items) // workers + 1, item)


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    """Training in this process sets the number of threads and what may be indeterminate."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(strict)


@pytest.fixture
def planned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Callable[..., planning.Planned]:
    """``planned(methods=..., seeds=..., execution={...})``: the tiny study, changed and planned."""
    caplog.set_level(logging.INFO)
    return lambda **changes: planning.make(tmp_path, **changes)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with mounting.mounted(folder, ["-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]):
        yield folder


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``once(name, make)``: the path of which ``make`` made something, in one worker for all of
    them. Nobody changes what is there.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def found(name: str, make: Callable[[Path], object]) -> Path:
        path, made = shared / name, shared / f"{name}.made"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                shutil.rmtree(path, ignore_errors=True)
                make(path)
                made.touch()
        return path

    return found


@pytest.fixture(scope="module")
def any_name() -> Iterator[None]:
    """Tables take runs of `make_results`, whose names are short and no hash of what they are. That
    other tables do not is tried in tests/store/test_run_check.py.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fl.store.run_check.check_id", lambda record, run, source: None)
        yield
