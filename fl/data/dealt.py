"""From a prepared data set to a partition table, by a scheme of `fl.data.schemes` or a plugin's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from fl.data import holdings

if TYPE_CHECKING:
    from fl.data.prepared import Prepared

Scheme = Callable[..., pd.DataFrame]


def deal(scheme: Scheme, values: Mapping[str, Any], prepared: Prepared, name: str) -> pd.DataFrame:
    """The partition table ``sample, client, split`` that a scheme makes.

    The scheme gets the labels, ``values``, and those of the data set's own groups, domains and
    published split for which it has arguments.

    Args:
        name: Of the partition, in errors.

    Raises:
        DataError: For a table that breaks the promises of one, see `fl.data.holdings.validate`.
    """
    given = {"groups": prepared.client, "domains": prepared.domain, "published": prepared.split}
    wanted = inspect.signature(scheme).parameters
    groups = {key: given[key] for key in given if key in wanted}
    table = scheme(prepared.y, **groups, **values)
    holdings.validate(table, prepared.y, source=values.get("path", f"partition {name}"))
    return table
