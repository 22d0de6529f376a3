"""What makes a partition scheme of a function that says who holds what.

A scheme's own function deals samples to clients. `scheme` adds what is the same for all of them:
the division of each client's samples into train, val and test, published splits, and clients that
are held out of training.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd

from fl.base.errors import DataError
from fl.base.fields import Bound, Count, Index, Seed, Share
from fl.base.rng import generator
from fl.base.schema import HOLDINGS, UNSEEN
from fl.data.inputs import MODALITY
from fl.data.splitting import (
    MIN_CLIENT_SAMPLES,
    NOBODY,
    SPLIT_NUMBERS,
    check_shares,
    deal_in_proportion,
    require,
    split_clients,
)

PUBLISHED_SPLIT = "published"
Published = Literal["published"]


@dataclass(frozen=True)
class Assignment:
    """Who holds what.

    Attributes:
        client: Of each sample, 0..K-1 or `fl.data.splitting.NOBODY`, ``[samples]``.
        notes: What had to be done beyond the scheme's definition.
    """

    client: np.ndarray
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class CommonKeys:
    """The keys that every scheme takes beside its own.

    seed: of the partition. val, test: shares of each client's own samples, or ``published``: the
    samples of the data set's published val or test split, and no others, dealt in the proportions
    in which the rest is held, see `fl.data.splitting.deal_in_proportion`. server: share of every
    client's samples that the server gets in its place. unseen: clients held out of
    training, drawn by the seed, as a share of them or as their number; ``published``: those that
    hold no sample of the published train split. modalities: of a data set with several kinds of
    input, how many clients have each, in the data set's order: the first ones the first kind, and
    so on; one number more is of clients that have all kinds.
    """

    seed: Seed = 0
    val: Share | Published = 0.1
    test: Share | Published = 0.2
    server: Share = 0.0
    unseen: Annotated[float, Bound(low=0, below=1)] | Count | Published = 0.0
    modalities: tuple[Index, ...] | None = None


COMMON_HINTS = typing.get_type_hints(CommonKeys, include_extras=True)


def scheme(assign: Callable[..., Assignment]) -> Callable[..., pd.DataFrame]:
    """The partition scheme ``(labels, ..., published=None, *, own keys, common keys) -> table``.

    Its result is the partition table (sample, client, split) in its canonical order. It has a
    column ``domain`` (int32) if ``assign`` takes domains, and a column ``unseen`` (bool) if a
    client is unseen.

    Args:
        assign: ``(labels, [domains or groups,] *, own keys[, seed])``: it sees the samples to deal
            and says who holds them. The scheme's ``published`` ``[samples]`` is the data set's
            array ``split``, or None.

    Raises:
        DataError: By the scheme, for keys that do not fit the data, and what ``assign`` raises.
    """
    name = assign.__name__.replace("_", "-")
    given = inspect.signature(assign).parameters.values()
    arrays = [p for p in given if p.kind is p.POSITIONAL_OR_KEYWORD]
    arrays.append(Parameter("published", Parameter.POSITIONAL_OR_KEYWORD, default=None))
    keys = [p for p in given if p.kind is p.KEYWORD_ONLY and p.name not in COMMON_HINTS]
    keys += [
        Parameter(
            f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=COMMON_HINTS[f.name]
        )
        for f in dataclasses.fields(CommonKeys)
    ]
    signature = inspect.Signature([*arrays, *keys], return_annotation=pd.DataFrame)
    wanted = {p.name for p in given}

    @functools.wraps(assign)
    def partition(*args: Any, **kwargs: Any) -> pd.DataFrame:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        given_arrays = {p.name: values.pop(p.name) for p in arrays}
        common = CommonKeys(**{key: values[key] for key in COMMON_HINTS})
        keys_of_scheme = {key: value for key, value in values.items() if key in wanted}
        return _make_table(
            name, functools.partial(assign, **keys_of_scheme), common, **given_arrays
        )

    vars(partition)["__signature__"] = signature
    partition.__annotations__ = {**assign.__annotations__, **COMMON_HINTS, "return": pd.DataFrame}
    return partition


def _make_table(
    name: str,
    assign: Callable[..., Assignment],
    common: CommonKeys,
    labels: np.ndarray,
    published: np.ndarray | None,
    **kinds: np.ndarray | None,
) -> pd.DataFrame:
    """The table; ``kinds`` are the domains or groups, if ``assign`` takes them."""
    followed = [key for key in ("val", "test") if getattr(common, key) == PUBLISHED_SPLIT]
    val, test = (0.0 if key in followed else getattr(common, key) for key in ("val", "test"))
    labels = check_shares(name, labels, val, None if "test" in followed else test, common.server)
    kind = next((_checked_array(name, *item, labels) for item in kinds.items()), None)
    split = _published_split(name, common, published, labels)
    pool = np.flatnonzero(~np.isin(split, [SPLIT_NUMBERS[key] for key in followed]))
    few = f"at least {MIN_CLIENT_SAMPLES} that are not published as {' or '.join(followed)}"
    require(len(pool) >= MIN_CLIENT_SAMPLES, name, "the number of samples", len(pool), few)
    holders = assign(labels[pool], *(None if kind is None else kind[pool] for _ in kinds))

    client = np.full(len(labels), NOBODY, np.int32)
    client[pool] = holders.client
    shares = {"val": val, "test": test, "server": common.server}
    parts = [split_clients(name, client, labels, seed=common.seed, **shares)]
    notes = list(holders.notes)
    for key in followed:
        members = np.flatnonzero(split == SPLIT_NUMBERS[key])
        owner, said = deal_in_proportion(
            name, client, _strata(labels, kind), pool, members, common.seed
        )
        given = owner != NOBODY
        parts.append((members[given], owner[given], np.full(given.sum(), HOLDINGS.index(key))))
        notes += said
    sample, owner, split_of = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    made = build_table(sample, owner, split_of, notes)
    if "domains" in kinds and kind is not None:
        made["domain"] = kind[made["sample"]].astype(np.int32)
    return _with_modality(name, _with_unseen(name, made, common, split), common)


def _checked_array(
    name: str, key: str, given: np.ndarray | None, labels: np.ndarray
) -> np.ndarray | None:
    """``given`` as an array of one number per sample, if it is given."""
    if given is None:
        return None
    given = np.asarray(given)
    same = given.shape == labels.shape
    require(same, name, key, list(given.shape), f"the shape {list(labels.shape)}")
    return given


def _published_split(
    name: str, common: CommonKeys, published: np.ndarray | None, labels: np.ndarray
) -> np.ndarray:
    """The published split of every sample; all train where no key asks for it."""
    asking = [key for key in ("val", "test", "unseen") if getattr(common, key) == PUBLISHED_SPLIT]
    if not asking:
        return np.full(len(labels), SPLIT_NUMBERS["train"])
    split = _checked_array(name, "published", published, labels)
    for key in asking:
        wanted = SPLIT_NUMBERS["train" if key == "unseen" else key]
        if split is None or not (split == wanted).any():
            raise DataError(
                f"partition {name}: {key} is published, but the data set has no such split of its"
                " own. Allowed: a data set that has, or a number"
            )
    return typing.cast(np.ndarray, split)


def _strata(labels: np.ndarray, kind: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of each sample's class within its kind, and of its kind."""
    code = np.unique(labels, return_inverse=True)[1]
    kinds = np.unique(np.zeros_like(code) if kind is None else kind, return_inverse=True)[1]
    return kinds * (code.max() + 1) + code, kinds


