"""Published test samples, dealt in the proportions in which the training samples are held."""

from __future__ import annotations

import numpy as np

from fl.base.rng import generator
from fl.data.split import NOBODY, require

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
    """Deal the samples ``members`` as the samples in ``pool`` are held.

    Of T members of a stratum, a client that holds n of its N samples in the pool gets T n/N, in
    whole numbers; what a client loses by rounding in one stratum it is owed in the next. What
    nobody holds in the pool, nobody gets. A class that a kind lacks in the pool is dealt as the
    whole kind is. A client to whom nothing is due is given one sample of its kind, if possible of a
    class that it holds; a note says so.

    Args:
        client: Who holds each sample, 0..K-1 or `NOBODY`, ``[samples]``; it is read in the pool
            only.
        strata: Two numbers of each sample, ``[samples]`` each: of its class within its kind, and of
            its kind (a domain, a natural client; one kind for all where there are none).

    Returns:
        Who holds each member, ``[members]``, and the notes.

    Raises:
        DataError: If there are too few members to give every client one of its kind.
    """
    rng, owner = generator(seed, "published"), np.full(len(members), NOBODY, np.int32)
    fine, coarse = strata
    lacking = ~np.isin(fine[members], fine[pool])
    for stratum, rows in ((fine, ~lacking), (coarse, lacking)):
        owner[rows] = _deal(client[pool], stratum[pool], stratum[members[rows]], rng)
    needy = np.setdiff1d(client[pool], [*owner, NOBODY])
    for poor in needy:
        samples = pool[client[pool] == poor]
        same, near = (np.isin(a[members], a[samples]) for a in strata)
        _give_one(scheme, poor, owner, same, near)
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
    sorted_pool, asked = np.argsort(stratum, kind="stable"), np.argsort(wanted, kind="stable")
    holder, stratum, wanted = holder[sorted_pool], stratum[sorted_pool], wanted[asked]
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


def _give_one(
    scheme: str, poor: int, owner: np.ndarray, same: np.ndarray, near: np.ndarray
) -> None:
    """Give a client that got nothing one sample, in place, from who has most of those.

    own, near: whether a sample is of a class that the client holds, of its kind.
    """
    counts = np.bincount(owner[owner != NOBODY], minlength=1)
    spare = np.append(counts, 0)[owner] > 1
    rows = np.flatnonzero(spare & same if (spare & same).any() else spare & near)
    key = f"the number of published samples for client {poor}"
    require(len(rows) > 0, scheme, key, 0, "at least one: fewer clients, or a share")
    owner[rows[counts[owner[rows]].argmax()]] = poor
