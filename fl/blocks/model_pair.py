"""Two models that train on the same batches: a shared one and one of the client's own.

Ditto alone uses it here; it is a block because authors of methods do (docs/guide/tutorial.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypedDict

from torch import Tensor

from fl.api import (
    GLOBAL,
    PERSONAL,
    ClientFacts,
    Method,
    Recipe,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    Tree,
    Variables,
    View,
    WeightedAverage,
    Weights,
    single_pass,
)
from fl.blocks.joint_passes import joint_pass


class PairClient(ClientFacts):
    """State of a client with two models.

    Attributes:
        base: Its state in the method of the shared model.
        own: Its state in the method of its own model.
    """

    base: RecipeClient
    own: RecipeClient


class PairWork(TypedDict):
    """State of a pass that trains both models.

    Attributes:
        params: Parameters that it trains, by name, of ``base`` and of ``own``.
        base: All other entries of the shared model's pass, see `RecipeWork`.
        own: The same of the client's own model.
    """

    params: Mapping[str, Weights]
    base: Tree
    own: Tree


def shared_and_personal(base: Recipe, personal: Recipe) -> Method:
    """Combine the method ``base`` with ``personal``, a method whose weights all stay local.

    The personal method receives the server's state of ``base`` as its server; so a term such as
    `fl.blocks.proximal.ProximalTerm` ties the personal model to the shared one. The training loss
    is the sum of both losses. Each of the two methods has one pass.
    """

    def init(variables: Variables) -> tuple[RecipeServer, PairClient]:
        server, client = base.init(variables)
        return server, {"base": client, "own": personal.init(variables)[1]}

    def aggregate(
        server: RecipeServer, clients: PairClient, uploads: RecipeUpload, n: Tensor
    ) -> tuple[RecipeServer, PairClient]:
        server, base_clients = base.aggregate(server, clients["base"], uploads, n)
        return server, {**clients, "base": base_clients}

    def base_view(server: RecipeServer, client: PairClient | None) -> Variables:
        return base.views[GLOBAL](server, client and client["base"])

    def personal_view(server: RecipeServer, client: PairClient) -> Variables:
        return personal.views[PERSONAL](server, client["own"])

    joint = joint_pass({"base": single_pass(base), "own": single_pass(personal)})

    def end(
        server: RecipeServer, client: PairClient, work: PairWork
    ) -> tuple[PairClient, RecipeUpload]:
        client, uploads = joint.end(server, client, work)
        return client, uploads["base"]

    averaging = isinstance(base.aggregate, WeightedAverage)
    merged = WeightedAverage(aggregate) if averaging else aggregate
    views: dict[str, View] = {GLOBAL: base_view, PERSONAL: personal_view}
    return Method(init, (replace(joint, end=end),), merged, views)
