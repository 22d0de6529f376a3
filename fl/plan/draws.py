"""Random search: the values of a key that is drawn, ``lr: {log_uniform: [1e-4, 1], draws: 8}``.

J. Bergstra and Y. Bengio. Random Search for Hyper-Parameter Optimization. JMLR 2012.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fl.base import fields, rng
from fl.base.errors import ConfigError, Location
from fl.plan.grids import Draws

DIGITS = 3
"""Of a drawn value, so that tables can show it as it is."""
TRIES = 100
"""Numbers for each draw, among which are values that come again."""


@dataclass(frozen=True)
class Search:
    """How the values of a key are drawn.

    Attributes:
        draws: How many; the drawn keys of an entry have as many, and are drawn together.
        uniform: From where to where, both ends included.
        log_uniform: The same, of the value's logarithm.
    """

    draws: fields.Count
    uniform: list[float] | None = None
    log_uniform: list[float] | None = None


def drawn(
    declared: Mapping[str, fields.Field], values: Mapping[str, Any], seed: int, location: Location
) -> dict[str, Any]:
    """The values, with what is drawn for the keys that ask for it.

    The i-th draw of a key follows from the seed and the key's name: it is the same in every entry,
    and more draws go on from the first ones.

    Raises:
        ConfigError: For a search that is not understood, for keys of one entry that are drawn
            different numbers of times, and for a key whose values are no such numbers.
    """
    settled, counts = dict(values), dict[str, int]()
    for key, value in values.items():
        if key not in declared or not _is_search(value):
            continue
        at = location / key
        search = Search(**fields.parse(Search, value, at))
        settled[key] = Draws(_values(search, seed, key, at))
        try:
            fields.value(declared[key].hint, settled[key][0], at)
        except ConfigError as error:
            allowed = fields.describe(declared[key].hint)
            problem = f"is drawn, and {settled[key][0]!r} cannot be"
            raise ConfigError(at, problem, f"a list of values; each {allowed}") from error
        counts[key] = search.draws
        first, count = next(iter(counts.items()))
        if search.draws != count:
            problem = f"is {search.draws}, and {count} for {first}, which is drawn together with it"
            raise ConfigError(at / "draws", problem, f"{count}")
    return settled


def _is_search(value: Any) -> bool:
    return isinstance(value, Mapping) and bool({*fields.fields(Search)} & {*value})


def _values(search: Search, seed: int, key: str, location: Location) -> list[float]:
    given = {"uniform": search.uniform, "log_uniform": search.log_uniform}
    kinds = {kind: ends for kind, ends in given.items() if ends is not None}
    if len(kinds) != 1:
        raise ConfigError(
            location, f"has {len(kinds)} distributions", "one of uniform, log_uniform"
        )
    [(kind, ends)] = kinds.items()
    logs, at = kind == "log_uniform", location / kind
    if len(ends) != 2 or not ends[0] < ends[1] or (logs and ends[0] <= 0):
        allowed = "two numbers, the lower one first" + (", above 0" if logs else "")
        raise ConfigError(at, f"is {ends!r}", allowed)
    low, high = map(math.log, ends) if logs else ends
    numbers = low + (high - low) * rng.generator(seed, "search", key).random(TRIES * search.draws)
    exact = np.exp(numbers) if logs else numbers
    short = (min(max(float(f"{value:.{DIGITS}g}"), ends[0]), ends[1]) for value in exact)
    # A value that comes again would be a run that is there.
    values = list(itertools.islice(dict.fromkeys(short), search.draws))
    if len(values) < search.draws:
        problem = f"is {ends!r}, in which {search.draws} values of {DIGITS} digits were not found"
        raise ConfigError(at, problem, "ends that lie further apart, or fewer draws")
    return values
