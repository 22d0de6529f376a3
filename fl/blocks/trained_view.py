"""Scores of clients by the model with which their latest training ended.

The mean of a round is then only the start of the next round. The released codes of pFedGraph and,
for their baselines, of later papers do this.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypedDict, TypeVar

from fl.api import Method, RecipeWork, Tree, Variables, shared_model, single_pass
from fl.base.schema import PERSONAL

AnyMethod = TypeVar("AnyMethod", bound=Method)


class TrainedModel(TypedDict):
    """Further state of a client.

    Attributes:
        trained: Variables of the model with which its latest training ended.
    """

    trained: Variables


def with_trained_view(method: AnyMethod) -> AnyMethod:
    """Return the method with the clients' latest trained models as its personal models.

    Before the first training they are the initial ones. The method must have one pass, which trains
    all parameters.
    """
    pass_ = single_pass(method)

    def init(variables: Variables) -> tuple[Tree, Tree]:
        server, client = method.init(variables)
        return server, {**client, "trained": shared_model(variables, None)}

    def end(server: Tree, client: Tree, work: RecipeWork) -> tuple[Tree, Any]:
        client, upload = pass_.end(server, client, work)
        trained = {"params": work["params"], "buffers": work["buffers"]}
        return {**client, "trained": trained}, upload

    def trained_model(server: object, client: TrainedModel) -> Variables:
        return client["trained"]

    views = {**method.views, PERSONAL: trained_model}
    return replace(method, init=init, passes=(replace(pass_, end=end),), views=views)
