"""What is said where memory runs out: which settings to lower."""

from __future__ import annotations

REMEDY = (
    "lower batch_size, local_epochs, local_steps or a warm-up's steps, take a smaller model, say "
    "`execution: {backend: loop}`, which has one client's batch in memory at a time, or more memory"
)


def told(error: BaseException) -> str:
    """One line on an error that means that memory ran out."""
    [reason, *_] = str(error).strip().splitlines() or [type(error).__name__]
    return f"memory ran out ({reason}); {REMEDY}"
