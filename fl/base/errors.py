"""Errors a user can act on.

A message reads ``file: key: what is wrong. Allowed: values. Try: advice`` and is printed without a
traceback. Any other exception is a bug in Fedloom.
"""

from __future__ import annotations

import contextlib
import difflib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

EXIT_LEFT = 75
"""Exit status of a job that was told to stop and saved its state (EX_TEMPFAIL: try again)."""
EXIT_INTERRUPTED = 130
"""Exit status after Ctrl-C, as in a shell."""

NAME_BY_FOREIGN_NAME = {
    "alpha_dirichlet": "alpha",
    "batch": "batch_size",
    "batchsize": "batch_size",
    "comm_rounds": "rounds",
    "decay": "weight_decay",
    "e": "local_epochs",
    "epochs": "local_epochs",
    "eta": "lr",
    "fedadagrad": "fedopt",
    "fedadam": "fedopt",
    "fedyogi": "fedopt",
    "fraction": "participation",
    "fraction_fit": "participation",
    "gamma": "lr_decay",
    "global_rounds": "rounds",
    "iid": "homogeneous",
    "join_ratio": "participation",
    "l2": "weight_decay",
    "learning_rate": "lr",
    "local_learning_rate": "lr",
    "n_clients": "clients",
    "n_rounds": "rounds",
    "non_iid": "dirichlet",
    "noniid": "dirichlet",
    "num_clients": "clients",
    "num_parties": "clients",
    "num_rounds": "rounds",
    "opt": "optimizer",
    "sample_rate": "participation",
    "seed": "seeds",
    "shards": "pathological",
    "standalone": "local",
    "steps": "local_steps",
    "wd": "weight_decay",
}
"""Our name for a key, method or partition of other programs and papers, for "did you mean"."""

MISSPELLING = 0.75
"""Smallest ratio of equal letters (`difflib`) of a name and its misspelling."""
MAX_LISTED, MAX_SUGGESTED = 100, 10
"""A message lists up to 100 allowed names; of more names it lists the 10 most similar ones."""
MAX_LISTED_BESIDE_ADVICE, MAX_SUGGESTED_BESIDE_ADVICE = 20, 5
"""The same where a message suggests a name, or a command that lists all."""


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


class FedloomWarning(UserWarning):
    """A warning of a call in Python, such as `fl.run`: of data, of slow or of failed runs."""


class DataError(FedloomError):
    """A data file, partition table or store entry that cannot be used as it is."""


@contextlib.contextmanager
def wrap_read_errors(
    name: object, problem: str, remedy: str = "get the file again"
) -> Iterator[None]:
    """Turn every exception of a file reader into a `DataError` that names the file.

    Damaged files break readers in many ways: invalid text, sizes that overflow or exceed the
    memory. A `FedloomError` passes unchanged, because its message says more.

    Args:
        name: The file.
        problem: The predicate of the message, such as ``is no readable Excel workbook``.
        remedy: The advice of the message.
    """
    try:
        yield
    except FedloomError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{name}: {problem} ({reason})", advice=remedy) from error


@contextlib.contextmanager
def optional_package(feature: str, advice: str = "make extras") -> Iterator[None]:
    """Explain how to install an optional package if its import fails inside this context."""
    try:
        yield
    except ModuleNotFoundError as error:
        problem = f"{feature} needs {error.name}, which is not installed"
        raise FedloomError(problem, advice=advice) from error


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
        by_message = {str(e): e for error in errors for e in single_errors(error)}
        self.errors = [*by_message.values()]
        FedloomError.__init__(self, "\n".join(by_message))
        self.location = self.errors[0].location


def single_errors(error: ConfigError) -> list[ConfigError]:
    """Return the errors of which `ConfigErrors` consists; another error alone."""
    return error.errors if isinstance(error, ConfigErrors) else [error]


