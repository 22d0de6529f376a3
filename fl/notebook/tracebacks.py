"""Short tracebacks for errors that a user can correct."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from fl.base.errors import FedloomError

Function = TypeVar("Function", bound=Callable[..., Any])


def short_traceback(function: Function) -> Function:
    """Return the function, whose `FedloomError` has no traceback of the calls inside it."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except FedloomError as error:
            raise error.with_traceback(None) from None

    return wrapper  # type: ignore[return-value]
