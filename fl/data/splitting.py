"""The arithmetic of partitions: checks, dealing samples to clients, and the split per client.

A scheme decides who holds which sample (`fl.data.scheme`). `divide` then divides each client's
samples into train, val, test and those of the server, stratified by class.

Published test samples, dealt in the proportions in which the training samples are held.
"""

from __future__ import annotations

import math

import numpy as np

from fl.base.errors import DataError
from fl.base.rng import generator

NOBODY = -1
"""In an array that gives each sample its client: a sample that no client holds."""

MIN_CLIENT_SAMPLES = 3
"""Samples that a client needs: one each for train, val and test."""


def require(met: bool, scheme: str, key: str, value: object, allowed: str) -> None:
    """Unless met, raise a `DataError` that names the key, its value and what is allowed."""
    if not met:
        raise DataError(f"partition {scheme}: {key} is {value}. Allowed: {allowed}")


def check_shares(
    scheme: str, labels: np.ndarray, val: float, test: float | None, server: float = 0.0
) -> np.ndarray:
    """The labels as an array ``[samples]`` of integers, after checking the shares.

    Args:
        test: None says that test samples come from elsewhere.

    Raises:
        DataError: If there is not one whole-number label for each sample, or if the shares leave no
            training or no test samples.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        kind = f"{labels.dtype} {list(labels.shape)}"
        require(False, scheme, "labels", kind, "one whole number per sample")
    require(
        len(labels) >= MIN_CLIENT_SAMPLES,
        scheme,
        "the number of samples",
        len(labels),
        f"at least {MIN_CLIENT_SAMPLES}",
    )
    require(0 <= val < 1, scheme, "val", val, "a share >= 0 and < 1")
    require(0 <= server < 1, scheme, "server", server, "a share >= 0 and < 1")
    if test is not None:
        require(0 < test < 1, scheme, "test", test, "a share > 0 and < 1")
    total = val + (test or 0.0) + server
    allowed = "a sum < 1, the rest is train"
    require(total < 1, scheme, "val + test + server", total, allowed)
    return labels


def check_clients(scheme: str, clients: int, samples: int, least: int = MIN_CLIENT_SAMPLES) -> None:
    """Raise `DataError` unless every one of ``clients`` can hold ``least`` of ``samples``."""
    most = samples // least
    allowed = f"1 to {most}, so that each gets at least {least} of the {samples} samples"
    if most < 1:
        allowed = f"none, as the data set has {samples} samples and one client needs {least}"
    require(1 <= clients <= most, scheme, "clients", clients, allowed)


def choose_classes(
    scheme: str, key: str, rng: np.random.Generator, clients: int, classes: int, each: int
) -> np.ndarray:
    """Which client holds which class.

    Clients choose in turn, at random among the classes that have the fewest holders so far.

    Returns:
        Booleans ``[clients, classes]`` with ``each`` of them true in a row.

    Raises:
        DataError: If there are fewer than ``each`` classes; it names ``key``.
    """
    require(1 <= each <= classes, scheme, key, each, f"1 to {classes}, the classes there are")
    holds = np.zeros((clients, classes), bool)
    holders = np.zeros(classes, np.int64)
    for row in holds:
        row[np.lexsort((rng.random(classes), holders))[:each]] = True
        holders += row
    return holds


def check_alpha(scheme: str, alpha: float) -> None:
    """Raise `DataError` unless ``alpha`` is the parameter of a Dirichlet distribution."""
    require(math.isfinite(alpha) and alpha > 0, scheme, "alpha", alpha, "a finite number > 0")


def log_gamma_draws(rng: np.random.Generator, alpha: float, size: int) -> np.ndarray:
    """Logarithms of Gamma(alpha) draws, which normalised are Dirichlet shares.

    Gamma(alpha) = Gamma(alpha + 1) U^(1/alpha) (Marsaglia and Tsang 2000, section 6). The logarithm
    keeps the proportions at small alpha, where the draws themselves all underflow to 0.
    """
    uniform = np.log1p(-rng.random(size))
    return np.log(rng.standard_gamma(alpha + 1.0, size)) + uniform / max(alpha, 1e-300)


def deal_by_class(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Deal each class's samples, shuffled, to clients.

    Args:
        counts: How many each client gets, ``[classes, clients]``; the rows are the classes that
            occur in ``labels``, in ascending order.

    Returns:
        The client of each sample, or `NOBODY`.
    """
    client = np.full(len(labels), NOBODY, np.int32)
    for label, row in zip(np.unique(labels), counts, strict=True):
        members = rng.permutation(np.flatnonzero(labels == label))
        holders = np.repeat(np.arange(len(row), dtype=np.int32), row)
        client[members[: len(holders)]] = holders
    return client


