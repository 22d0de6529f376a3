"""Data of your own in LEAF's JSON, as its preprocessing of any data set leaves them.

S. Caldas, S. M. K. Duddu, P. Wu, T. Li, J. Konečný, H. B. McMahan, V. Smith and A. Talwalkar. LEAF:
A Benchmark for Federated Settings. 2018. arXiv:1812.01097.

A file has the keys ``users``, ``num_samples`` (of each) and ``user_data``, which has for each user
the lists ``x`` and ``y``, and perhaps one that ``group`` names. A path is such a file, a folder of
files whose names differ in numbers only, or a folder with folders ``train``, ``test`` and perhaps
``val``, which are the published split; what lies beside these (as LEAF's ``raw_data``) is not read.
Users are clients, sorted by name; a user may be in several files.

Inputs are vectors of numbers, as LEAF's synthetic and FEMNIST data, or images under ``image``; they
stay as they are unless ``standardise`` is true. Or they are texts under ``text``: of characters,
numbered as in LEAF's alphabet of 80, as its Shakespeare; of words, as its Sent140, whose inputs are
lists with the text in fifth place. Words are numbered by how common they are in the split train;
where files are no splits, in all of them, as no partition is known when data are prepared. One
token more, ``vocabulary``, is any other word, and fills up. CelebA's, which are names of files, are
not read: `images` reads these with a table.

Labels that are whole numbers are classes as they stand, from 0 to the largest, and a note names
those without a sample; a number for a missing label, such as -1, is refused. A character is a
class by its place in the alphabet where inputs are characters; other texts are in order.

Memory: one file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.base.fields import Count
from fl.base.files import is_file, is_folder, list_files_below
from fl.base.folders import path_of
from fl.base.hashes import change_stamp
from fl.data.download import Source
from fl.data.normalisation import IDENTITY_NORMALISATION, TRAINING_NORMALISATION
from fl.data.prepared import SPLIT_NAMES, Writer
from fl.data.readers import tables
from fl.data.readers.missing_values import EMPTY_CELLS, check_missing_codes
from fl.data.readers.shards import check_one_table
from fl.data.readers.spellings import check_spellings
from fl.data.readers.texts import (
    ALPHABET,
    WORD_PATTERN,
    encode_characters,
    encode_words,
    vocabulary,
)

MAX_LABEL = 10_000
"""Of labels that are numbers, so that no phone number becomes a class."""


class User(NamedTuple):
    """A user in a file.

    Attributes:
        name: Name of the user.
        x: Inputs.
        y: Labels.
        split: Published split of the file, or "".
        groups: Group of each sample, or empty.
        at: File and user, for errors.
    """

    name: str
    x: list[Any]
    y: list[Any]
    split: str
    groups: list[Any]
    at: str


@dataclass(frozen=True)
class Survey:
    """Summary of the files: users, classes, groups, shape of an input, number of samples."""

    users: tuple[str, ...]
    classes: tuple[str, ...]
    groups: tuple[str, ...]
    shape: tuple[int, ...]
    samples: int


@dataclass(frozen=True)
class Leaf:
    """Users with samples, in the format of LEAF.

    Attributes:
        path: Path of the file or folder.
        image: Channels, height and width of an input of numbers, e.g. [1, 28, 28].
        text: Whether inputs are texts of characters or of words.
        vocabulary: Number of words with a token of their own.
        length: Number of words that are read of a text.
        group: List beside ``x`` and ``y`` with the group of each sample, such as its patient; a
            group is kept whole.
        standardise: Whether each channel of inputs, except texts, gets mean 0 and standard
            deviation 1 over training samples.
    """

    path: str
    image: tuple[Count, ...] | None = None
    text: Literal["characters", "words"] | None = None
    vocabulary: Count = 10_000
    length: Count = 25
    group: str | None = None
    standardise: bool = False

    sources: ClassVar[tuple[Source, ...]] = ()

    @property
    def files(self) -> list[Path]:
        """All files that are read."""
        return [file for file, _ in _files(path_of(self.path))]

    @property
    def survey(self) -> Survey:
        """The content of the files, which are read again only after a change."""
        with wrap_read_errors(self.path, "cannot be read", "correct its name or its permissions"):
            return _survey(self, change_stamp(self.files))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an input."""
        return self.survey.shape

    @property
    def tokens(self) -> int:
        """Number of different characters or words; 0 for numbers."""
        return {None: 0, "characters": len(ALPHABET), "words": self.vocabulary + 1}[self.text]

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.survey.classes)

    @property
    def natural_clients(self) -> int | None:
        """Number of users."""
        return len(self.survey.users)

    @property
    def client_names(self) -> list[str]:
        """Names of the users by number."""
        return [*self.survey.users]

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.survey.samples

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x, float32 or tokens; y int64, client and group int32, and split int8."""
        survey = self.survey
        number_by_user = {name: number for number, name in enumerate(survey.users)}
        number_by_word = self._words()
        for user in self.users():
            if not user.y:
                continue
            writer.append("x", self._inputs(user, number_by_word).reshape(-1, *survey.shape))
            writer.append("y", tables.number_texts(self.labels(user), survey.classes))
            writer.append("client", np.full(len(user.y), number_by_user[user.name], np.int32))
            if self.group is not None:
                numbers = tables.number_texts(map(str, user.groups), survey.groups)
                writer.append("group", numbers.astype(np.int32))
            if user.split:
                writer.append("split", [user.split] * len(user.y))
        normalisation = (
            None
            if self.text
            else TRAINING_NORMALISATION
            if self.standardise
            else IDENTITY_NORMALISATION
        )
        writer.describe(survey.classes, normalisation=normalisation, groups=survey.groups)

    def users(self) -> Iterator[User]:
        """The users of all files."""
        for file, split in _files(path_of(self.path)):
            yield from _users(file, split, self.group)

    def labels(self, user: User) -> list[str]:
        """Return the classes of a user's samples; raise a `DataError` for other values."""
        if self.text == "characters" and all(isinstance(y, str) and len(y) == 1 for y in user.y):
            return [ALPHABET[number] for number in encode_characters("".join(user.y))]
        empty = next((y for y in user.y if isinstance(y, str) and y.strip() in EMPTY_CELLS), None)
        for kind in (int, str):
            if empty is None and all(type(y) is kind for y in user.y):
                return [str(y) for y in user.y]
        odd = next((y for y in user.y if type(y) not in (int, str)), user.y[0])
        shown = odd if empty is None else empty
        raise DataError(f"{user.at}: y has {shown!r:.50}", "whole numbers alone, or names alone")

    def width(self, user: User) -> int:
        """Return the number of numbers or tokens of each input of a user."""
        if self.text is None:
            return self._inputs(user, {}).shape[1]
        lengths = {len(text) for text in _texts(user)}
        if self.text == "characters" and len(lengths) > 1:
            raise DataError(
                f"{user.at}: x has texts of {min(lengths)} and {max(lengths)} characters"
            )
        return self.length if self.text == "words" else lengths.pop()

    def _inputs(self, user: User, number_by_word: dict[str, int]) -> np.ndarray:
        if self.text == "characters":
            return np.stack([encode_characters(text) for text in _texts(user)])
        if self.text == "words":
            rows = [
                encode_words(
                    WORD_PATTERN.findall(text), number_by_word, self.length, self.vocabulary
                )
                for text in _texts(user)
            ]
            return np.array(rows, np.int32)
        if any(isinstance(x, str) for x in user.x):
            advice = "write the key `text`: characters, or words"
            raise DataError(f"{user.at}: x has the text {user.x[0]!r:.50}", "numbers", advice)
        with wrap_read_errors(
            f"{user.at}: x", "is no list of vectors of one length", "correct the file"
        ):
            vectors = np.asarray(user.x, np.float32)
        if vectors.ndim == 1 or not np.isfinite(vectors).all():
            problem = f"{user.at}: x has single numbers, or numbers that are not finite"
            raise DataError(f"{problem}. Allowed: vectors of finite numbers")
        return vectors.reshape(len(vectors), -1)

    def _words(self) -> dict[str, int]:
        if self.text != "words":
            return {}
        counts: Counter[str] = Counter()
        for user in self.users():
            if user.split in ("", "train"):
                for text in _texts(user):
                    counts.update(WORD_PATTERN.findall(text))
        return vocabulary(counts, self.vocabulary)


