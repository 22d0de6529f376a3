"""Folders of PFLlib: one file for each client and part, as its generators write them.

A folder has ``train/0.npz``, ``train/1.npz``, ... and ``test`` with as many files. Each has one
pickled dictionary, which is read without running code: inputs ``x`` and labels ``y``. Texts are
pairs of a list of tokens, of one length, and this length. ``config.json``, which not every
generator writes, has the number of clients.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.base.files import is_file, is_folder, list_files_below, parse_json
from fl.data.readers.archives import iter_members
from fl.data.readers.pickles import load_pickle

SPLITS = ("train", "test")
CONFIG = "config.json"
REMEDY = "generate the data set again"


def client_files(folder: Path) -> list[Path]:
    """Return the training files by number of the client, then the test files.

    Raises:
        DataError: If the folder is none of PFLlib, or its files are not those of all clients.
    """
    paths = [folder / split for split in SPLITS]
    if not all(map(is_folder, paths)):
        raise DataError(
            f"{folder}: has no folders train and test",
            "an .npz file of arrays, or a folder of PFLlib, such as dataset/MNIST",
        )
    found = {file for path in paths for file in list_files_below(path) if file.suffix == ".npz"}
    clients = _clients_in_config(folder) or sum(file.parent == paths[0] for file in found)
    expected = [path / f"{client}.npz" for path in paths for client in range(clients)]
    allowed = f"in train and in test one file for each of {clients} clients, from 0.npz on"
    for file in expected:
        if file not in found:
            raise DataError(f"{file}: does not exist", allowed, REMEDY)
    for file in sorted(found.difference(expected)):
        advice = f"delete it, if it was left from other settings than those in {CONFIG}"
        raise DataError(f"{file}: is of no client", allowed, advice)
    return expected


def _clients_in_config(folder: Path) -> int:
    """Return the number of clients in the config of a folder; 0 without a config."""
    path = folder / CONFIG
    if not is_file(path):
        return 0
    with wrap_read_errors(path, "is no JSON", REMEDY):
        config = parse_json(path.read_bytes())
    clients = config.get("num_clients") if isinstance(config, dict) else None
    if type(clients) is not int or clients < 1:
        raise DataError(f"{path}: num_clients: is {clients!r:.50}", "a whole number, 1 or more")
    return clients


def read_folder(folder: Path) -> dict[str, np.ndarray]:
    """Return the arrays x, y, client and split of all clients: training samples, then test samples.

    Raises:
        DataError: If a file cannot be read, or its arrays do not fit those of the first file.
    """
    pieces: dict[str, list[np.ndarray]] = {"x": [], "y": [], "client": [], "split": []}
    for file in client_files(folder):
        x, y = _read_file(file)
        first = pieces["x"][0] if pieces["x"] else x
        if x.shape[1:] != first.shape[1:] or x.dtype != first.dtype:
            problem = f"{file}: x: is {x.dtype} {list(x.shape)}"
            raise DataError(problem, f"{first.dtype} [samples, {str(list(first.shape[1:]))[1:]}")
        pieces["x"].append(x)
        pieces["y"].append(y)
        pieces["client"].append(np.full(len(x), int(file.stem)))
        pieces["split"].append(np.full(len(x), file.parent.name))
    return {key: np.concatenate(arrays) for key, arrays in pieces.items()}


def _read_file(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs and labels in the file of a client."""
    with wrap_read_errors(file, "has no dictionary data of x and y", REMEDY):
        members = iter_members(file, lambda name: name == "data.npy")
        _, stream = next(members)
        np.lib.format.read_magic(stream)
        np.lib.format.read_array_header_1_0(stream)
        [data] = load_pickle(stream)
        x, y = _inputs(data["x"]), np.asarray(data["y"])
    if y.shape != x.shape[:1]:
        raise DataError(f"{file}: y: is {list(y.shape)}", f"a label for each of {len(x)} inputs")
    return x, y


def _inputs(x: Any) -> np.ndarray:
    """Return inputs as an array; of pairs of tokens and their number, the tokens."""
    return x if isinstance(x, np.ndarray) else np.array([tokens for tokens, _ in x])