def take_by_shares(
    left: np.ndarray, size: int, logs: np.ndarray, rng: np.random.Generator | None = None
) -> np.ndarray:
    """Take ``size`` samples from what is left of each class, by shares.

    Whole numbers are found by largest remainder; equal remainders are in random order. A class that
    runs out leaves its share to the others in proportion. Where all classes that are wanted run
    out, fewer than ``size`` are taken.

    Args:
        left: Samples of each class, ``[classes]``; changed in place.
        logs: Logarithms of shares, ``[classes]``. The shares need not add up to one; -inf is for a
            class that is not wanted.

    Returns:
        How many of each class are taken, ``[classes]``.
    """
    taken = np.zeros_like(left)
    tie = rng.random(len(left)) if rng else np.zeros(len(left))
    while (missing := size - taken.sum()) > 0:
        open_ = (left > taken) & (logs > -np.inf)
        if not open_.any():
            break
        shares = np.exp(np.where(open_, logs - logs[open_].max(), -np.inf))
        exact = missing * shares / shares.sum()
        whole = np.floor(exact + 1e-9).astype(left.dtype)
        first = np.lexsort((tie, -np.round(exact - whole, 9), ~open_))
        whole[first[: missing - whole.sum()]] += 1
        taken += np.minimum(whole, left - taken)
    left -= taken
    return taken