def _files(path: Path) -> list[tuple[Path, str]]:
    """The files of a path, each with its published split, or ""."""
    if not is_folder(path):
        if not is_file(path):
            raise DataError(f"{path}: does not exist", "a file of LEAF, or a folder of them")
        return [(path, "")]
    splits = [(path / name, name) for name in SPLIT_NAMES if is_folder(path / name)]
    files = [
        (file, split)
        for folder, split in splits or [(path, "")]
        for file in list_files_below(folder)
        if file.suffix == ".json"
    ]
    if not files:
        raise DataError(
            f"{path}: contains no .json file", "LEAF's files, or folders train and test with them"
        )
    if not splits:
        check_one_table(path, [file for file, _ in files])
    return files


def _users(path: Path, split: str, group: str | None) -> Iterator[User]:
    with wrap_read_errors(path, "is no JSON"):
        content = json.loads(path.read_bytes())
    allowed = "users, num_samples and user_data, as LEAF writes them"
    if not isinstance(content, dict) or not {"users", "num_samples", "user_data"} <= content.keys():
        raise DataError(f"{path}: a key is missing", allowed)
    with wrap_read_errors(path, "is not in LEAF's format", f"write {allowed}"):
        listed = Counter(map(str, content["users"]))
        for name in sorted(content["user_data"].keys() - listed.keys()):
            raise DataError(f"{path}: user {name!r}: is under user_data, but not in users", allowed)
        for name in (name for name, count in listed.items() if count > 1):
            raise DataError(f"{path}: user {name!r}: is {listed[name]} times in users", allowed)
        for name, count in zip(content["users"], content["num_samples"], strict=True):
            at = f"{path}: user {name!r}"
            data = content["user_data"].get(name)
            if data is None:
                raise DataError(f"{at}: is not under user_data", allowed)
            x, y = data["x"], data["y"]
            if not len(x) == len(y) == count:
                problem = f"{at}: has {len(x)} x and {len(y)} y, but num_samples says {count}"
                raise DataError(f"{problem}. Allowed: equal numbers")
            groups = [] if group is None else _groups(data, group, len(y), at)
            yield User(str(name), x, y, split, groups, at)


