"""Groups of samples that belong together, such as the images of one patient.

A group is kept whole: in one split, and in one client. Partition schemes deal groups as if each
were one sample, whose class is the most frequent one in the group (`group_labels`), and the table
of groups becomes one of samples (`table_of_samples`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fl.base.errors import DataError, wrap_read_errors
from fl.base.schema import GROUP, HOLDINGS
from fl.data.prepared import Prepared

NOUNS = {
    "groups": "clients",
    "domains": "domains",
    "published": "published splits",
    "block": "blocks",
}
"""What the arrays of a scheme hold, by the name of its argument."""


def check_arrays(
    prepared: Prepared, arrays: Mapping[str, np.ndarray | None], published: bool, source: str
) -> None:
    """Raise a `DataError` if a group of a data set has several clients, domains or splits.

    Args:
        prepared: The data set, with groups.
        arrays: Arrays of a scheme ``[samples]``, by the name of its argument.
        published: Whether the scheme keeps published splits.
        source: The scheme, for errors.
    """
    samples = np.arange(len(prepared.y))
    for key, values in arrays.items():
        if key in NOUNS and values is not None and (published or key != "published"):
            _check_constant(prepared, samples, values, NOUNS[key], source)


def name_groups(table: pd.DataFrame, prepared: Prepared, source: str) -> pd.DataFrame:
    """Return a partition table with the names of groups in the column `GROUP`.

    Args:
        table: The table.
        prepared: The data set, with groups.
        source: The scheme or the file, for errors.

    Raises:
        DataError: If a group has samples in several splits.
    """
    assert prepared.group is not None
    samples = table["sample"].to_numpy()
    _check_constant(prepared, samples, pd.factorize(table["split"])[0], "splits", source)
    return table.assign(**{GROUP: np.array(prepared.groups, object)[prepared.group[samples]]})


def _check_constant(
    prepared: Prepared, samples: np.ndarray, values: np.ndarray, noun: str, source: str
) -> None:
    assert prepared.group is not None
    differing = pd.Series(values).groupby(prepared.group[samples]).nunique()
    for group in differing.index[differing > 1][:1]:
        problem = f"{source}: group {prepared.groups[group]!r} has samples of several {noun}"
        advice = f"give the groups of different {noun} different names, or leave out `group`"
        raise DataError(problem, advice=advice)


def group_labels(labels: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return the most frequent label of each group, the smallest of several; int64 [groups].

    Args:
        labels: Label of each sample ``[samples]``.
        group: Group of each sample, 0..G-1 without gaps, ``[samples]``.
    """
    counts = pd.DataFrame({"group": group, "label": labels}).value_counts().reset_index()
    ordered = counts.sort_values(["group", "count", "label"], ascending=[True, False, True])
    return ordered.groupby("group")["label"].first().to_numpy(np.int64)


def table_of_samples(table: pd.DataFrame, group: np.ndarray) -> pd.DataFrame:
    """Return the partition table of the samples of groups.

    Args:
        table: A partition table in which ``sample`` numbers groups.
        group: Group of each sample, 0..G-1 without gaps, ``[samples]``.

    Returns:
        The table in canonical order, with the columns of the groups' and with a further note.
    """
    row_of_group = np.full(group.max() + 1, -1)
    row_of_group[table["sample"]] = np.arange(len(table))
    rows = row_of_group[group]
    samples = np.flatnonzero(rows >= 0)
    expanded = table.iloc[rows[samples]].assign(sample=samples)
    split = pd.Index(HOLDINGS).get_indexer(pd.Index(expanded["split"]))
    expanded = expanded.iloc[np.lexsort((samples, split, expanded["client"]))]
    note = f"{len(row_of_group)} groups are dealt whole, as if each were one sample"
    expanded.attrs["notes"] = [*table.attrs["notes"], note]
    return expanded.reset_index(drop=True)


def groups_in_paths(top: Path, files: Sequence[Path], pattern: str) -> tuple[str, ...]:
    """Return the part of each file's path that names its group.

    Args:
        top: The folder of the files.
        files: The files.
        pattern: Regular expression that is searched in a path below ``top``. The group is the part
            in its first parentheses, or all that it matches if it has none.

    Raises:
        DataError: If the pattern is no regular expression, or finds no group in a path.
    """
    with wrap_read_errors(f"group {pattern!r}", "is no regular expression", "correct it"):
        expression = re.compile(pattern)
    groups = []
    for file in files:
        match = expression.search(file.relative_to(top).as_posix())
        if not match or not match[min(1, expression.groups)]:
            problem = f"{file}: the path has no part that fits group {pattern!r}"
            raise DataError(problem, "a regular expression that finds the group of each image")
        groups.append(match[min(1, expression.groups)])
    return tuple(groups)