class ConfigProblems:
    """Collects errors of a config, so that all of them are reported at once.

    Args:
        errors: Errors that were found before.

    ::

        problems = ConfigProblems()
        for name, value in values.items():
            with problems.collected():
                check(name, value)
        problems.raise_all()
    """

    def __init__(self, errors: Iterable[ConfigError] = ()) -> None:
        self.errors: list[ConfigError] = [*errors]

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


def similar_name(name: str, names: Sequence[str]) -> str | None:
    """Return the name of which ``name`` may be a misspelling, or None.

    Two names that are words of their own, such as fedala and fedfa, are less than 75% alike.
    Letters in another order, one wrong letter, or f for ph are a misspelling of a short name, too.
    """
    mistyped = (
        candidate
        for candidate in names
        if sorted(candidate) == sorted(name)
        or (len(candidate) == len(name) > 1 and _count_differences(candidate, name) == 1)
        or (len(name) > 2 and _sound(candidate) == _sound(name))
    )
    near = difflib.get_close_matches(name, names, n=1, cutoff=MISSPELLING)
    return next(iter(near), next(mistyped, None))


def _count_differences(first: str, second: str) -> int:
    return sum(a != b for a, b in zip(first, second, strict=True))


def _sound(name: str) -> str:
    """Return a name as many languages write its sound: alfa for alpha."""
    return name.lower().replace("ph", "f")


def quoted_names(names: Iterable[str]) -> list[str]:
    """Return names in quotes; those that print alike, such as two spellings of é, as escapes."""
    names = [*names]
    counts = Counter(map(printed_form, names))
    return [ascii(name) if counts[printed_form(name)] > 1 else repr(name) for name in names]


def printed_form(name: str) -> str:
    """Return what is equal for two names that print alike, as composed and decomposed letters."""
    return unicodedata.normalize("NFC", name)


def meant_name(name: object, names: Iterable[str]) -> str | None:
    """Return the name that is probably meant by another program's name or a misspelling, or None.

    Args:
        name: The wrong name.
        names: The names that exist.
    """
    existing = sorted(names)
    called = NAME_BY_FOREIGN_NAME.get(str(name).lower().replace("-", "_"))
    if called in existing:
        return called
    simple = _simple_form(str(name))
    same = next((other for other in existing if _simple_form(other) == simple), None)
    return same or similar_name(str(name), existing)


def _simple_form(name: str) -> str:
    """Return what is equal for the ways in which papers and users write a name."""
    return printed_form(name).lower().replace("_", "-")


def unknown_name(
    location: Location, kind: str, name: object, names: Iterable[str], command: str = ""
) -> ConfigError:
    """Return the error for a name that does not exist, with a suggestion.

    Args:
        location: The file and key of the name.
        kind: The kind of thing that is named, such as ``method``.
        name: The wrong name.
        names: The names that exist.
        command: Command that lists them, for the case that they are many.
    """
    existing = sorted(names)
    near = meant_name(name, existing)
    shown, hint = repr(name), ""
    if near:
        shown, suggestion = quoted_names([str(name), near])
        hint = f" (did you mean {suggestion}?)"
        shown = shown if isinstance(name, str) else repr(name)
    problem = f"unknown {kind} {shown}{hint}"
    limit, count = MAX_LISTED, MAX_SUGGESTED
    if near or command:
        limit, count = MAX_LISTED_BESIDE_ADVICE, MAX_SUGGESTED_BESIDE_ADVICE
    if len(existing) <= limit:
        return ConfigError(location, problem, ", ".join(existing) or "none")
    cutoff = 0.5 if command and not near else 0.0
    similar = difflib.get_close_matches(str(name), existing, n=count, cutoff=cutoff)
    if not similar:
        return ConfigError(location, problem, advice=command)
    listed = [*dict.fromkeys([near, *similar] if near else similar)][:count]
    allowed = f"{', '.join(listed)} and {len(existing) - len(listed)} others"
    return ConfigError(location, problem, allowed, command)
