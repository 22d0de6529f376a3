"""Published test samples, dealt in the proportions in which the training samples are held."""

from __future__ import annotations

import numpy as np

from fl.data.split import NOBODY, require
from fl.rng import generator

CODES = {"train": 0, "test": 1, "val": 2}
"""What a data set's array ``split`` says of a sample."""


def follow(
    scheme: str,
    client: np.ndarray,
    strata: tuple[np.ndarray, np.ndarray],
    pool: np.ndarray,
    members: np.ndarray,
    seed: int,
) -> tuple[np.ndarray, list[str]]:
    """Who holds the samples ``members``, given who holds those in ``pool``: ``[members]``, notes.

    ``strata``, ``[samples]`` each: numbers of a sample's class within its kind (a domain, a natural
    client; one kind for all where there are none), and of its kind. Of T members of a stratum, a
    client that holds n of its N samples in the pool gets T n/N, in whole numbers; what rounding
    costs a client in one stratum it is owed in the next. What nobody holds in the pool, nobody
    gets. A class that a kind lacks in the pool is dealt as all of the kind is. A client to whom
    nothing is due is given one sample, if possible of a class that it holds; a note says so.

    ``client`` ``[samples]``: 0..K-1 or `NOBODY`, read in the pool only. Raises `DataError` if there
    are too few members to give every client one.
    """
    rng, owner = generator(seed, "published"), np.full(len(members), NOBODY, np.int32)
    fine, coarse = strata
    lacking = ~np.isin(fine[members], fine[pool])
    for stratum, rows in ((fine, ~lacking), (coarse, lacking)):
        owner[rows] = _deal(client[pool], stratum[pool], stratum[members[rows]], rng)
    needy = np.setdiff1d(client[pool], [*owner, NOBODY])
    for poor in needy:
        held = fine[pool[client[pool] == poor]]
        _give_one(scheme, poor, owner, np.isin(fine[members], held))
    if not len(needy):
        return owner, []
    problem = f"{len(needy)} clients were due none of the {len(members)} published samples"
    return owner, [f"{scheme}: {problem}; each was given one"]


def _deal(
    holder: np.ndarray, stratum: np.ndarray, wanted: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Deal members of the strata ``wanted`` as each ``stratum`` is held: the owner of each."""
    owner = np.full(len(wanted), NOBODY, np.int32)
    owed = np.zeros(holder.max() + 2)  # The last is that of NOBODY.
    held, asked = np.argsort(stratum, kind="stable"), np.argsort(wanted, kind="stable")
    holder, stratum, wanted = holder[held], stratum[held], wanted[asked]
    numbers = np.intersect1d(wanted, stratum)
    ends = [np.searchsorted(a, (numbers, numbers + 1)).T for a in (stratum, wanted)]
    for (first, last), (begin, end) in zip(*ends, strict=True):
        place = asked[begin:end]
        holders, counts = np.unique(holder[first:last], return_counts=True)
        if len(holders) == 1:
            owner[place] = holders[0]
            continue
        due = len(place) * counts / (last - first) + owed[holders]
        got = _rounded(due, len(place), rng)
        owed[holders] = due - got
        owner[rng.permutation(place)] = np.repeat(holders, got)
    return owner


def _rounded(due: np.ndarray, total: int, rng: np.random.Generator) -> np.ndarray:
    """Whole numbers >= 0 that sum to ``total``, near to ``due``, which may sum to more or less."""
    got = np.maximum(np.floor(due + 1e-9), 0).astype(np.int64)
    while gap := total - int(got.sum()):
        step = 1 if gap > 0 else -1
        able = np.flatnonzero(got + step >= 0)
        order = np.lexsort((rng.random(len(able)), -np.round(step * (due - got)[able], 9)))
        got[able[order[: abs(gap)]]] += step
    return got


def _give_one(scheme: str, poor: int, owner: np.ndarray, fitting: np.ndarray) -> None:
    """Give a client that got nothing one sample, in place, of who has most of those ``fitting``."""
    counts = np.bincount(owner[owner != NOBODY])
    spare = np.append(counts, 0)[owner] > 1
    rows = np.flatnonzero(spare & fitting if (spare & fitting).any() else spare)
    found = f"{len(counts)} or more, too many for {counts.sum()} published samples that are dealt"
    require(len(rows) > 0, scheme, "clients", found, "fewer, so that each is dealt one or more")
    owner[rows[counts[owner[rows]].argmax()]] = poor
