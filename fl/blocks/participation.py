"""Number of rounds in which a client took part, for methods whose first round is another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from fl.api import ClientFacts, Method, Tree, Variables, single_pass, trees

AnyMethod = TypeVar("AnyMethod", bound=Method)


def with_participation(method: AnyMethod) -> AnyMethod:
    """Return a method of one pass whose clients count the rounds in which they took part.

    A client's state has the number under ``rounds``, []; 0 before its first round has ended.
    """
    pass_ = single_pass(method)

    def init(variables: Variables) -> tuple[Tree, Tree]:
        server, client = method.init(variables)
        return server, {**client, "rounds": trees.leaves(variables["params"])[0].new_zeros(())}

    def end(server: Tree, client: ClientFacts, work: Tree) -> tuple[Tree, Any]:
        client_state, upload = pass_.end(server, client, work)
        return {**client_state, "rounds": client["rounds"] + 1}, upload

    return replace(method, init=init, passes=(replace(pass_, end=end),))