def split_clients(
    scheme: str,
    client: np.ndarray,
    labels: np.ndarray,
    *,
    seed: int,
    val: float,
    test: float,
    server: float = 0.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Divide the samples of each client into splits.

    Shares are of a client's own samples, rounded to the nearest count. Every client gets at least
    one train sample, one test sample unless ``test`` is 0, and one val sample unless ``val`` is 0.
    Which samples a client tests on depends on the seed, on ``test`` and on the samples that it
    holds; it does not depend on ``val``, ``server``, the scheme or the other clients. Nor does
    ``server`` move validation samples; it may be too small for a client to give any.

    Args:
        client: The client of each sample, 0..K-1, or `NOBODY`, ``[samples]``.

    Returns:
        Each held sample, its client, and its split as an index of `fl.base.schema.HOLDINGS`;
        ``[held]`` each.

    Raises:
        DataError: If a client holds fewer than `MIN_CLIENT_SAMPLES` samples.
    """
    sample = np.flatnonzero(client != NOBODY)
    code = np.unique(labels[sample], return_inverse=True)[1]
    owner, priority = client[sample], generator(seed, "split").permutation(len(labels))[sample]
    order = np.lexsort((priority, code, owner))
    sample, owner, code, priority = (a[order] for a in (sample, owner, code, priority))

    counts = _counts_by_client(scheme, owner, code)
    start = np.cumsum(counts.ravel()) - counts.ravel()
    group = np.ravel_multi_index((owner, code), counts.shape)
    # Among classes that miss a sample by an equal margin, the seed decides which one gets it.
    tie = priority[np.minimum(start, len(sample) - 1)].reshape(counts.shape)
    n_val, n_test = _split_sizes(counts.sum(axis=1), val, test)
    tests = apportion(n_test, counts, tie)
    vals = apportion(n_val, counts - tests, tie)
    left = counts - tests - vals
    n_server = np.floor(server * counts.sum(axis=1) + 0.5).astype(np.int64)
    served = apportion(np.minimum(n_server, left.sum(axis=1) - 1), left, tie)

    rank = np.arange(len(sample)) - start[group]
    ends = np.cumsum(
        [counts_of_split.ravel()[group] for counts_of_split in (tests, vals, served)], axis=0
    )
    split = np.select(list(rank < ends), [2, 1, 3], 0)
    return sample, owner, split


def apportion(totals: np.ndarray, weights: np.ndarray, tie: np.ndarray) -> np.ndarray:
    """Divide each row's total in proportion to its whole-number weights, by largest remainder.

    Args:
        totals: ``[rows]``.
        weights: ``[rows, columns]``.
        tie: ``[rows, columns]``; equal remainders are served in ascending order of it.

    Returns:
        Whole numbers ``[rows, columns]`` whose rows sum to ``totals``. None exceeds its weight
        where the total does not exceed the sum of the row's weights.
    """
    share = weights * totals[:, None]
    whole, rest = np.divmod(share, np.maximum(weights.sum(axis=1, keepdims=True), 1))
    place = np.argsort(np.lexsort((tie, -rest), axis=-1), axis=-1)
    return whole + (place < (totals - whole.sum(axis=1))[:, None])


def _counts_by_client(scheme: str, owner: np.ndarray, code: np.ndarray) -> np.ndarray:
    clients, classes = int(owner.max(initial=-1)) + 1, int(code.max(initial=-1)) + 1
    counts = np.bincount(owner * np.int64(classes) + code, minlength=clients * classes)
    counts = counts.reshape(clients, classes)
    sizes = counts.sum(axis=1)
    for poor in np.flatnonzero(sizes < MIN_CLIENT_SAMPLES)[:1]:
        allowed = f"at least {MIN_CLIENT_SAMPLES}, one each for train, val and test"
        require(False, scheme, f"the number of samples of client {poor}", int(sizes[poor]), allowed)
    return counts


def _split_sizes(n: np.ndarray, val: float, test: float) -> tuple[np.ndarray, np.ndarray]:
    least_val, least_test = int(val > 0), int(test > 0)
    n_test = np.floor(test * n + 0.5).astype(np.int64)
    n_test = np.clip(n_test, least_test, (n - 1 - least_val) * least_test)
    n_val = np.clip(np.floor(val * n + 0.5).astype(np.int64), least_val, n - 1 - n_test)
    return n_val, n_test


SPLIT_NUMBERS = {"train": 0, "test": 1, "val": 2}
"""What a data set's array ``split`` says of a sample."""


def deal_in_proportion(
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
        owner[rows] = _deal_strata(client[pool], stratum[pool], stratum[members[rows]], rng)
    needy = np.setdiff1d(client[pool], [*owner, NOBODY])
    for poor in needy:
        samples = pool[client[pool] == poor]
        same, near = (np.isin(a[members], a[samples]) for a in strata)
        _give_one_sample(scheme, poor, owner, same, near)
    if not len(needy):
        return owner, []
    problem = f"{len(needy)} clients were due none of the {len(members)} published samples"
    return owner, [f"{scheme}: {problem}; each was given one"]


def _deal_strata(
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
        got = _round_to_total(due, len(place), rng)
        owed[holders] = due - got
        owner[rng.permutation(place)] = np.repeat(holders, got)
    return owner


def _round_to_total(due: np.ndarray, total: int, rng: np.random.Generator) -> np.ndarray:
    """Whole numbers >= 0 that sum to ``total``, near to ``due``, which may sum to more or less."""
    got = np.maximum(np.floor(due + 1e-9), 0).astype(np.int64)
    while gap := total - int(got.sum()):
        step = 1 if gap > 0 else -1
        able = np.flatnonzero(got + step >= 0)
        order = np.lexsort((rng.random(len(able)), -np.round(step * (due - got)[able], 9)))
        got[able[order[: abs(gap)]]] += step
    return got


def _give_one_sample(
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
