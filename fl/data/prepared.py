"""Prepared data sets: a folder of memory-mappable arrays and their ``dataset.json``.

``x.npy`` ``[samples, ...]`` holds the inputs in their own type (images stay uint8), ``y.npy``
``[samples]`` the labels, and where the data set has them ``client.npy`` the natural client,
``domain.npy`` the domain, ``block.npy`` the block of its client (clients that have something in
common, such as schools of one authority), ``group.npy`` the group (see `fl.data.groups`) and
``split.npy`` the published split (an index into `SPLIT_NAMES`) of each sample, ``mask.npy`` uint8
``[samples, height, width]`` the mask of a segmentation, ``text.npy`` ``[samples, ...]`` the tokens
of each input, and ``target.npy`` float ``[samples]`` the target of a regression; with masks or
targets, labels are 0. Further numeric inputs are in ``input_NAME.npy`` ``[samples, ...]``.
``dataset.json`` is written last, and then the folder gets its final name: a folder with this file
is complete.

An array on disk that grows row by row.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fl.base.errors import DataError
from fl.base.files import erase, find_damage, move, read_sealed, sync_folder, write_sealed
from fl.base.hashes import change_stamp, digest
from fl.data.normalisation import IDENTITY_NORMALISATION

ARRAYS = ("x", "y", "client", "domain", "block", "group", "split", "mask", "text", "target")
SPLIT_NAMES = ("train", "test", "val")
"""Names of published splits by their number in ``split.npy``."""
DESCRIPTION = "dataset.json"
MAX_LISTED_CLASSES = 10
"""Largest number of classes that a note names."""
INPUT_ARRAY = re.compile(r"input_[a-z][a-z0-9_]*")
"""Names of arrays of further inputs."""


class Writer:
    """Writer of a prepared data set, in a temporary folder beside the final one.

    As a context manager it removes the temporary folder unless `finish` was called::

        with Writer(folder) as writer:
            writer.save("y", labels)
            ...
            writer.finish(meta)
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        unique = f".{self.folder.name}.{os.getpid()}-{secrets.token_hex(4)}.partial"
        self.temporary = self.folder.with_name(unique)
        self.temporary.mkdir(parents=True)
        self.description: dict[str, Any] = {"domains": [], "normalisation": IDENTITY_NORMALISATION}
        self._growing_arrays: dict[str, GrowingArray] = {}

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exception: object) -> None:
        for rows in self._growing_arrays.values():
            with contextlib.suppress(OSError):
                rows.close()
        shutil.rmtree(self.temporary, ignore_errors=True)

    def save(self, name: str, array: np.ndarray | Sequence[str]) -> None:
        """Store a complete array.

        Args:
            name: A name of `ARRAYS`, or ``input_NAME``.
            array: The array. Published splits may be numbers or names, such as ``["train",
                "test"]``, here and in `append` and `add`.

        Raises:
            DataError: For an unknown name of a split.
        """
        np.save(self._path(name), self._as_array(name, array), allow_pickle=False)

    def create(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.memmap[Any, Any]:
        """Return a writable array of zeros on disk, for data sets that do not fit in memory.

        Its space is reserved at once, so that a full disk raises `OSError` here.
        """
        path = self._path(name)
        array = np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=shape)
        if hasattr(os, "posix_fallocate"):
            # If the disk were full only when the map is written, the process would be killed.
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return array

    def append(self, name: str, rows: np.ndarray | Sequence[str]) -> None:
        """Add rows ``[n, ...]`` to an array whose length is not known in advance."""
        rows = self._as_array(name, rows)
        if name not in self._growing_arrays:
            self._growing_arrays[name] = GrowingArray(self._path(name), rows)
        self._growing_arrays[name].add(rows)

    def add(self, **values: Any) -> None:
        """Add one sample: a value for each array, ``x``, ``y`` and so on."""
        for name, value in values.items():
            self.append(name, np.asarray(value)[None])

    def describe(
        self,
        classes: Sequence[str],
        *,
        normalisation: Mapping[str, Any] | None = IDENTITY_NORMALISATION,
        domains: Sequence[str] = (),
        groups: Sequence[str] = (),
        inputs: Mapping[str, Mapping[str, Any]] | None = None,
        vocabulary: int = 0,
        words: Sequence[str] = (),
        notes: Sequence[str] = (),
    ) -> None:
        """State the names of classes and domains and the normalisation of inputs.

        Args:
            classes: Names of the classes, in the order of labels.
            normalisation: ``scale``, ``mean`` and ``sd``, each a number or a list with one number
                per channel. If mean and sd are None, they are computed from the samples that a
                partition trains on (`fl.data.normalisation`); with ``missing: mean`` beside them,
                NaN is replaced by means in the same way. None says that inputs are tokens, which
                are not normalised.
            domains: Names of the domains, in the order of their numbers.
            groups: Names of the groups of samples that belong together, likewise.
            inputs: Normalisation of further inputs, and of targets, by array; the other ones are
                tokens.
            vocabulary: Number of words with a token of their own, if it is the training samples of
                a partition that decide which words these are (`fl.data.normalisation.rank_words`).
            words: All words of x by their numbers, in this case.
            notes: What a reader of results should know of the data, such as a number of samples
                that were left out. Reports have it below partitions.
        """
        self.description = {
            "classes": list(classes),
            "domains": list(domains),
            **({"groups": list(groups)} if groups else {}),
            **({"vocabulary": vocabulary, "words": list(words)} if vocabulary else {}),
            **({"notes": list(notes)} if notes else {}),
            "normalisation": None if normalisation is None else dict(normalisation),
            "inputs": {
                name: dict(normalisation_of_array)
                for name, normalisation_of_array in (inputs or {}).items()
            },
        }

    def finish(self, meta: Mapping[str, Any]) -> None:
        """Write ``dataset.json`` and give the folder its final name.

        All files are on the disk before the folder is renamed. If another process was faster, its
        folder stays.

        Args:
            meta: ``name``, ``params`` and ``sources`` (each with ``name`` and ``sha256``); it may
                override what `describe` set.

        Raises:
            DataError: If the arrays do not belong together.
        """
        for rows in self._growing_arrays.values():
            rows.close()
        further = sorted(
            p.stem for p in self.temporary.glob("*.npy") if INPUT_ARRAY.fullmatch(p.stem)
        )
        names = [name for name in ARRAYS if self._path(name).exists()]
        paths = {name: self._path(name) for name in (*names, *further)}
        arrays = {name: np.load(path, mmap_mode="r") for name, path in paths.items()}
        text = _checked_description({**self.description, **meta}, arrays, self.folder)
        # Who publishes data, or generates them, says what their classes are.
        absent = (
            _note_on_absent_classes(text["classes"], arrays) if "path" in text["params"] else ""
        )
        if absent:
            text["notes"] = [*text.get("notes", ()), absent]
        for path in paths.values():
            sync_folder(path)
        write_sealed(self.temporary / DESCRIPTION, text, [path.name for path in paths.values()])
        sync_folder(self.temporary)
        while not move(self.temporary, self.folder) and not (self.folder / DESCRIPTION).exists():
            erase(self.folder)  # The existing folder is incomplete.

    def _as_array(self, name: str, array: np.ndarray | Sequence[str]) -> np.ndarray:
        """Return the values as an array, with numbers in place of names of splits."""
        array_of_values = np.asarray(array)
        if name != "split" or array_of_values.dtype.kind not in "UO":
            return array_of_values
        unknown = {str(text) for text in array_of_values.tolist()} - {*SPLIT_NAMES}
        if unknown:
            problem = f"{self.folder}: array split has {min(unknown)!r}"
            raise DataError(f"{problem}. Allowed: {', '.join(SPLIT_NAMES)}")
        return np.array([SPLIT_NAMES.index(text) for text in array_of_values.tolist()], np.int8)

    def _path(self, name: str) -> Path:
        if name not in ARRAYS and not INPUT_ARRAY.fullmatch(name):
            raise ValueError(f"array {name!r}. Allowed: {', '.join(ARRAYS)}, input_NAME")
        return self.temporary / f"{name}.npy"


