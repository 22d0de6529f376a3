"""Arithmetic of partitions: checks, assignment of samples to clients, splits of each client.

A scheme decides the client of each sample (`fl.data.scheme`). `split_clients` then divides each
client's samples into train, val, test and server, stratified by class. `deal_in_proportion` assigns
samples of published splits in the proportions of the other samples.
"""

from __future__ import annotations

import math

import numpy as np

from fl.base.errors import DataError
from fl.base.rng import generator
from fl.base.units import quantity

NOBODY = -1
"""Number in place of a client for a sample that no client holds."""

MIN_CLIENT_SAMPLES = 3
"""Number of samples that a client needs: one each for train, val and test."""


class SmallClient(DataError):
    """The error for a client of too few samples.

    Args:
        scheme: Name of the scheme.
        client: Number of the client.
        size: Number of its samples.
        small_clients: Number of all clients of too few samples.
        remark: End of the problem, in words.
        name: Name of the client, if it is known.
    """

    def __init__(
        self,
        scheme: str,
        client: int,
        size: int,
        small_clients: int = 1,
        remark: str = "",
        name: str = "",
    ) -> None:
        self.facts = (scheme, client, size, small_clients)
        self.client, self.remark = client, remark
        shown = repr(name) if name else str(client)
        problem = f"partition {scheme}: the number of samples of client {shown} is {size}"
        if small_clients > 1:
            problem += f", and {quantity(small_clients - 1, 'other client')} have too few"
        allowed = f"at least {MIN_CLIENT_SAMPLES}, one each for train, val and test"
        super().__init__(problem + remark, allowed, "leave its samples out" if name else "")


def require(condition: bool, scheme: str, key: str, value: object, allowed: str) -> None:
    """Raise a `DataError` that names a key and its value unless the condition holds."""
    if not condition:
        raise DataError(f"partition {scheme}: {key} is {value}", allowed)


