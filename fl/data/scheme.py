"""The decorator of partition schemes.

The function of a scheme assigns samples to clients. The decorator `scheme` adds what all schemes
share: the division of each client's samples into train, val and test, published splits, parts of
the clients, and clients that are held out of training.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd

from fl.base.errors import DataError
from fl.base.fields import Bound, Count, Index, Seed, Share
from fl.base.rng import generator
from fl.base.schema import HOLDINGS, UNSEEN
from fl.base.units import quantity
from fl.data.groups import group_labels, table_of_samples
from fl.data.partition_table import MODALITY, ORIGIN, unseen_clients
from fl.data.splitting import (
    MIN_CLIENT_SAMPLES,
    NOBODY,
    SPLIT_NUMBERS,
    SmallClient,
    check_shares,
    deal_in_proportion,
    require,
    split_clients,
)

PUBLISHED_SPLIT = "published"
Published = Literal["published"]

Part = Literal["all", "tuning", "scored"]
ALL: Part = "all"
"""Value of the key ``part`` for a partition of all clients."""
PART_SHARES: dict[Part, float] = {"all": 1.0, "tuning": 1 / 3, "scored": 2 / 3}
"""Share of the clients in each part; whole blocks may give another one."""


@dataclass(frozen=True)
class Assignment:
    """Assignment of samples to clients.

    Attributes:
        client: Client of each sample, 0..K-1 or `fl.data.splitting.NOBODY`, ``[samples]``.
        notes: Adjustments that the scheme made to its definition.
    """

    client: np.ndarray
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class CommonKeys:
    """Keys of every partition scheme.

    Attributes:
        seed: Seed of the partition.
        val: Share of each client's samples for validation, or ``published``: the samples of the
            data set's published val split, distributed in the proportions of all other samples.
        test: Share of each client's samples for tests, or ``published``, like `val`.
        server: Share of each client's samples that the server gets instead.
        unseen: Clients held out of training, drawn by the seed: share or number. With
            ``published``: clients without samples of the published train split. Natural clients
            that have samples of the published `val` or `test` alone are among them; these samples
            are divided by the shares, of which a published one has its default.
        modalities: Numbers of clients with each of the data set's modalities, in its order; one
            more number counts clients with all modalities.
        part: Clients of which the partition consists: `tuning`, a third of all of them, by which
            keys of methods are chosen, or `scored`, the others. Clients of one block (schools of
            one authority), if the data set has blocks, are in the same part.
        division: Seed by which a third of the clients is drawn. With a part, it is also the seed by
            which a scheme deals samples, so that parts have none in common whatever `seed` is.
        newcomer_samples: Largest number of training samples of an unseen client, drawn by the seed;
            null: no limit. A group of samples counts as one.
    """

    seed: Seed = 0
    val: Share | Published = 0.1
    test: Share | Published = 0.2
    server: Share = 0.0
    unseen: Annotated[float, Bound(low=0, below=1)] | Count | Published = 0.0
    modalities: tuple[Index, ...] | None = None
    part: Part = ALL
    division: Seed = 0
    newcomer_samples: Count | None = None

    @property
    def dealing_seed(self) -> int:
        """Seed by which samples are dealt to clients."""
        return self.seed if self.part == ALL else self.division


COMMON_HINTS = typing.get_type_hints(CommonKeys, include_extras=True)


def scheme(assign: Callable[..., Assignment]) -> Callable[..., pd.DataFrame]:
    """Return the scheme ``(labels, ..., published=None, *, own keys, common keys) -> table``.

    The scheme returns the partition table (sample, client, split) in canonical order. It has a
    column ``domain`` (int32) if ``assign`` takes domains, a column ``unseen`` (bool) if a client is
    unseen, and a column ``origin`` (int32), the number of the client among all, if it has a part of
    the clients. Its arguments ``published`` and ``block`` ``[samples]`` are the data set's arrays
    ``split`` and ``block``, or None. With ``group`` ``[samples]``, the group of each sample,
    ``assign`` gets a label, domain or client for each group in place of each sample, and groups
    stay whole. The scheme raises a `DataError` for keys that do not fit the data.

    Args:
        assign: ``(labels, [domains or groups,] *, own keys[, seed])``: gets the samples to assign
            and returns their clients.
    """
    name = assign.__name__.replace("_", "-")
    parameters = inspect.signature(assign).parameters.values()
    arrays = [
        parameter for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    arrays += [
        Parameter(key, Parameter.POSITIONAL_OR_KEYWORD, default=None)
        for key in ("published", "group", "block")
    ]
    keys = [
        parameter
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in COMMON_HINTS
    ]
    keys += [
        Parameter(
            field_.name,
            Parameter.KEYWORD_ONLY,
            default=field_.default,
            annotation=COMMON_HINTS[field_.name],
        )
        for field_ in dataclasses.fields(CommonKeys)
    ]
    signature = inspect.Signature([*arrays, *keys], return_annotation=pd.DataFrame)
    own_names = {parameter.name for parameter in parameters}

    @functools.wraps(assign)
    def partition(*args: Any, **kwargs: Any) -> pd.DataFrame:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        given_arrays = {parameter.name: values.pop(parameter.name) for parameter in arrays}
        common = CommonKeys(**{key: values[key] for key in COMMON_HINTS})
        keys_of_scheme = {key: value for key, value in values.items() if key in own_names}
        if "seed" in keys_of_scheme:
            keys_of_scheme["seed"] = common.dealing_seed
        make = functools.partial(
            _make_table, name, functools.partial(assign, **keys_of_scheme), common
        )
        group = given_arrays.pop("group")
        return make(**given_arrays) if group is None else _deal_groups(make, group, **given_arrays)

    vars(partition)["__signature__"] = signature
    partition.__annotations__ = {**assign.__annotations__, **COMMON_HINTS, "return": pd.DataFrame}
    return partition


def _deal_groups(
    make: Callable[..., pd.DataFrame],
    group: np.ndarray,
    labels: np.ndarray,
    **arrays: np.ndarray | None,
) -> pd.DataFrame:
    """Return the table of samples whose groups are dealt as if each were one sample."""
    _, first, number = np.unique(group, return_index=True, return_inverse=True)
    of_groups = {key: values if values is None else values[first] for key, values in arrays.items()}
    try:
        table = make(labels=group_labels(labels, number), **of_groups)
    except DataError as error:
        remark = f", where each of {len(first)} groups counts as one sample"
        if isinstance(error, SmallClient):
            raise SmallClient(*error.facts, remark) from None
        raise DataError(error.problem + remark, error.allowed, error.advice) from None
    return table_of_samples(table, number)


def _make_table(
    name: str,
    assign: Callable[..., Assignment],
    common: CommonKeys,
    labels: np.ndarray,
    published: np.ndarray | None,
    block: np.ndarray | None,
    **group_arrays: np.ndarray | None,
) -> pd.DataFrame:
    """Make the table; ``group_arrays`` are the domains or groups, if ``assign`` takes them."""
    published_keys = [key for key in ("val", "test") if getattr(common, key) == PUBLISHED_SPLIT]
    val, test = (0.0 if key in published_keys else getattr(common, key) for key in ("val", "test"))
    labels = check_shares(
        name, labels, val, None if "test" in published_keys else test, common.server
    )
    groups = next((_checked_array(name, *item, labels) for item in group_arrays.items()), None)
    split = _published_split(name, common, published, labels)
    pool = np.flatnonzero(~np.isin(split, [SPLIT_NUMBERS[key] for key in published_keys]))
    allowed = (
        f"at least {MIN_CLIENT_SAMPLES} that are not published as {' or '.join(published_keys)}"
    )
    require(len(pool) >= MIN_CLIENT_SAMPLES, name, "the number of samples", len(pool), allowed)
    # Whether the natural client or the domain of each sample has none to train on.
    is_without = np.zeros(len(labels), bool) if groups is None else ~np.isin(groups, groups[pool])
    keeps_newcomers = common.unseen == PUBLISHED_SPLIT and "groups" in group_arrays
    newcomers = np.flatnonzero(is_without & keeps_newcomers)
    dealt = np.union1d(pool, newcomers)
    holders = assign(
        labels[dealt], *(None if groups is None else groups[dealt] for _ in group_arrays)
    )

    client = np.full(len(labels), NOBODY, np.int32)
    client[dealt] = holders.client
    shares = {"val": val, "test": test, "server": common.server}
    notes = list(holders.notes)
    if len(newcomers):
        pieces = [_split_by_shares(name, client, pool, labels, common.seed, shares)]
        shares = _newcomer_shares(common)
        pieces += [_split_by_shares(name, client, newcomers, labels, common.seed, shares)]
        notes += [_note_on_newcomers(name, client[newcomers], shares)]
    else:
        pieces = [split_clients(name, client, labels, seed=common.seed, **shares)]
    for key in published_keys:
        members = np.setdiff1d(np.flatnonzero(split == SPLIT_NUMBERS[key]), newcomers)
        owner, deal_notes = deal_in_proportion(
            name, client, _strata(labels, groups), pool, members, common.dealing_seed
        )
        is_held = owner != NOBODY
        left_out = members[is_without[members]]
        if groups is not None and len(left_out):
            noun = "client" if "groups" in group_arrays else "domain"
            notes += [_note_on_left_out(name, key, noun, groups[left_out], len(members))]
        pieces.append(
            (members[is_held], owner[is_held], np.full(is_held.sum(), HOLDINGS.index(key)))
        )
        notes += deal_notes
    sample, owner, split_of = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    table = build_table(sample, owner, split_of, notes)
    if "domains" in group_arrays and groups is not None:
        table["domain"] = groups[table["sample"]].astype(np.int32)
    table = _part_of(name, table, common, _checked_array(name, "block", block, labels))
    table = _with_few_newcomer_samples(name, _with_unseen(name, table, common, split), common)
    return _with_modality(name, table, common)


def _split_by_shares(
    name: str,
    client: np.ndarray,
    samples: np.ndarray,
    labels: np.ndarray,
    seed: int,
    shares: Mapping[str, float],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what `split_clients` does of the clients of some samples, which have any numbers."""
    holder = np.full_like(client, NOBODY)
    numbers, holder[samples] = np.unique(client[samples], return_inverse=True)
    sample, owner, split = split_clients(name, holder, labels, seed=seed, **shares)
    return sample, numbers[owner], split