def _groups(data: Mapping[str, Any], key: str, samples: int, at: str) -> list[Any]:
    """Return the group of each sample of a user."""
    groups = data.get(key)
    problem = f"{at}: group is {key!r}, but user_data has no such list of {samples} names"
    allowed = "a name, text or whole number, for each sample"
    if not isinstance(groups, list) or len(groups) != samples:
        raise DataError(problem, allowed)
    for name in groups:
        if type(name) not in (int, str) or str(name).strip() in EMPTY_CELLS:
            raise DataError(f"{at}: {key} has {name!r:.50}", allowed)
    return groups


def _texts(user: User) -> list[str]:
    """The inputs as texts; of lists, as Sent140 has them, the fifth item."""
    texts = [x[4] if isinstance(x, list) and len(x) > 4 else x for x in user.x]
    for text in texts:
        if not isinstance(text, str):
            raise DataError(f"{user.at}: x has {text!r:.50}. Allowed: texts, as `text` says")
    return texts


@lru_cache(maxsize=8)
def _survey(leaf: Leaf, stamped: str) -> Survey:
    path, samples = path_of(leaf.path), 0
    users: set[str] = set()
    labels: set[str] = set()
    groups: set[str] = set()
    widths: dict[int, str] = {}
    for user in leaf.users():
        users.add(user.name)
        groups.update(map(str, user.groups))
        samples += len(user.y)
        if user.y:
            labels.update(leaf.labels(user))
            widths.setdefault(leaf.width(user), user.at)
    classes = _classes(path, leaf.text, labels)

    def place_of_label(label: str) -> str:
        return next(user.at for user in leaf.users() if user.y and label in leaf.labels(user))

    def place_of_group(group: str) -> str:
        return next(user.at for user in leaf.users() if group in map(str, user.groups))

    tables.check_classes(path, "y", sorted(labels), samples, place_of_label)
    for (width, location), (next_width, next_location) in pairwise(widths.items()):
        problem = (
            f"{next_location}: x has inputs of length {next_width}, but in {location} of {width}"
        )
        raise DataError(f"{problem}. Allowed: one length")
    [width] = widths
    shape = (width,) if leaf.image is None else leaf.image
    if np.prod(shape) != width or (leaf.image is not None and (leaf.text or len(shape) != 3)):
        problem = f"{path}: image is {list(shape)}, and x has {width} each"
        raise DataError(f"{problem}. Allowed: channels, height and width of as many numbers")
    check_spellings(path, f"group {leaf.group!r}", groups)
    check_missing_codes(path, "users", users, "user {!r}".format)
    check_missing_codes(path, f"group {leaf.group!r}", groups, place_of_group)
    return Survey(tuple(sorted(users)), classes, tuple(tables.sort_texts(groups)), shape, samples)


def _classes(path: Path, text: str | None, labels: set[str]) -> tuple[str, ...]:
    if text == "characters" and labels <= set(ALPHABET):
        return tuple(ALPHABET)
    if not all(label.isdecimal() for label in labels):
        return tuple(tables.sort_texts(labels))
    largest = max(map(int, labels), default=0)
    if largest > MAX_LABEL:
        raise DataError(
            f"{path}: y has the label {largest}. Allowed: classes from 0 to {MAX_LABEL}"
        )
    return tuple(map(str, range(largest + 1)))
