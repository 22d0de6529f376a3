"""Errors a user can act on.

A message reads ``file: key: what is wrong. Allowed: values. Try: advice`` and is printed without a
traceback. Any other exception is a bug in Fedloom.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

LEFT = 75
"""Exit status of a job that was asked to leave and saved its state (EX_TEMPFAIL: try again)."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as a shell gives it."""

CALLED = {
    "alpha_dirichlet": "alpha",
    "batch": "batch_size",
    "batchsize": "batch_size",
    "comm_rounds": "rounds",
    "decay": "weight_decay",
    "e": "local_epochs",
    "epochs": "local_epochs",
    "eta": "lr",
    "fraction": "participation",
    "fraction_fit": "participation",
    "gamma": "lr_decay",
    "global_rounds": "rounds",
    "join_ratio": "participation",
    "l2": "weight_decay",
    "learning_rate": "lr",
    "local_learning_rate": "lr",
    "n_clients": "clients",
    "n_rounds": "rounds",
    "num_clients": "clients",
    "num_parties": "clients",
    "num_rounds": "rounds",
    "opt": "optimizer",
    "sample_rate": "participation",
    "seed": "seeds",
    "steps": "local_steps",
    "wd": "weight_decay",
}
"""What other programs call keys, and what they are called here."""

MANY, FEW = 100, 10
"""Names that are too many for a message, and how many of them are named then."""


class FedloomError(Exception):
    """An error that the user can mend: in a config, a file, a full disk.

    Args:
        problem: A main clause, with what is wrong and where.
        allowed: The values that would be allowed; the message has it after ``Allowed:``.
        advice: What to do about it; the message has it after ``Try:``.
    """

    def __init__(self, problem: str = "", allowed: str = "", advice: str = "") -> None:
        self.problem, self.allowed, self.advice = problem, allowed, advice
        message = problem
        if allowed:
            message += f". Allowed: {allowed}"
        if advice:
            message += f". Try: {advice}"
        super().__init__(message)

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class DataError(FedloomError):
    """A data file, partition table or store entry that cannot be used as it is."""


@contextlib.contextmanager
def reading(name: object, wrong: str, remedy: str = "get the file again") -> Iterator[None]:
    """Turn whatever a reader of somebody's file raises into a `DataError` that names the file.

    Bytes of others break readers in ways that nobody lists: text that is no text, sizes that
    overflow or that no memory holds. A `FedloomError` passes, as it says more.

    Args:
        wrong: What the message says of the file, ``is no readable Excel workbook``.
    """
    try:
        yield
    except FedloomError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{name}: {wrong} ({reason}); {remedy}") from error


@contextlib.contextmanager
def extra(what: str) -> Iterator[None]:
    """Around the import of a package that `make extras` installs: says so where it is absent."""
    try:
        yield
    except ModuleNotFoundError as error:
        problem = f"{what} needs {error.name}, which is not installed"
        raise FedloomError(f"{problem}; do: `make extras`") from error


@dataclass(frozen=True)
class Location:
    """Location of a config value: the file, and the path of keys inside it.

    ``location / "methods" / "fedprox"`` is two keys further in.
    """

    file: str
    key: str = ""

    def __truediv__(self, key: str | int) -> Location:
        return Location(self.file, f"{self.key}.{key}" if self.key else str(key))

    def __str__(self) -> str:
        return f"{self.file}: {self.key}" if self.key else self.file


class ConfigError(FedloomError):
    """A config value that is not allowed.

    Args:
        location: The file and key of the value.
        problem: What is wrong with it.
        allowed: The values that would be allowed.
        advice: What to do about it.
    """

    def __init__(
        self, location: Location, problem: str, allowed: str = "", advice: str = ""
    ) -> None:
        super().__init__(f"{location}: {problem}", allowed, advice)
        self.location, self.problem = location, problem


class ConfigErrors(ConfigError):
    """Several errors of a config; the message has each on a line of its own.

    Args:
        errors: The errors, at least one.
    """

    def __init__(self, errors: Iterable[ConfigError]) -> None:
        by_message = {str(each): each for error in errors for each in single_errors(error)}
        self.errors = [*by_message.values()]
        FedloomError.__init__(self, "\n".join(by_message))
        self.location = self.errors[0].location


def single_errors(error: ConfigError) -> list[ConfigError]:
    """Return the errors of which `ConfigErrors` consists; another error alone."""
    return error.errors if isinstance(error, ConfigErrors) else [error]


class ConfigProblems:
    """Collects errors of a config, so that all of them are reported at once.

    ::

        problems = ConfigProblems()
        for name, value in values.items():
            with problems.collected():
                check(name, value)
        problems.raise_all()
    """

    def __init__(self) -> None:
        self.errors: list[ConfigError] = []

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """Keep a `ConfigError` that is raised inside for `raise_all`."""
        try:
            yield
        except ConfigError as error:
            self.errors.append(error)

    def raise_all(self) -> None:
        """Raise the error that was collected, or `ConfigErrors` of several, if any."""
        if len({str(error) for error in self.errors}) == 1:
            raise self.errors[0]
        if self.errors:
            raise ConfigErrors(self.errors)


def unknown(location: Location, kind: str, name: object, names: Iterable[str]) -> ConfigError:
    """The error for a name that is not among ``names``, with the nearest one suggested; of very
    many names those alone that are near are listed.
    """
    known = sorted(names)
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    called = CALLED.get(str(name).lower().replace("-", "_"))
    near = [called] if called in known else near
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    allowed = ", ".join(known) or "none"
    if len(known) > MANY:
        listed = difflib.get_close_matches(str(name), known, n=FEW, cutoff=0.0)
        allowed = f"{', '.join(listed)} and {len(known) - len(listed)} others"
    return ConfigError(location, f"unknown {kind} {name!r}{hint}", allowed)
