"""What tests lean on does what it says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import mounting
import preloaded
import pytest

HELPERS = Path(mounting.__file__).parent


def until_gone(folder: Path) -> None:
    end = time.monotonic() + 60
    while os.path.ismount(folder):
        assert time.monotonic() < end, f"{folder} is still mounted"
        time.sleep(0.01)


def test_a_mount_is_gone_after_a_failure_and_after_a_kill(tmp_path: Path) -> None:
    what = ["-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    with pytest.raises(KeyError), mounting.mounted(tmp_path, what):
        assert os.path.ismount(tmp_path)
        raise KeyError
    assert not os.path.ismount(tmp_path)
    code = f"""
import os, pathlib, signal, sys
sys.path.insert(0, {str(HELPERS)!r})
import mounting
with mounting.mounted(pathlib.Path({str(tmp_path)!r}), {what!r}):
    assert os.path.ismount({str(tmp_path)!r})
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    until_gone(tmp_path)


def preload(folder: Path, code: str, *arguments: str) -> subprocess.Popen[str]:
    """The module ``fl`` of a folder, which is ``code``, in a preloaded Python."""
    (folder / "fl.py").write_text(code)
    return subprocess.Popen(
        [preloaded.python(), "-m", "fl", *arguments],
        cwd=folder,
        env={"OWN": "x", "PYTHONPATH": "/nowhere"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_preloaded_python_is_given_what_python_is_given(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['OWN'], sys.argv[1:], os.getcwd(), sys.path[:2]); "
    job = preload(tmp_path, f"{code} print(sys.stdin.read(), file=sys.stderr); sys.exit(3)", "a b")
    said, error = job.communicate("told", timeout=60)
    assert job.returncode == 3, error
    assert said == f"x ['a b'] {tmp_path} {[str(tmp_path), '/nowhere']}\n"
    assert error == "told\n"


def test_a_preloaded_python_fails_as_python_fails(tmp_path: Path) -> None:
    job = preload(tmp_path, "1 / 0")
    _, error = job.communicate(timeout=60)
    assert job.returncode == 1
    assert error.endswith("ZeroDivisionError: division by zero\n")
    job = preload(tmp_path, "import sys; sys.exit('said')")
    assert job.communicate(timeout=60) == ("", "said\n")
    assert job.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_preloaded_python_ends_with_its_program(number: int, tmp_path: Path) -> None:
    job = preload(tmp_path, "import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    assert job.stdout is not None
    forked = int(job.stdout.readline())
    job.send_signal(number)
    assert job.wait(60) == -number
    end = time.monotonic() + 60
    while Path(f"/proc/{forked}").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    job.communicate()