def check_shares(
    scheme: str, labels: np.ndarray, val: float, test: float | None, server: float = 0.0
) -> np.ndarray:
    """Return the labels as an array ``[samples]`` of integers after checking the shares.

    Args:
        scheme: Name of the scheme, for errors.
        labels: The labels.
        val: Share of validation samples.
        test: Share of test samples; None if test samples are published ones.
        server: Share of samples of the server.

    Raises:
        DataError: If labels are not one whole number for each sample, or if the shares leave no
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


def check_clients(
    scheme: str, clients: int, samples: int, minimum: int = MIN_CLIENT_SAMPLES
) -> None:
    """Raise a `DataError` unless each of ``clients`` can hold ``minimum`` of ``samples``."""
    maximum = samples // minimum
    allowed = f"1 to {maximum}, so that each gets at least {minimum} of the {samples} samples"
    if maximum < 1:
        allowed = f"none, as the data set has {samples} samples and one client needs {minimum}"
    require(1 <= clients <= maximum, scheme, "clients", clients, allowed)


def choose_classes(
    scheme: str,
    key: str,
    rng: np.random.Generator,
    clients: int,
    classes: int,
    classes_per_client: int,
) -> np.ndarray:
    """Choose the classes of each client.

    Clients choose in turn, at random among the classes that have the fewest holders so far.

    Args:
        scheme: Name of the scheme, for errors.
        key: Name of the config key, for errors.
        rng: The random generator.
        clients: Number of clients.
        classes: Number of classes.
        classes_per_client: Number of classes that each client holds.

    Returns:
        Booleans ``[clients, classes]`` with ``classes_per_client`` true values in each row.

    Raises:
        DataError: If there are fewer than ``classes_per_client`` classes.
    """
    require(
        1 <= classes_per_client <= classes,
        scheme,
        key,
        classes_per_client,
        f"1 to {classes}, the number of classes",
    )
    is_held = np.zeros((clients, classes), bool)
    holders = np.zeros(classes, np.int64)
    for is_held_by_client in is_held:
        is_held_by_client[np.lexsort((rng.random(classes), holders))[:classes_per_client]] = True
        holders += is_held_by_client
    return is_held


def check_alpha(scheme: str, alpha: float) -> None:
    """Raise a `DataError` unless ``alpha`` is a valid parameter of a Dirichlet distribution."""
    require(math.isfinite(alpha) and alpha > 0, scheme, "alpha", alpha, "a finite number > 0")


def log_gamma_draws(rng: np.random.Generator, alpha: float, size: int) -> np.ndarray:
    """Return logarithms of Gamma(alpha) variates, which become Dirichlet shares if normalised.

    Gamma(alpha) = Gamma(alpha + 1) U^(1/alpha) (Marsaglia and Tsang 2000, section 6). The logarithm
    keeps the proportions at small alpha, where all variates underflow to 0.
    """
    uniform = np.log1p(-rng.random(size))
    return np.log(rng.standard_gamma(alpha + 1.0, size)) + uniform / max(alpha, 1e-300)


def deal_by_class(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Assign the shuffled samples of each class to clients.

    Args:
        labels: Label of each sample ``[samples]``.
        counts: Number of samples of each client ``[classes, clients]``; rows are the classes that
            occur in ``labels``, in ascending order.
        rng: The random generator.

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
    remaining: np.ndarray, size: int, logs: np.ndarray, rng: np.random.Generator | None = None
) -> np.ndarray:
    """Take ``size`` samples from what is left of each class, by shares.

    Whole numbers are found by largest remainder; equal remainders are in random order. The share of
    a class that is used up goes to the other classes in proportion. If all chosen classes are used
    up, fewer than ``size`` samples are taken.

    Args:
        remaining: Samples of each class ``[classes]``; changed in place.
        size: Number of samples to take.
        logs: Logarithms of shares ``[classes]``. The shares need not sum to one; -inf excludes a
            class.
        rng: The random generator for equal remainders; None takes them in order.

    Returns:
        Number of samples taken of each class ``[classes]``.
    """
    counts = np.zeros_like(remaining)
    tie = rng.random(len(remaining)) if rng else np.zeros(len(remaining))
    while (deficit := size - counts.sum()) > 0:  # Again, for what classes that ran out lack.
        is_open = (remaining > counts) & (logs > -np.inf)
        if not is_open.any():
            break
        shares = np.exp(np.where(is_open, logs - logs[is_open].max(), -np.inf))
        exact_counts = deficit * shares / shares.sum()
        whole_counts = np.floor(exact_counts + 1e-9).astype(remaining.dtype)
        order = np.lexsort((tie, -np.round(exact_counts - whole_counts, 9), ~is_open))
        whole_counts[order[: deficit - whole_counts.sum()]] += 1
        counts += np.minimum(whole_counts, remaining - counts)
    remaining -= counts
    return counts


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
        scheme: Name of the scheme, for errors.
        client: Client of each sample, 0..K-1, or `NOBODY`, ``[samples]``.
        labels: Label of each sample ``[samples]``.
        seed: The seed.
        val: Share of validation samples.
        test: Share of test samples.
        server: Share of samples of the server.

    Returns:
        Each held sample, its client, and its split as an index of `fl.base.schema.HOLDINGS`, three
        arrays of equal length.

    Raises:
        DataError: If a client holds fewer than `MIN_CLIENT_SAMPLES` samples.
    """
    sample = np.flatnonzero(client != NOBODY)
    class_index = np.unique(labels[sample], return_inverse=True)[1]
    owner, priority = client[sample], generator(seed, "split").permutation(len(labels))[sample]
    order = np.lexsort((priority, class_index, owner))
    sample, owner, class_index, priority = (
        a[order] for a in (sample, owner, class_index, priority)
    )

    counts = _counts_by_client(scheme, owner, class_index)
    start = np.cumsum(counts.ravel()) - counts.ravel()
    group = np.ravel_multi_index((owner, class_index), counts.shape)
    # Among classes with equal remainders, the seed decides which one gets a sample.
    tie = priority[np.minimum(start, len(sample) - 1)].reshape(counts.shape)
    n_val, n_test = _split_sizes(counts.sum(axis=1), val, test)
    test_counts = apportion(n_test, counts, tie)
    val_counts = apportion(n_val, counts - test_counts, tie)
    remaining = counts - test_counts - val_counts
    n_server = np.floor(server * counts.sum(axis=1) + 0.5).astype(np.int64)
    server_counts = apportion(np.minimum(n_server, remaining.sum(axis=1) - 1), remaining, tie)

    rank = np.arange(len(sample)) - start[group]
    ends = np.cumsum(
        [
            counts_of_split.ravel()[group]
            for counts_of_split in (test_counts, val_counts, server_counts)
        ],
        axis=0,
    )
    split = np.select(list(rank < ends), [2, 1, 3], 0)
    return sample, owner, split


