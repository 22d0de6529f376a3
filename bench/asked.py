"""What a benchmark is asked for on its command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable


def one_of(names: Iterable[str]) -> Callable[[str], str]:
    """A type for arguments that are among these names: each is checked alone, and a default is not,
    as ``choices`` would check it.
    """
    known = [*names]

    def name(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"{text!r}; allowed: {', '.join(known)}")
        return text

    return name