@dataclass(frozen=True)
class Prepared:
    """A prepared data set with read-only arrays that are mapped from disk.

    A model sees ``(x * scale - mean) / sd`` with the values of ``normalisation``, or x itself if
    that is None.

    Attributes:
        x: Inputs ``[samples, ...]``.
        y: Labels ``[samples]`` in 0..len(classes)-1.
        client: Natural client of each sample ``[samples]``, or None.
        domain: Domain ``[samples]``, or None.
        block: Block of each sample's client ``[samples]``, or None.
        split: Published split ``[samples]``, an index into `SPLIT_NAMES`, or None.
        mask: Masks ``[samples, height, width]``, or None.
        text: Tokens ``[samples, ...]``, or None.
        normalisation: ``scale``, ``mean`` and ``sd``, each one number or one for each channel; mean
            and sd are None if they are computed from the training samples of a partition.
        inputs: Further inputs ``[samples, ...]`` by the name of their array.
        normalisations: Their normalisation, and that of targets, by the name of the array; tokens
            have none.
        vocabulary: Number of words with a token of their own, if the training samples of a
            partition decide which words these are, else 0.
        words: All words of x by their numbers, in this case.
        target: Targets ``[samples]``, or None.
        notes: What a reader of results should know of the data.
    """

    folder: Path
    name: str
    params: dict[str, Any]
    x: np.ndarray
    y: np.ndarray
    client: np.ndarray | None
    domain: np.ndarray | None
    split: np.ndarray | None
    mask: np.ndarray | None
    text: np.ndarray | None
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    normalisation: dict[str, Any] | None
    sources: tuple[dict[str, str], ...]
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    normalisations: dict[str, dict[str, Any]] = field(default_factory=dict)
    block: np.ndarray | None = None
    group: np.ndarray | None = None
    groups: tuple[str, ...] = ()
    vocabulary: int = 0
    words: tuple[str, ...] = ()
    target: np.ndarray | None = None
    notes: tuple[str, ...] = ()

    @property
    def has_classes(self) -> bool:
        """Whether each sample has a class of its own."""
        return self.mask is None and self.target is None

    @classmethod
    def open(cls, folder: str | Path) -> Prepared:
        """Map the arrays of a prepared folder; no array is read.

        Raises:
            DataError: If the folder is incomplete, or if the size of an array differs from
                ``dataset.json``.
        """
        folder = Path(folder)
        text = _read_description(folder)
        arrays = {
            name: _map_array(folder / f"{name}.npy", text["files"]) for name in text["arrays"]
        }
        return cls(
            folder=folder,
            name=text["name"],
            params=text["params"],
            x=arrays["x"],
            y=arrays["y"],
            **{name: arrays.get(name) for name in ARRAYS[2:]},
            classes=tuple(text["classes"]),
            domains=tuple(text["domains"]),
            normalisation=text["normalisation"],
            sources=tuple(text["sources"]),
            inputs={name: arrays[name] for name in arrays if name not in ARRAYS},
            normalisations=text.get("inputs", {}),
            groups=tuple(text.get("groups", ())),
            vocabulary=text.get("vocabulary", 0),
            words=tuple(text.get("words", ())),
            notes=tuple(text.get("notes", ())),
        )

    def array(self, name: str) -> np.ndarray:
        """Return an array of inputs: ``x``, ``text`` or a further one.

        Raises:
            DataError: If no such array exists.
        """
        arrays = {"x": self.x, **({} if self.text is None else {"text": self.text}), **self.inputs}
        if name not in arrays:
            raise DataError(f"{self.folder}: has no inputs {name!r}", ", ".join(arrays))
        return arrays[name]

    def normalisation_of(self, name: str) -> dict[str, Any] | None:
        """Return the normalisation of an array of inputs or of targets; None for others."""
        return self.normalisation if name == "x" else self.normalisations.get(name)

    def verify(self) -> str:
        """Compare every array with its SHA-256 in ``dataset.json``.

        A process reads unchanged files once only.

        Returns:
            A hash of the arrays, of their normalisations and of the vocabulary.

        Raises:
            DataError: If an array was changed after it was written.
        """
        described = _read_description(self.folder)
        hashes = {name: entry["sha256"] for name, entry in described["files"].items()}
        content = digest(
            [
                *(hashes, described["normalisation"], described.get("inputs", {})),
                *(described[key] for key in ("vocabulary", "words") if key in described),
            ]
        )
        _verify_files(self.folder, change_stamp([self.folder]))
        return content