def apportion(totals: np.ndarray, weights: np.ndarray, tie: np.ndarray) -> np.ndarray:
    """Divide each row's total in proportion to its whole-number weights, by largest remainder.

    Args:
        totals: Totals ``[rows]``.
        weights: Weights ``[rows, columns]``.
        tie: Order of equal remainders ``[rows, columns]``, ascending.

    Returns:
        Whole numbers ``[rows, columns]`` whose rows sum to ``totals``. No number exceeds its weight
        if the total does not exceed the sum of the row's weights.
    """
    products = weights * totals[:, None]
    quotients, remainders = np.divmod(products, np.maximum(weights.sum(axis=1, keepdims=True), 1))
    # The rank of a column in its row: what is left goes to the largest remainders, one each.
    rank = np.argsort(np.lexsort((tie, -remainders), axis=-1), axis=-1)
    return quotients + (rank < (totals - quotients.sum(axis=1))[:, None])


def _counts_by_client(scheme: str, owner: np.ndarray, class_index: np.ndarray) -> np.ndarray:
    clients, classes = int(owner.max(initial=-1)) + 1, int(class_index.max(initial=-1)) + 1
    counts = np.bincount(owner * np.int64(classes) + class_index, minlength=clients * classes)
    counts = counts.reshape(clients, classes)
    sizes = counts.sum(axis=1)
    for client in np.flatnonzero(sizes < MIN_CLIENT_SAMPLES)[:1]:
        raise SmallClient(scheme, int(client), int(sizes[client]))
    return counts


def _split_sizes(n: np.ndarray, val: float, test: float) -> tuple[np.ndarray, np.ndarray]:
    least_val, least_test = int(val > 0), int(test > 0)
    n_test = np.floor(test * n + 0.5).astype(np.int64)
    n_test = np.clip(n_test, least_test, (n - 1 - least_val) * least_test)
    n_val = np.clip(np.floor(val * n + 0.5).astype(np.int64), least_val, n - 1 - n_test)
    return n_val, n_test


SPLIT_NUMBERS = {"train": 0, "test": 1, "val": 2}
"""Numbers of published splits in a data set's array ``split``."""


def deal_in_proportion(
    scheme: str,
    client_of_sample: np.ndarray,
    strata: tuple[np.ndarray, np.ndarray],
    pool: np.ndarray,
    members: np.ndarray,
    seed: int,
) -> tuple[np.ndarray, list[str]]:
    """Assign the samples ``members`` in the proportions in which those in ``pool`` are held.

    A client that holds n of the N pool samples of a stratum gets T n/N of its T members, in whole
    numbers; the rounding error of one stratum is carried to the next. Members of a stratum that
    nobody holds stay unassigned. A class that is absent from a group's pool is assigned like the
    whole group. A client without a member gets one sample of its group, if possible of a class that
    it holds; a note says so.

    Args:
        scheme: Name of the scheme, for errors.
        client_of_sample: Client of each sample, 0..K-1 or `NOBODY`, ``[samples]``; read in the
            pool only.
        strata: Two numbers of each sample, ``[samples]`` each: of its class within its group, and
            of its group (a domain or a natural client; otherwise one group).
        pool: Indices of the samples that are held.
        members: Indices of the samples to assign.
        seed: The seed.

    Returns:
        The client of each member ``[members]``, and the notes.

    Raises:
        DataError: If there are too few members for one of each client's group.
    """
    rng, client_of_member = generator(seed, "published"), np.full(len(members), NOBODY, np.int32)
    class_stratum, group_stratum = strata
    is_absent = ~np.isin(class_stratum[members], class_stratum[pool])
    for stratum, rows in ((class_stratum, ~is_absent), (group_stratum, is_absent)):
        client_of_member[rows] = _deal_strata(
            client_of_sample[pool], stratum[pool], stratum[members[rows]], rng
        )
    clients_without = np.setdiff1d(client_of_sample[pool], [*client_of_member, NOBODY])
    for client in clients_without:
        samples = pool[client_of_sample[pool] == client]
        in_same_class, in_same_group = (np.isin(a[members], a[samples]) for a in strata)
        _give_one_sample(scheme, client, client_of_member, in_same_class, in_same_group)
    if not len(clients_without):
        return client_of_member, []
    problem = (
        f"{len(clients_without)} clients were due none of the {len(members)} published samples"
    )
    return client_of_member, [f"{scheme}: {problem}; each was given one"]


