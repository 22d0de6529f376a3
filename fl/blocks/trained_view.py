"""Scores of clients by the model with which their latest training ended.

The mean of a round is then only the start of the next round. The released codes of pFedGraph and,
for their baselines, of later papers do this.
"""

from __future__ import annotations

from dataclasses import replace

from fl.api import Method, Tree, all_weights, select, single_pass
from fl.base.schema import PERSONAL

TRAINED = "trained"


def with_trained_view(method: Method) -> Method:
    """Return the method with the clients' latest trained models as its personal models.

    Before the first training they are the initial ones. The method must have one pass, which trains
    all parameters.
    """
    pass_ = single_pass(method)

    def init(variables: Tree) -> tuple[Tree, Tree]:
        server, client = method.init(variables)
        return server, {**client, TRAINED: select(variables, all_weights)}

    def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
        client_state, upload = pass_.end(server, client, work)
        return {
            **client_state,
            TRAINED: {"params": work["params"], "buffers": work["buffers"]},
        }, upload

    def trained_model(server: Tree, client: Tree | None) -> Tree:
        return dict((client or {})[TRAINED])

    views = {**method.views, PERSONAL: trained_model}
    return replace(method, init=init, passes=(replace(pass_, end=end),), views=views)