def _checked_description(
    meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], folder: Path
) -> dict[str, Any]:
    classes = meta.get("classes", ())
    if problem := _mismatch(arrays):
        raise DataError(f"{folder}: {problem}")
    if meta["normalisation"] is None and arrays["x"].dtype.kind not in "iu":
        raise DataError(
            f"{folder}: x is {arrays['x'].dtype}. Allowed: whole numbers, as tokens are"
        )
    low, high = int(arrays["y"].min()), int(arrays["y"].max())
    if low < 0 or high >= len(classes):
        raise DataError(
            f"{folder}: labels run from {low} to {high}. Allowed: 0 to {len(classes) - 1}, as there"
            f" are {len(classes)} class names"
        )
    if "group" in arrays and (
        arrays["group"].min() < 0 or arrays["group"].max() >= len(meta.get("groups", ()))
    ):
        problem = f"{folder}: array group has numbers without a name"
        raise DataError(problem, advice="give their names, describe(..., groups=[...])")
    if "split" in arrays and (
        arrays["split"].min() < 0 or arrays["split"].max() >= len(SPLIT_NAMES)
    ):
        raise DataError(
            f"{folder}: array split has unknown numbers. Allowed: 0 to {len(SPLIT_NAMES) - 1}"
        )
    return {
        **meta,
        "arrays": {n: {"dtype": str(a.dtype), "shape": list(a.shape)} for n, a in arrays.items()},
    }


