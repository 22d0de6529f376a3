"""Number of rounds in which a client took part, for methods whose first round is another."""

from __future__ import annotations

from dataclasses import replace

from fl.api import Method, Tree, single_pass, trees

ROUNDS = "rounds"
"""Key of the number in a client's tree, a scalar; 0 before its first round has ended."""


def with_participation(method: Method) -> Method:
    """Return a method of one pass whose clients count the rounds in which they took part."""
    pass_ = single_pass(method)

    def init(variables: Tree) -> tuple[Tree, Tree]:
        server, client = method.init(variables)
        return server, {**client, ROUNDS: trees.leaves(variables["params"])[0].new_zeros(())}

    def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
        client_state, upload = pass_.end(server, client, work)
        return {**client_state, ROUNDS: client[ROUNDS] + 1}, upload

    return replace(method, init=init, passes=(replace(pass_, end=end),))