def build_table(
    sample: np.ndarray, client: np.ndarray, split: np.ndarray, notes: Sequence[str] = ()
) -> pd.DataFrame:
    """The table, sorted by client, split and sample; ``split`` holds indices of `HOLDINGS`."""
    order = np.lexsort((sample, split, client))
    made = pd.DataFrame(
        {
            "sample": sample[order].astype(np.int64),
            "client": client[order].astype(np.int32),
            "split": pd.array(np.array(HOLDINGS, dtype=object)[split[order]], dtype="string"),
        }
    )
    made.attrs["notes"] = list(notes)
    return made


def _with_modality(name: str, table: pd.DataFrame, common: CommonKeys) -> pd.DataFrame:
    """The table, with the column `MODALITY` if clients differ in it."""
    if common.modalities is None:
        return table
    clients = int(table["client"].max()) + 1
    same = sum(common.modalities) == clients and min(common.modalities) > 0
    allowed = f"numbers of clients, 1 or more, that are {clients} together"
    require(same, name, "modalities", list(common.modalities), allowed)
    of_client = np.repeat(np.arange(len(common.modalities), dtype=np.int32), common.modalities)
    return table.assign(**{MODALITY: of_client[table["client"].to_numpy()]})


def _with_unseen(
    name: str, table: pd.DataFrame, common: CommonKeys, split: np.ndarray
) -> pd.DataFrame:
    """The table, with the column `UNSEEN` if any client is held out."""
    client, given = table["client"].to_numpy(), common.unseen
    clients = int(client.max()) + 1
    if isinstance(given, str):
        trained = client[split[table["sample"].to_numpy()] == SPLIT_NUMBERS["train"]]
        away = np.setdiff1d(np.arange(clients), trained)
        require(len(away) > 0, name, "unseen", given, "some client without published train samples")
    else:
        count = given if isinstance(given, int) else round(given * clients)
        some = f"0, or as many as make 1 to {clients - 1} of the {clients} clients"
        require(0 <= count < clients and (count > 0 or not given), name, "unseen", given, some)
        away = generator(common.seed, "unseen").choice(clients, count, replace=False)
    return table.assign(**{UNSEEN: np.isin(client, away)}) if len(away) else table
