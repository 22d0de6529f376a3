"""Processes with another arithmetic than this one, in which functions are called.

A notebook has mostly imported NumPy and PyTorch before it calls `fl.run`, and a process chooses its
arithmetic before (`fl.base.arithmetic`). So runs of another arithmetic are trained in a process of
their own, which starts when it is first needed and ends with this one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from fl.base import arithmetic, plugins
from fl.base.errors import FedloomError

if TYPE_CHECKING:
    from fl.engine.simulate import Round
    from fl.notebook.display import ProgressBar, Rounds


KILLING_INTERRUPT = 3
"""Ctrl-C by which a process that does not stop is killed."""

END_SECONDS = 5.0
"""Longest wait for the end of a process, when this one ends."""


class Request(NamedTuple):
    """A call of a function in a worker.

    Attributes:
        folder: The working directory.
        function: A function of a module.
        arguments: Its arguments, before the progress bar.
    """

    folder: Path
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class Message(NamedTuple):
    """Something that a worker sends.

    Attributes:
        kind: ``begun`` of a call; its ``result`` or ``error``; ``print`` with a text; or
            ``describe``, ``start_runs`` and ``show_round`` for the progress bar.
        content: The result, the exception, or the arguments.
    """

    kind: str
    content: Any


@dataclass
class Interrupts:
    """Ctrl-C during a call.

    Attributes:
        count: How often it was pressed.
        has_begun: Whether the process has begun the call; before, it ignores Ctrl-C.
    """

    count: int = 0
    has_begun: bool = False


class Worker:
    """A process with an arithmetic.

    Args:
        name: The arithmetic.
    """

    def __init__(self, name: str) -> None:
        self._connection, end = Pipe()
        path = [str(plugins.FL.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        # No option -m: classes of this module would have two names.
        code = f"from fl.notebook import worker; worker.serve({end.fileno()})"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            env={**arithmetic.environment_of(name), "PYTHONPATH": os.pathsep.join(path)},
            pass_fds=[end.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches it through this process alone.
        )
        end.close()
        atexit.register(self.close)

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def call(self, function: Callable[..., Any], *arguments: Any, bar: ProgressBar) -> Any:
        """Return ``function(*arguments, bar)``, called in the process.

        Ctrl-C is passed to the process, which stops as it would in a terminal.

        Args:
            function: A function of a module.
            arguments: Arguments that can be pickled.
            bar: The progress bar, on which the process shows its progress.

        Raises:
            FedloomError: If the process ends.
        """
        with self._passed_interrupts() as interrupts:
            return self._result(Request(Path.cwd(), function, arguments), bar, interrupts)

    def close(self) -> None:
        """End the process, which is waiting for a call."""
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)

    @contextlib.contextmanager
    def _passed_interrupts(self) -> Iterator[Interrupts]:
        """Pass Ctrl-C on to the process within this context; the third one kills it."""
        interrupts = Interrupts()
        if threading.current_thread() is not threading.main_thread():
            yield interrupts  # Python delivers signals only to the main thread.
            return

        def handle(number: int, frame: FrameType | None) -> None:
            interrupts.count += 1
            if interrupts.count >= KILLING_INTERRUPT:
                self._process.kill()
            elif interrupts.has_begun:
                self._process.send_signal(signal.SIGINT)

        handler = signal.signal(signal.SIGINT, handle)
        try:
            yield interrupts
        finally:
            signal.signal(signal.SIGINT, handler)

    def _result(self, request: Request, bar: ProgressBar, interrupts: Interrupts) -> Any:
        """Send a request, show what the process sends, and return the result."""
        rounds: Rounds | None = None
        self._connection.send(request)
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, ConnectionError):
                status = self._process.wait()
                if interrupts.count:
                    raise KeyboardInterrupt from None
                problem = f"the process that trains ended with status {status}"
                advice = "the same call continues; if memory ran out, take less of it"
                raise FedloomError(problem, advice=advice) from None
            if message.kind == "begun":
                interrupts.has_begun = True
                if interrupts.count:
                    self._process.send_signal(signal.SIGINT)
                continue
            if message.kind == "result":
                return message.content
            if message.kind == "error":
                raise message.content
            if message.kind == "print":
                print(message.content, end="")
            elif message.kind == "describe":
                bar.describe(message.content)
            elif message.kind == "start_runs":
                rounds = bar.start_runs(*message.content)
            else:
                assert rounds is not None and message.kind == "show_round"
                rounds.show_round(*message.content)


_workers: dict[str, Worker] = {}
"""The worker of each arithmetic."""


def call(name: str, function: Callable[..., Any], *arguments: Any, bar: ProgressBar) -> Any:
    """Return ``function(*arguments, bar)``, called with an arithmetic.

    It is called in this process if that has the arithmetic, or if no process of this processor can
    have it; else in a worker.

    Args:
        name: The arithmetic.
        function: A function of a module.
        arguments: Arguments that can be pickled.
        bar: The progress bar.
    """
    if arithmetic.is_right(name):
        return function(*arguments, bar)
    if name not in _workers or not _workers[name].is_alive:
        _workers[name] = Worker(name)
    return _workers[name].call(function, *arguments, bar=bar)


class RemoteBar:
    """The progress bar of a worker, whose calls are sent to the process that shows it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def describe(self, text: str) -> None:
        """Show what is being done."""
        self._connection.send(Message("describe", text))

    def start_runs(self, title: str, rounds: int, finished: int) -> RemoteRounds:
        """Show the rounds of runs that begin; see `fl.runner.runs.MakeDisplay`."""
        self._connection.send(Message("start_runs", (title, rounds, finished)))
        return RemoteRounds(self._connection)


class RemoteRounds:
    """Rounds of runs that are trained together, on a `RemoteBar`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def show(self, finished: Mapping[str, Round]) -> None:
        """Show a round of some runs."""
        from fl.notebook.display import summary

        self._connection.send(Message("show_round", summary(finished)))


class _Output:
    """Standard output of a worker, which the other process prints."""

    def __init__(self, connection: Connection, output: TextIO) -> None:
        self._connection, self._output = connection, output

    def write(self, text: str) -> int:
        self._connection.send(Message("print", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)


def serve(handle: int) -> None:
    """Call functions for the process at the other end of a connection, until it ends.

    Args:
        handle: File number of the connection.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    arithmetic.choose()
    connection = Connection(handle)
    bar = RemoteBar(connection)
    with contextlib.redirect_stdout(_Output(connection, sys.stdout)):
        while True:
            try:
                request = connection.recv()
            except (EOFError, OSError):
                return
            except Exception as error:  # The function's module is not here, for example.
                connection.send(_sendable(Message("error", error)))
                continue
            os.chdir(request.folder)
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                connection.send(Message("begun", None))
                message = Message("result", request.function(*request.arguments, bar))
            except BaseException as error:
                message = Message("error", error)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            connection.send(_sendable(message))


def _sendable(message: Message) -> Message:
    """Return a message whose content can be pickled: an error of a class that cannot is told."""
    try:
        pickle.loads(pickle.dumps(message))
    except Exception:
        error = message.content
        name = "" if isinstance(error, FedloomError) else f"{type(error).__name__}: "
        return Message("error", FedloomError(f"{name}{error}"))
    return message