def _newcomer_shares(common: CommonKeys) -> dict[str, float]:
    """Return the shares of clients of published samples alone: the default for a published one."""
    default, shares = CommonKeys(), {}
    for key in ("val", "test"):
        share = getattr(common, key)
        shares[key] = float(getattr(default, key) if share == PUBLISHED_SPLIT else share)
    return shares


def _note_on_newcomers(name: str, clients: np.ndarray, shares: Mapping[str, float]) -> str:
    """Return the note on unseen clients whose published samples are divided."""
    count = quantity(len(np.unique(clients)), "unseen client")
    return (
        f"{name}: the {len(clients):,} samples of {count} that are published for tests or "
        f"validation alone are divided by the shares val {shares['val']:g} and test "
        f"{shares['test']:g}"
    )


def _note_on_left_out(name: str, key: str, noun: str, groups: np.ndarray, members: int) -> str:
    """Return the note on published samples that no client gets."""
    count = quantity(len(np.unique(groups)), noun)
    note = (
        f"{name}: {len(groups):,} of the {members:,} published {key} samples are left out, as they "
        f"are of {count} without training samples"
    )
    return note + ("; `unseen: published` keeps them" if noun == "client" else "")


def _checked_array(
    name: str, key: str, values: np.ndarray | None, labels: np.ndarray
) -> np.ndarray | None:
    """``given`` as an array of one number per sample, if it is given."""
    if values is None:
        return None
    values = np.asarray(values)
    is_valid = values.shape == labels.shape
    require(is_valid, name, key, list(values.shape), f"the shape {list(labels.shape)}")
    return values