def _note_on_absent_classes(classes: Sequence[str], arrays: Mapping[str, np.ndarray]) -> str:
    """Return a note on classes that no sample has, or ""."""
    if "mask" in arrays or "target" in arrays:
        return ""
    counts = np.bincount(arrays["y"], minlength=len(classes))
    absent = [name for name, count in zip(classes, counts, strict=True) if not count]
    text = f"{len(absent):,} of {len(classes):,} classes have no sample: {list_classes(absent)}"
    return text if absent else ""


def list_classes(names: Sequence[str]) -> str:
    """Return names of classes as text; of many, the first `MAX_LISTED_CLASSES`."""
    unlisted = ", ..." if len(names) > MAX_LISTED_CLASSES else ""
    return ", ".join(map(repr, names[:MAX_LISTED_CLASSES])) + unlisted


@lru_cache(maxsize=64)
def _verify_files(folder: Path, stamped: str) -> None:
    """Cache of `Prepared.verify` by the stamp of the folder."""
    for name, described in _read_description(folder)["files"].items():
        if problem := find_damage(folder / name, described):
            raise DataError(problem, advice=_advice(folder))


def _mismatch(arrays: Mapping[str, np.ndarray]) -> str:
    """Return why arrays do not belong to one data set, or ""."""
    for name in ("x", "y"):
        if name not in arrays:
            return f"array {name} is missing. Allowed: x and y at least"
    samples = len(arrays["x"])
    if not samples:
        return "array x is empty. Allowed: at least one sample"
    for name in sorted(set(arrays) - {"x"}):
        array, is_input = arrays[name], INPUT_ARRAY.fullmatch(name)
        expected = "numbers" if is_input else "one whole number"
        dimensions = {"mask": 3, "text": array.ndim}.get(name, array.ndim if is_input else 1)
        if name in ("mask", "text"):
            expected = f"a {name} of whole numbers"
        if name == "target":
            expected = "one float"
        is_valid = array.shape[:1] == (samples,) and array.ndim == dimensions
        kinds = "iuf" if is_input else "f" if name == "target" else "iu"
        if not is_valid or array.dtype.kind not in kinds:
            problem = f"array {name} is {array.dtype} {list(array.shape)}"
            return f"{problem}. Allowed: {expected} for each of the {samples} samples of x"
    return ""


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    try:
        return read_sealed(path)
    except FileNotFoundError:
        problem = f"{path}: the file is missing, so the data set is not completely prepared"
    except DataError as error:
        problem = str(error)
    raise DataError(problem, advice=_advice(folder))


def _map_array(path: Path, described: Mapping[str, Any]) -> np.ndarray:
    """Map an array on the disk; only its size is compared with ``dataset.json``."""
    size = path.stat().st_size if path.is_file() else None
    if size != described[path.name]["size"]:
        problem = f"{path}: the array is missing or its size differs from {DESCRIPTION}"
        raise DataError(problem, advice=_advice(path.parent))
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _advice(folder: Path) -> str:
    return f"delete the folder {folder} and prepare it again"


class GrowingArray:
    """A ``.npy`` file that grows row by row and is complete after `close`.

    Only the rows that are being added are in memory.

    Args:
        path: The file.
        first: Its first rows, which decide type and shape; `add` writes them.

    Raises:
        OSError: If the disk is full.
    """

    def __init__(self, path: Path, first: np.ndarray) -> None:
        self._dtype, self._shape, self._count = first.dtype, first.shape[1:], 0
        self._file = path.open("w+b")
        self._header()
        self._begin = self._file.tell()

    def add(self, rows: np.ndarray) -> None:
        """Write ``rows`` ``[n, ...]`` of the type and shape of the first ones."""
        if (rows.dtype, rows.shape[1:]) != (self._dtype, self._shape):
            kind, expected = f"{rows.dtype} {rows.shape[1:]}", f"{self._dtype} {self._shape}"
            raise ValueError(f"{self._file.name}: rows are {kind}. Allowed: {expected}")
        self._file.write(np.ascontiguousarray(rows).data)
        self._count += len(rows)

    def close(self) -> None:
        """Write the number of rows into the header and close the file."""
        if not self._file.closed:
            self._file.seek(0)
            self._header()
            if self._file.tell() != self._begin:
                raise RuntimeError("numpy no longer leaves room in the header of an array")
            self._file.close()

    def _header(self) -> None:
        # numpy pads headers so that the first dimension can grow without moving the data.
        described = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self._count, *self._shape),
        }
        np.lib.format.write_array_header_1_0(self._file, described)
