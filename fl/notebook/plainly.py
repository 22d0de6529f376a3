"""Errors that a user can mend, told without the calls of ours that they came through."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from fl.base.errors import FedloomError

Function = TypeVar("Function", bound=Callable[..., Any])


def plainly(function: Function) -> Function:
    """The function, whose errors that a user can mend come without the calls below it."""

    @functools.wraps(function)
    def called(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except FedloomError as error:
            raise error.with_traceback(None) from None

    return called  # type: ignore[return-value]
