"""A `python` that has the slow imports behind it, for tests whose claim is not how Python starts.

A server imports what Snakemake, DVC and `fl` import from others, never `fl` itself, and forks for
every ``python -m MODULE ...``. The program at `python()` is the client: it hands its folder, its
environment and its files to the fork, passes signals on, ends as the fork ends, and takes it along
when it is killed. Whatever else it is asked is done by Python itself. All processes of a server
have one hash seed, and none is in its client's group; where that matters, take `sys.executable`.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn

MODULES = ("fl", "snakemake", "dvc", "pytest", "tests.golden")
SLOW = (
    *("torch", "torch.func", "torch.nn.functional", "numpy", "pandas", "yaml", "jinja2"),
    *("pyarrow.dataset", "pyarrow.pandas_compat", "pyarrow.parquet", "safetensors.torch"),
    *("snakemake.cli", "snakemake.workflow", "snakemake.report", "smart_open", "sklearn.datasets"),
    *("matplotlib.figure", "matplotlib.backends.backend_pdf", "matplotlib.backends.backend_svg"),
    *("dvc.cli.parser", "dvc.repo", "pytest"),
)
# Signals that a client passes on.
PASSED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

CLIENT = """#!{python} -IS
import os, signal, socket, sys
given = sys.argv[1:]
words = given[given[:1] == ["-P"]:]
if len(words) < 2 or words[0] != "-m" or words[1] not in {modules!r}:
    os.execv({python!r}, [{python!r}, *given])
import json
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({address!r})
for number in {passed!r}:
    signal.signal(number, lambda number, _: server.send(bytes([number])))
what = {{"argv": given, "cwd": os.getcwd(), "environ": dict(os.environ)}}
socket.send_fds(server, [json.dumps(what).encode()], [0, 1, 2])
ended = server.recv(16)
status = int(ended) if ended else -signal.SIGKILL
if status < 0:
    signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
    os.kill(os.getpid(), -status)
os._exit(status)
"""


@functools.cache
def python(library: str = "") -> str:
    """The program; its server lives as long as this process, with a library before those of C.

    Without a library it is one server for all workers of a test session, see `share`.
    """
    is_shared = not library and SHARED in os.environ
    folder = Path(os.environ[SHARED]) if is_shared else _new_folder()
    program = folder / "python"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _start(program, library)
    return str(program)


def share() -> None:
    """Let the processes that this one starts have one server, which lives as long as this one."""
    os.environ[SHARED] = str(_new_folder())


SHARED = "FEDLOOM_TESTS_PYTHON"
"""Variable with the folder of the shared server."""


def _new_folder() -> Path:
    """A new folder; whoever reads its file ``alive`` meets an end when this process is gone."""
    # Not below pytest's folder: the path of a socket may not be longer than 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="fedloom-python-"))
    os.mkfifo(folder / "alive")
    os.open(folder / "alive", os.O_RDWR)  # And never closed.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _start(program: Path, library: str) -> None:
    """Start a server, and write its client."""
    fields = {"python": sys.executable, "modules": MODULES, "address": f"{program.parent}/socket"}
    environment = {key: text for key, text in os.environ.items() if not key.startswith("PYTHON")}
    if library:
        environment["LD_PRELOAD"] = library
    with (program.parent / "alive").open("rb", buffering=0) as alive:
        server = subprocess.Popen(
            [sys.executable, "-P", __file__, str(program)],
            stdin=alive,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=program.parent,
            start_new_session=True,
        )
    _SERVERS.append(server)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n", "the server of a preloaded Python did not start"
    program.write_text(CLIENT.format(**fields, passed=tuple(map(int, PASSED))))
    program.chmod(0o755)


_SERVERS: list[subprocess.Popen[bytes]] = []
"""Kept, as a `Popen` that is forgotten warns that its process is not over."""


def serve(program: Path) -> None:
    """Fork for every client until whoever started this is gone."""
    for name in SLOW:
        with contextlib.suppress(ImportError):  # An environment for training alone has few of them.
            importlib.import_module(name)
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(program.with_name("socket")))
    listener.listen(100)
    signal.signal(signal.SIGCHLD, collect)
    os.write(1, b"ready\n")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    try:
        while True:
            ready, _, _ = select.select([listener, 0], [], [])
            if 0 in ready:
                break
            client, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                attend(client, program)
                return
            client.close()
    finally:
        if listener.fileno() != -1:
            shutil.rmtree(program.parent, ignore_errors=True)


def collect(*_: object) -> None:
    """Wait for forks that have ended, so that their processor time is counted as this process's."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def attend(client: socket.socket, program: Path) -> None:
    """Fork once more, for what the client asks, and see to it that both end together."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, files, _, _ = socket.recv_fds(client, 1 << 20, 3)
    child = os.fork()
    if child == 0:
        client.close()
        become(json.loads(message), files, program)
        return
    for file in (*files, 0):
        os.close(file)
    ended, asked = os.pidfd_open(child), select.poll()
    asked.register(ended, select.POLLIN)
    asked.register(client, select.POLLIN)
    while ended not in (ready := [file for file, _ in asked.poll()]):
        if client.fileno() in ready:
            told = client.recv(1)
            signal.pidfd_send_signal(ended, told[0] if told else signal.SIGKILL)
            if not told:
                asked.unregister(client)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        client.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def become(what: dict[str, Any], files: list[int], program: Path) -> NoReturn:
    """Run the module of a client's command line in this process, as if Python had just started."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(what["cwd"])
    os.environ.clear()
    os.environ.update(what["environ"])
    words = what["argv"]
    safe = words[0] == "-P"
    _, module, *arguments = words[safe:]
    above = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [*([] if safe else [what["cwd"]]), *above]
    sys.executable = str(program)
    sys.argv[1:] = arguments
    importlib.invalidate_caches()
    status = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as asked:
        status = asked.code if isinstance(asked.code, int) else int(asked.code is not None)
        if status == 1 and asked.code != 1:
            print(asked.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    leave(status)


def leave(status: int) -> NoReturn:
    """End this process, without the taking apart of modules that it shares with the server."""
    threading._shutdown()  # type: ignore[attr-defined]  # As Python itself waits for threads.
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            file.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
