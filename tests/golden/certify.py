"""Certifying the code at hand: which roots get another version, as their numbers have changed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from fl.base import identity, registry
from fl.plan import certification
from golden import kept, measure

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"
HEADING = "### Numbers"


def risen(differing: Iterable[str], agreeing: Iterable[str], changed: Iterable[str]) -> set[str]:
    """The roots and settings whose numbers have changed: of any run that has other numbers, one.

    Args:
        differing, agreeing: Worlds.
        changed: Roots whose code has changed.
    """
    agreeing = [name for name in agreeing if kept.nearness(name) <= kept.NEAR]
    blamed = set[str]()
    for shared in (identity.CORE, identity.DATA):
        worlds = {name: of for name in differing for of in [measure.roots(name)] if of[0] == shared}
        same = [of for name in agreeing for of in [measure.roots(name)] if of[0] == shared]
        if worlds and not same and shared in changed:
            blamed.add(shared)
        elif worlds:
            suspects = set().union(*(of for _, of in worlds.values()))
            if shared in changed:
                suspects -= set().union(*(of for _, of in same))
            else:
                suspects &= set(changed)
            blamed |= _blamed(shared, {name: of for name, (_, of) in worlds.items()}, suspects)
    return blamed


def _blamed(shared: str, worlds: Mapping[str, set[str]], suspects: set[str]) -> set[str]:
    """Suspects until every world has one, those of most worlds first; where a world has none, the
    entry that it is about, or what all share.

    Without a change of what all share, suspects are the entries that changed; with one, whatever
    has other numbers in all of its worlds.
    """
    blamed, left = set[str](), dict(worlds)
    while left:
        counts = Counter(root for of in left.values() for root in of & suspects)
        if not counts:
            break
        worst = max(sorted(counts), key=lambda root: (counts[root], not root.startswith("train")))
        blamed.add(worst)
        left = {name: of for name, of in left.items() if worst not in of}
    subjects = {measure.subject(name) for name in left}
    return {shared} if shared in subjects else blamed | subjects


def versions(known: Mapping[str, int], blamed: Iterable[str]) -> dict[str, int]:
    """The versions of all roots, and of settings that have one: of ``blamed`` the next one."""
    kinds = (
        identity.CORE,
        identity.DATA,
        *(identity.entry(kind, "") for kind in registry.FOLDER_BY_KIND),
    )
    settings = {name: known[name] for name in known if not name.startswith(kinds)}
    now = {**settings, **{root: known.get(root, 1) for root in certification.roots()}}
    return now | {name: known.get(name, 1) + 1 for name in blamed}


def line(raised: Mapping[str, int]) -> str:
    """What the CHANGELOG says of other numbers."""
    told = ", ".join(f"{name} (version {raised[name]})" for name in sorted(raised))
    return f"- Other numbers, and so other names of runs: {told}."


def tell(text: str, raised: Mapping[str, int]) -> str:
    """The CHANGELOG with a line under `HEADING` of its top section."""
    top = re.search(r"^## .*$", text, re.MULTILINE)
    assert top is not None
    following = re.search(r"^## ", text[top.end() :], re.MULTILINE)
    end = top.end() + following.start() if following else len(text)
    place = text.find(HEADING, top.end(), end)
    if place >= 0:
        after = place + len(HEADING) + 2
        return f"{text[:after]}{line(raised)}\n{text[after:]}"
    return f"{text[: top.end()]}\n\n{HEADING}\n\n{line(raised)}\n{text[top.end() + 1 :]}"
