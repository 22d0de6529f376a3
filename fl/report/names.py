"""The names of settings in a report: their titles, without what all of them share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fl.base.schema import SETTING, StudySetting


@dataclass(frozen=True)
class Names:
    """What distinguishes each of several settings, in parts, and what all of them share.

    A single setting shares nothing: its name is complete.
    """

    common: tuple[str, ...]
    distinct: dict[StudySetting, tuple[str, ...]]


def names(settings: Sequence[StudySetting], titles: Mapping[str, Mapping[str, str]]) -> Names:
    """The names of ``settings``.

    Args:
        titles: By column of `SETTING`, the titles of its texts.
    """
    common: list[str] = []
    distinct: list[list[str]] = [[] for _ in settings]
    for i, kind in enumerate(SETTING):
        called = titles.get(kind, {})
        texts = [called.get(setting[i], setting[i]) for setting in settings]
        if len(settings) > 1 and len(set(texts)) == 1:
            common.append(texts[0])
            continue
        if not any(setting[i] in called for setting in settings):
            shared, texts = _apart(texts)
            common += shared
        for words, text in zip(distinct, texts, strict=True):
            words.append(text)
    return Names(tuple(common), {s: tuple(w) for s, w in zip(settings, distinct, strict=True)})


def _apart(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """``f(a=1, b=2)`` and ``f(a=1, b=3)`` as what they share, ``f(a=1)``, and what they do not."""
    if len(set(texts)) < 2:
        return [], list(texts)
    parsed = [arguments(text) for text in texts]
    name, first = parsed[0]
    same = [key for key in first if all(key in keys for _, keys in parsed)]
    rest = [[key for key in keys if key not in same] for _, keys in parsed]
    if any(n != name for n, _ in parsed) or not all(rest):
        return [], list(texts)
    return [f"{name}({', '.join(same)})" if same else name], [", ".join(keys) for keys in rest]


def arguments(text: str) -> tuple[str, list[str]]:
    """A data set, partition or model as its name and keys: ``f(a=1, b=[2, 3])`` has two."""
    name, _, inside = text.partition("(")
    return name, re.findall(r"\w+=.*?(?=, \w+=|$)", inside.removesuffix(")"))


def undrawn(setting: Iterable[str]) -> tuple[str, ...]:
    """A setting without the seeds of its data set and partition: ``synthetic(alpha=0.5)``."""
    texts = []
    for text in setting:
        name, keys = arguments(text)
        keys = [key for key in keys if not key.startswith("seed=")]
        texts.append(f"{name}({', '.join(keys)})" if keys else name)
    return tuple(texts)