def _deal_strata(
    client_of_pool: np.ndarray,
    pool_stratum: np.ndarray,
    member_stratum: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the client of each member, assigned as each stratum is held in the pool."""
    owner = np.full(len(member_stratum), NOBODY, np.int32)
    owed = np.zeros(client_of_pool.max() + 2)  # The last item is for NOBODY.
    sorted_pool, member_order = (
        np.argsort(pool_stratum, kind="stable"),
        np.argsort(member_stratum, kind="stable"),
    )
    client_of_pool, pool_stratum, member_stratum = (
        client_of_pool[sorted_pool],
        pool_stratum[sorted_pool],
        member_stratum[member_order],
    )
    numbers = np.intersect1d(member_stratum, pool_stratum)
    ends = [np.searchsorted(a, (numbers, numbers + 1)).T for a in (pool_stratum, member_stratum)]
    for (first, last), (begin, end) in zip(*ends, strict=True):
        members = member_order[begin:end]
        holders, counts = np.unique(client_of_pool[first:last], return_counts=True)
        if len(holders) == 1:
            owner[members] = holders[0]
            continue
        exact = len(members) * counts / (last - first) + owed[holders]
        counts = round_to_total(exact, len(members), rng)
        owed[holders] = exact - counts
        owner[rng.permutation(members)] = np.repeat(holders, counts)
    return owner


def round_to_total(exact: np.ndarray, total: int, rng: np.random.Generator) -> np.ndarray:
    """Return whole numbers >= 0 near ``exact`` that sum to ``total``.

    What is missing or too much is added or taken where it is nearest to ``exact``; equally near
    ones are drawn.

    Args:
        exact: Numbers, some of which may be below 0.
        total: The sum, >= 0.
        rng: Draws among equals.
    """
    counts = np.maximum(np.floor(exact + 1e-9), 0).astype(np.int64)
    while deficit := total - int(counts.sum()):
        step = 1 if deficit > 0 else -1
        candidates = np.flatnonzero(counts + step >= 0)
        order = np.lexsort(
            (rng.random(len(candidates)), -np.round(step * (exact - counts)[candidates], 9))
        )
        counts[candidates[order[: abs(deficit)]]] += step
    return counts


def _give_one_sample(
    scheme: str,
    client: int,
    owner: np.ndarray,
    in_same_class: np.ndarray,
    in_same_group: np.ndarray,
) -> None:
    """Give a client that got nothing one sample, in place, from who has most of those.

    own, near: whether a sample is of a class that the client holds, of its kind.
    """
    counts = np.bincount(owner[owner != NOBODY], minlength=1)
    is_spare = np.append(counts, 0)[owner] > 1
    rows = np.flatnonzero(
        is_spare & in_same_class if (is_spare & in_same_class).any() else is_spare & in_same_group
    )
    key = f"the number of published samples for client {client}"
    require(len(rows) > 0, scheme, key, 0, "at least one: fewer clients, or a share")
    owner[rows[counts[owner[rows]].argmax()]] = client
