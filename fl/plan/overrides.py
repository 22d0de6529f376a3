"""Overrides: keys of a study that a command sets, ``fedloom run NAME rounds=5 lr=0.1``.

``KEY=VALUE`` means what the key would mean in the study's file, in which nothing is written. The
changed study has a name of its own, ``NAME,lr=0.1,rounds=5``, which is read as the same words. It
shares runs with the study of the file where their specs are equal.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from fl.api.training import Training
from fl.base import fields, registry
from fl.base.errors import ConfigError, ConfigProblems, Location, unknown_name
from fl.base.hashes import digest
from fl.plan import config, yaml_text
from fl.plan.config import Draft, Study, Values

COMMAND_LINE = Location("the command line")

OVERRIDE = re.compile(r"([^\s,=\[\]{}\"']+)=(.*)", re.DOTALL)
"""An override: key and value."""

NEXT_OVERRIDE = re.compile(r",(?=[A-Za-z][\w.+-]*=)(?![^\[]*\])(?![^{]*\})")
"""The comma before a further override, outside of lists and mappings."""

FILE_NAME = re.compile(r"(?:[A-Za-z0-9_,=+\[\]-]|(?<=[0-9])\.(?=[0-9]))*")
"""Pattern of values that can be part of a file's name; a dot as in `config.STUDY_NAME`."""

LIST = re.compile(r"[\w.+-]+(,[\w.+-]+)+")
"""A list without its brackets: ``fedavg,fedprox``."""

TEXT_KEYS = {"title", "question", "paper", "shows", "execution"}
"""Keys of a study whose text, or that of a key inside, may look so."""

LONGEST = 100
"""Longest name that shows its overrides; a longer one has their hash."""

HASHED = "overrides"
"""Key of this hash in a name: ``NAME,overrides=1a2b3c4d``."""

ALL_KEYS = "docs/reference/config.md, which lists all keys"
"""Where keys of a study are listed."""

STUDY_KEYS = {
    "seed": "seeds",
    "draw": "seeds",
    "method": "methods",
    "dataset": "datasets",
    "model": "models",
}
"""By a key of ``--only``, the key of a study that lists what it selects among."""

PLAIN_TEXT = re.compile(r"[A-Za-z_][\w.+-]*")
"""Text that a list of YAML can hold without quotes."""


class StudyName(str):
    """Name of a study with overrides.

    It is text, so that files, plans and Snakemake take it as any other name.

    Attributes:
        base: Name of the study in the file.
        words: The overrides ``KEY=VALUE``, sorted.
    """

    base: str
    words: tuple[str, ...]

    def __new__(cls, base: str, words: Iterable[str]) -> Self:
        """Name a study by its overrides, or by their hash if a file cannot be named so."""
        words = tuple(sorted(words))
        text = ",".join([base, *words])
        values = (word.partition("=")[2] for word in words)
        if len(text) > LONGEST or not all(map(FILE_NAME.fullmatch, values)):
            text = f"{base},{HASHED}={digest(words)[:8]}"
        name = super().__new__(cls, text)
        name.base, name.words = base, words
        return name


@dataclass(frozen=True)
class PlacedLocation(Location):
    """Location in a study with overrides: a key that one sets is located in its word.

    Attributes:
        words: Word, or file, and key as they are written, by the path of the key.
    """

    words: Mapping[str, tuple[str, str]] = field(default_factory=dict, compare=False)

    def __truediv__(self, key: str | int) -> Location:
        inner = super().__truediv__(key)
        if inner.key in self.words:
            return Location(*self.words[inner.key])
        return replace(self, key=inner.key)


@dataclass(frozen=True)
class _Override:
    """An override and its place in a study.

    Attributes:
        key: The key as a name has it: ``lr`` for ``training.lr``.
        steps: Its path in the study.
        word: The override as a name has it.
        old: The value in the file, as a word has it; empty if there is none.
    """

    key: str
    steps: tuple[str, ...]
    word: str
    old: str


