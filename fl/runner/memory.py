"""What is said of an error that ends a run; where memory ran out, which settings to lower."""

from __future__ import annotations

from fl.base import error_text
from fl.base.errors import FedloomError
from fl.pytorch.memory import is_out_of_memory

REMEDY = (
    "lower batch_size, local_epochs, local_steps or a warm-up's steps, take a smaller model, say "
    "`execution: {backend: loop}`, which has one client's batch in memory at a time, or more memory"
)


def known(error: Exception) -> bool:
    """Whether an error needs no traceback."""
    return is_out_of_memory(error) or isinstance(error, FedloomError)


def told(error: Exception) -> str:
    """The error in one line."""
    if is_out_of_memory(error):
        [reason, *_] = str(error).strip().splitlines() or [type(error).__name__]
        return f"memory ran out ({reason}); {REMEDY}"
    return str(error) if known(error) else error_text.describe(error)