def _published_split(
    name: str, common: CommonKeys, published: np.ndarray | None, labels: np.ndarray
) -> np.ndarray:
    """Return the published split of each sample; all are train if no key asks for it."""
    keys = [key for key in ("val", "test", "unseen") if getattr(common, key) == PUBLISHED_SPLIT]
    if not keys:
        return np.full(len(labels), SPLIT_NUMBERS["train"])
    split = _checked_array(name, "published", published, labels)
    for key in keys:
        number = SPLIT_NUMBERS["train" if key == "unseen" else key]
        if split is None or not (split == number).any():
            raise DataError(
                f"partition {name}: {key} is published, but the data set lacks such a split",
                "a number",
                "a data set with this split",
            )
    return typing.cast(np.ndarray, split)


def _strata(labels: np.ndarray, groups: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of each sample's class within its group, and of its group."""
    code = np.unique(labels, return_inverse=True)[1]
    group_numbers = np.unique(
        np.zeros_like(code) if groups is None else groups, return_inverse=True
    )[1]
    return group_numbers * (code.max() + 1) + code, group_numbers


def build_table(
    sample: np.ndarray, client: np.ndarray, split: np.ndarray, notes: Sequence[str] = ()
) -> pd.DataFrame:
    """Return the table, sorted by client, split and sample; ``split`` indexes `HOLDINGS`."""
    order = np.lexsort((sample, split, client))
    table = pd.DataFrame(
        {
            "sample": sample[order].astype(np.int64),
            "client": client[order].astype(np.int32),
            "split": pd.array(np.array(HOLDINGS, dtype=object)[split[order]], dtype="string"),
        }
    )
    table.attrs["notes"] = list(notes)
    return table


def _part_of(
    name: str, table: pd.DataFrame, common: CommonKeys, block: np.ndarray | None
) -> pd.DataFrame:
    """Return the rows of the clients of a part, numbered from 0, with the column `ORIGIN`.

    Blocks are put into an order by the division. The first of them, as many as make the number of
    clients nearest to a third, are for tuning; without blocks each client is one.
    """
    require(common.part in PART_SHARES, name, "part", common.part, ", ".join(PART_SHARES))
    if common.part == ALL:
        return table
    client = table["client"].to_numpy()
    block_of_client = _blocks_of_clients(name, table, block)
    clients, blocks = len(block_of_client), int(block_of_client.max()) + 1
    if blocks < 2:
        problem = f"partition {name}: part is {common.part}, but there is 1 "
        problem += "client" if clients == 1 else f"block of all {clients} clients"
        raise DataError(problem, ALL)
    order = generator(common.division, "division").permutation(blocks)
    sums = np.bincount(block_of_client)[order].cumsum()
    tuning = order[: np.abs(3 * sums[:-1] - clients).argmin() + 1]
    origins = np.flatnonzero(np.isin(block_of_client, tuning) == (common.part == "tuning"))
    table = table[np.isin(client, origins)].reset_index(drop=True)
    origin = table["client"].to_numpy()
    numbers = np.searchsorted(origins, origin).astype(np.int32)
    return table.assign(**{"client": numbers, ORIGIN: origin})


def _blocks_of_clients(name: str, table: pd.DataFrame, block: np.ndarray | None) -> np.ndarray:
    """Return the block of each client, 0..B-1 without gaps, ``[clients]``."""
    client = table["client"].to_numpy()
    if block is None:
        return np.arange(int(client.max()) + 1)
    blocks = pd.Series(block[table["sample"]]).groupby(client)
    counts = blocks.nunique()
    if counts.max() > 1:
        problem = f"partition {name}: client {counts.idxmax()} has samples of {counts.max()} blocks"
        raise DataError(problem, "clients of one block, if they have parts", "the scheme natural")
    return np.unique(blocks.first(), return_inverse=True)[1]


def _with_few_newcomer_samples(name: str, table: pd.DataFrame, common: CommonKeys) -> pd.DataFrame:
    """Return the table with at most `CommonKeys.newcomer_samples` training samples of newcomers."""
    limit = common.newcomer_samples
    if limit is None:
        return table
    require(limit > 0, name, "newcomer_samples", limit, "a whole number >= 1")
    require(UNSEEN in table, name, "newcomer_samples", limit, "null, as no client is unseen")
    client, is_train = table["client"].to_numpy(), (table["split"] == "train").to_numpy(bool)
    is_kept = np.ones(len(table), bool)
    for newcomer in unseen_clients(table):
        rows = np.flatnonzero(is_train & (client == newcomer))
        drawn = generator(common.seed, "newcomer samples", int(newcomer)).permutation(rows)
        is_kept[drawn[limit:]] = False
    return table[is_kept].reset_index(drop=True)


def _with_modality(name: str, table: pd.DataFrame, common: CommonKeys) -> pd.DataFrame:
    """Return the table, with the column `MODALITY` if clients differ in it."""
    if common.modalities is None:
        return table
    clients = int(table["client"].max()) + 1
    fits = sum(common.modalities) == clients and min(common.modalities) > 0
    allowed = f"numbers of clients, 1 or more, that are {clients} together"
    require(fits, name, "modalities", list(common.modalities), allowed)
    of_client = np.repeat(np.arange(len(common.modalities), dtype=np.int32), common.modalities)
    return table.assign(**{MODALITY: of_client[table["client"].to_numpy()]})


def _with_unseen(
    name: str, table: pd.DataFrame, common: CommonKeys, split: np.ndarray
) -> pd.DataFrame:
    """Return the table, with the column `UNSEEN` if any client is held out."""
    client, value = table["client"].to_numpy(), common.unseen
    clients = int(client.max()) + 1
    if isinstance(value, str):
        trained = client[split[table["sample"].to_numpy()] == SPLIT_NUMBERS["train"]]
        unseen_clients = np.setdiff1d(np.arange(clients), trained)
        require(
            len(unseen_clients) > 0,
            name,
            "unseen",
            value,
            "some client without published train samples",
        )
    else:
        count = value if isinstance(value, int) else round(value * clients)
        allowed = f"0, or as many as make 1 to {clients - 1} of the {clients} clients"
        require(0 <= count < clients and (count > 0 or not value), name, "unseen", value, allowed)
        unseen_clients = generator(common.seed, "unseen").choice(clients, count, replace=False)
    return (
        table.assign(**{UNSEEN: np.isin(client, unseen_clients)}) if len(unseen_clients) else table
    )