def is_key(name: str) -> bool:
    """Whether a word is a key that an override can begin with."""
    return name in {*fields.fields(Study), *fields.fields(Training)}


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the studies and the overrides of a command: ``a b lr=0.1``, ``a,b,lr=0.1`` alike.

    Raises:
        ConfigError: For an override without key or value, or one that the shell has split.
    """
    names: list[str] = []
    overrides: list[str] = []
    for i, word in enumerate(words):
        name, *pieces = NEXT_OVERRIDE.split(word)
        if OVERRIDE.fullmatch(name):
            pieces, name = [name, *pieces], ""
        elif "=" in name:
            raise _spaced(words, i)
        for piece in pieces:
            value = piece.partition("=")[2]
            if not value.strip() or value.startswith("="):
                raise _spaced(words, i)
            if _is_open(value):
                raise _divided(words, i)
        names += config.split_names([name])
        overrides += pieces
    return list(dict.fromkeys(names)), overrides


def entry_keys(words: Sequence[str]) -> Values:
    """Return the keys of an entry that overrides set, by name.

    Raises:
        ConfigError: For a value that is not understood, and for two of one key.
    """
    keys: Values = {}
    for word in words:
        key, text = word.split("=", 1)
        place = Location(_short(word), key)
        if key in keys:
            raise ConfigError(place, "occurs twice", advice=f"a grid: '{key}=[0.1, 1]'")
        keys = {**keys, key: _value(key, text, place)}
    return keys


def _value(key: str, text: str, place: Location) -> Any:
    """Return the value of an override; raise `ConfigError` for a list without brackets."""
    value = yaml_text.parse(text, place)
    is_text = not TEXT_KEYS.isdisjoint(key.split("."))
    if isinstance(value, str) and LIST.fullmatch(text) and not is_text:
        raise ConfigError(place, f"is {text!r}, which is no list", advice=f"'{key}=[{text}]'")
    return value


def _spaced(words: Sequence[str], i: int) -> ConfigError:
    """Return the error for a word in which key or value is missing, as in ``lr = 0.1``."""
    key, _, value = (text.strip(" =") for text in words[i].partition("="))
    key = key or (words[i - 1] if i else "KEY")
    value = value or (words[i + 1] if i + 1 < len(words) else "VALUE")
    advice = f"{key}={value} without spaces, or {key}=null for no value"
    return ConfigError(COMMAND_LINE, f"{words[i]!r} is no KEY=VALUE", advice=advice)


def _is_open(value: str) -> bool:
    return any(value.count(a) > value.count(b) for a, b in ("[]", "{}")) and value[0] in "[{"


def _divided(words: Sequence[str], i: int) -> ConfigError:
    """Return the error for a list without its end, which a shell may have split off."""
    longer = (" ".join(words[i : n + 1]) for n in range(i + 1, len(words)))
    whole = next((text for text in longer if not _is_open(text.partition("=")[2])), None)
    problem = f"{words[i]!r} has no closing bracket"
    if whole is None:
        end = "]" if "[" in words[i] else "}"
        return ConfigError(COMMAND_LINE, problem, advice=f"'{words[i]}{end}'")
    return ConfigError(
        COMMAND_LINE, f"{problem}, as a shell splits words at spaces", advice=f"quotes: '{whole}'"
    )


def resolve(folder: Path, words: Sequence[str]) -> list[str]:
    """Return the names of the studies of a command, each with all its overrides.

    A study that no override changes has its own name.

    Args:
        folder: The config folder.
        words: Studies and overrides; overrides alone are of the studies in ``config.yaml``.

    Raises:
        ConfigError: For an override that is not understood.
    """
    names, added = split(words)
    if not added:
        return names
    resolved: list[str] = []
    for name in names or config.read_settings(folder).studies:
        base, *words = as_words(name)
        values, _ = config.read_values(folder, base, COMMAND_LINE)
        changes = _apply(values, [*words, *added])
        resolved.append(StudyName(base, [c.word for c in changes]) if changes else base)
    return resolved


def check_name(name: str) -> None:
    """Raise `ConfigError` for a name that no study with or without overrides has."""
    base, _, words = name.partition(",")
    is_changed = re.fullmatch(r"[\w.+-]+=[\w.,=+\[\]-]+", words, re.ASCII)
    config.check_name(base if is_changed else name, COMMAND_LINE)


def as_words(name: str) -> list[str]:
    """Return a study as a command names it: its name, and its overrides."""
    return [name.base, *name.words] if isinstance(name, StudyName) else NEXT_OVERRIDE.split(name)


def read_draft(folder: Path, name: str, location: Location) -> Draft:
    """Return a study by name, with its overrides, as far as its keys are right.

    Args:
        folder: The config folder.
        name: The study's name.
        location: Location of the name.

    Raises:
        ConfigError: For a study that does not exist, whose file cannot be read, or of which an
            override is not understood.
    """
    base, *words = as_words(name)
    if not words:
        return config.read_draft(folder, base, location)
    values, file = config.read_values(folder, base, location)
    changes = _apply(values, words)
    if isinstance(title := values.get("title"), str) and title:
        shown = [word for word in words if not word.startswith("title=")]
        values["title"] = f"{title} ({', '.join(shown)})" if shown else title
    places = {".".join(c.steps): (_short(c.word), c.key) for c in changes}
    draft = config.parse_draft(values, PlacedLocation(file.file, words=places))
    changed = ", ".join(f"{_short(c.word)} (file: {_old_text(c)})" for c in changes)
    notes = [f"Overrides: {changed}"] if changes else []
    return replace(draft, notes=(*notes, *_reach_notes(folder, values, changes)))


def check_study(folder: Path, name: str, location: Location) -> Draft:
    """Return a study by name; raise `ConfigError` for what is wrong with its keys."""
    draft = read_draft(folder, name, location)
    ConfigProblems(draft.errors).raise_all()
    return draft


def _apply(values: dict[str, Any], words: Sequence[str]) -> list[_Override]:
    """Set the keys of overrides in a study; return those that change it.

    Raises:
        ConfigError: For an override that is not understood, and for two of one key.
    """
    changes: list[_Override] = []
    for word in words:
        key, text = word.split("=", 1)
        value = _value(key, text, Location(_short(word), key))
        change = _set(values, key, value, Location(_short(word), key))
        for other in changes:
            n = min(len(other.steps), len(change.steps))
            if other.steps[:n] == change.steps[:n]:
                problem = f"sets the key of {_short(other.word)} too"
                raise ConfigError(Location(_short(word), key), problem, advice="one of both")
        changes.append(change)
    for change in changes:
        if change.steps == ("methods",):
            _check_named(values, Location(_short(change.word), change.key))
    return [change for change in changes if change.old != change.word]


def _check_named(values: Values, place: Location) -> None:
    """Raise `ConfigError` if new entries lack one that another key of the study names."""
    entries = config.named_entries(values["methods"], place)
    if not isinstance(entries, Mapping):
        return  # The study's check says so.
    for key in ("baseline", "ours"):
        label = values.get(key)
        if isinstance(label, str) and label not in entries:
            problem = f"has no entry {label!r}, which is the study's {key}"
            advice = f"{key}=null, or another entry: {key}={next(iter(entries), 'NAME')}"
            raise ConfigError(place, problem, ", ".join(map(str, entries)), advice)


def _set(values: dict[str, Any], key: str, value: Any, place: Location) -> _Override:
    """Set a key of a study.

    Args:
        values: The study as it is written.
        key: The path of the key; the first word can be a key of ``training``.
        value: The new value.
        place: Location of errors.
    """
    study, training = fields.fields(Study), fields.fields(Training)
    names: Sequence[str] = key.split(".")
    if key == HASHED:
        problem, advice = "is a hash, which does not tell the overrides", "the overrides themselves"
        raise ConfigError(place, problem, advice=advice)
    if names[0] not in study:
        if key in STUDY_KEYS:
            advice = f"`--only {key}=...` for some of the study's runs, "
            advice += f"`{STUDY_KEYS[key]}=[...]` for others"
            raise ConfigError(place, f"unknown key {key!r}", advice=advice)
        if names[0] not in training:
            raise _unknown_key(values, key, value, place, [*study, *training])
        names = ["training", *names]
    if names[0] == "methods" and names[1:] and values.get("methods"):
        values["methods"] = config.named_entries(values["methods"], place)
    node: Any = values
    steps: list[str] = []
    written: list[str] = []
    while True:
        step, name, names = _step(node, names, place, is_top=node is values)
        steps.append(str(step))
        written.append(name)
        if isinstance(node, list):
            item = node[step]
            node[step] = {name: None if isinstance(item, str) else item[name]}
            node, step = node[step], name
            steps.append(name)
        if not names:
            break
        inner = {} if node.get(step) is None else node[step]
        if not isinstance(inner, dict | list):
            raise ConfigError(place, f"{'.'.join(written)} is {inner!r}, which has no keys")
        # A copy, as an alias in the file may be the same object in another place.
        node[step] = node = copy.copy(inner)
    is_short = written[0] == "training" and len(written) > 1
    name = ".".join(written[is_short:])
    old = f"{name}={_text(node[step])}" if step in node else ""
    node[step] = value
    return _Override(name, tuple(steps), f"{name}={_text(value)}", old)


def _unknown_key(
    values: Values, key: str, value: Any, place: Location, names: Sequence[str]
) -> ConfigError:
    """Return the error for an unknown key, with the entries of the study that have such a key."""
    entries = config.named_entries(values.get("methods"), COMMAND_LINE)
    labels = []
    for label, entry in entries.items() if isinstance(entries, Mapping) else ():
        method = entry.get("method", label) if isinstance(entry, Mapping) else label
        with contextlib.suppress(ConfigError):  # The study's check says what is wrong with it.
            if key in registry.find("method", str(method), COMMAND_LINE).declared:
                labels.append(label)
    if labels:
        verb = "has" if len(labels) == 1 else "have"
        problem = f"unknown key {key!r} of the study, which {', '.join(labels)} {verb}"
        return ConfigError(place, problem, advice=f"methods.{labels[0]}.{key}={_text(value)}")
    partitions = values.get("partitions")
    for scheme in map(_item_name, partitions if isinstance(partitions, list) else ()):
        with contextlib.suppress(ConfigError):
            if key in registry.find("partition scheme", scheme, COMMAND_LINE).declared:
                advice = f"partitions.{scheme}.{key}={_text(value)}"
                return ConfigError(place, f"unknown key {key!r} of the study", advice=advice)
    error = config.unknown_key(place, key, names)
    return error if error.advice else unknown_name(place, "key", key, names, ALL_KEYS)


def _step(
    node: Any, names: Sequence[str], place: Location, is_top: bool
) -> tuple[Any, str, Sequence[str]]:
    """Return the key or index of the next step in a study, its name, and the names behind it.

    A name may contain dots. Only the last one may be new, or a key that the file leaves out.
    """
    existing = [*map(_item_name, node)] if isinstance(node, list) else [*node]
    for n in range(len(names), 0, -1):
        name = ".".join(names[:n])
        if name in existing:
            if existing.count(name) > 1:
                problem = f"{name!r} is in the list {existing.count(name)} times"
                raise ConfigError(place, problem, advice="set the whole list")
            return existing.index(name) if isinstance(node, list) else name, name, names[n:]
    if isinstance(node, dict) and (is_top or len(names) == 1):
        return names[0], names[0], names[1:]
    error = unknown_name(place, "name", names[0], filter(None, map(str, existing)))
    inner = ".".join(names[1:])
    added = place.key.removesuffix(f".{inner}")
    advice = f"'{added}={{{inner}: VALUE}}' to add it" if isinstance(node, dict) else ""
    raise ConfigError(place, error.problem, error.allowed, advice)


def _item_name(item: Any) -> str:
    """Return the name of an item ``name`` or ``{name: keys}`` of a list; empty for another one."""
    if isinstance(item, dict) and len(item) == 1:
        return str(next(iter(item)))
    return item if isinstance(item, str) else ""


def _reach_notes(
    folder: Path, values: Mapping[str, Any], changes: Iterable[_Override]
) -> list[str]:
    """Return a line for each key of ``training`` that some methods set for themselves.

    Raises:
        ConfigError: If all of them do, so that an override changes nothing.
    """
    try:
        entries = config.named_entries(values.get("methods"), COMMAND_LINE)
        owned = {label: {*_own_keys(folder, label, entry)} for label, entry in entries.items()}
    except (ConfigError, AttributeError):
        return []  # The study's check tells what is wrong with the methods.
    notes: list[str] = []
    for change in changes:
        labels = [label for label, keys in owned.items() if change.steps[-1] in keys]
        if change.steps[:-1] != ("training",) or not labels:
            continue
        advice = f"methods.{labels[0]}.{change.word}"
        problem = f"does not reach {', '.join(labels)}, whose own {change.key} stays"
        if len(labels) == len(owned):
            raise ConfigError(Location(change.word, change.key), problem, advice=advice)
        notes.append(f"{change.word} {problem}. Try: {advice}")
    return notes


def _own_keys(folder: Path, label: str, entry: Any) -> Iterable[str]:
    """Return the keys that an entry sets, or the file of its method."""
    keys = fields.mapping(entry, COMMAND_LINE)
    return [*keys, *config.method_defaults(folder, str(keys.get("method", label)))[0]]


def _old_text(change: _Override) -> str:
    return _short(change.old.partition("=")[2]) if change.old else "not set"


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:50]}..."


def _text(value: Any) -> str:
    """Return a value as YAML in as few characters as can be: ``[0.1,1]``, ``adam``, else JSON."""
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    is_plain = isinstance(value, str) and PLAIN_TEXT.fullmatch(value)
    if is_plain and yaml_text.parse(value, COMMAND_LINE) == value:
        return str(value)
    return json.dumps(value, ensure_ascii=False)
