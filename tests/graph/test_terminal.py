"""`fedloom watch` in a terminal of 80 columns and 24 lines, beside `fedloom run`."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import project
import pytest
from project import ENVIRONMENT, Project

pytestmark = pytest.mark.graph

COLUMNS, LINES = 80, 24


class Terminal:
    """A program in a terminal, and the screens that it has shown."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.pid, self._end = pty.fork()
        if not self.pid:
            os.chdir(folder)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
            plain = {k: v for k, v in ENVIRONMENT.items() if k not in ("COLUMNS", "LINES")}
            words = [sys.executable, "-m", "fl", *arguments]
            os.execve(sys.executable, words, {**plain, "TERM": "xterm-256color"})
        self._output = b""

    def screens(self) -> list[list[str]]:
        """The lines of each screen so far; the last one is what is printed behind them."""
        try:
            while piece := os.read(self._end, 65536):
                self._output += piece
        except (BlockingIOError, OSError):
            pass
        shown = re.split(r"\x1b\[H|\x1b\[\?1049l", self._output.decode())
        plain = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\^C", "", screen) for screen in shown]
        return [[line.rstrip() for line in text.split("\n")] for text in plain]

    def shows(self, pattern: str) -> bool:
        """Whether a screen has a line that begins like a pattern."""
        os.set_blocking(self._end, False)
        return any(re.match(pattern, line) for screen in self.screens() for line in screen)

    def interrupt(self) -> int:
        """Press Ctrl-C, and return the exit status."""
        os.write(self._end, b"\x03")
        return self.wait()

    def wait(self) -> int:
        """Return the exit status."""
        os.set_blocking(self._end, True)
        self.screens()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_the_page_fits_a_terminal_from_before_the_plan_to_an_interruption(tmp_path: Path) -> None:
    """One run fails at once, and one trains until it has been seen."""
    place = project.create(tmp_path / "project")
    shutil.copy(Path(__file__).with_name("brittle.py"), place.root / "fl" / "methods")
    place.write("broken", "")
    place.study(
        methods={"brittle": None, "fedprox": {"mu": [0.1, 0.5]}},
        seeds=[1],
        partitions=[{"dirichlet": {"clients": 4, "alpha": 0.5, "min_samples": 5}}],
        training={"rounds": 20_000, "batch_size": 16, "lr": 0.05},
    )
    terminal = Terminal(place.root, "watch")
    run = None
    try:
        project.until(lambda: terminal.shows(".*there is no plan"))
        run = subprocess.Popen(
            [sys.executable, "-m", "fl", "run"],
            cwd=place.root,
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        curve = r"running +FedProx\(mu=0.\d\), seed 1 +\d+/20000 +\d+.\d  [▁-█]+ .*(s|min|h)$"
        project.until(lambda: terminal.shows(curve))
        project.until(lambda: terminal.shows("3 runs: 1 failed"))
        os.killpg(run.pid, signal.SIGINT)
        run.wait(60)
        project.until(lambda: terminal.shows("3 runs: 1 failed, [12] interrupted"))
    finally:
        status = terminal.interrupt()
        if run is not None and run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    assert status == 0
    *screens, last = terminal.screens()
    assert all(len(screen) <= LINES for screen in screens)
    assert not [line for screen in [*screens, last] for line in screen if len(line) > COLUMNS]
    text = "\n".join(last)
    found = re.search(r"^(failed .*)\n  (.*)\n  (log (?:.|\n)*?\.log)$", text, re.M)
    assert found
    failure, error, log = found.groups()
    assert failure == "failed after round 0 of 20000: Brittle, seed 1"
    assert "this seed has no luck" in error
    path = log.removeprefix("log ").replace("\n", "").replace(" ", "")
    assert "this seed has no luck" in (place.root / path).read_text()


def test_the_page_ends_when_all_runs_are_done(cloned: Project) -> None:
    terminal = Terminal(cloned.root, "watch", "small")
    assert terminal.wait() == 0
    assert terminal.shows("6 runs: 6 done")
