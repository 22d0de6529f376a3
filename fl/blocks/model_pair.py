"""Two models that train on the same batches: a shared one and one of the client's own."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from fl.api import GLOBAL, PERSONAL, Method, Tree, View, WeightedAverage, single_pass
from fl.blocks.joint_passes import joint_pass

BASE_KEY, PERSONAL_KEY = "base", "own"


def shared_and_personal(base: Method, personal: Method) -> Method:
    """Combine the method ``base`` with ``personal``, a method whose weights all stay local.

    The personal method receives the server's tree of ``base`` as its shared tree; so a term such as
    `fl.blocks.proximal.proximal_term` ties the personal model to the shared one. The training loss
    is the sum of both losses. Each of the two methods has one pass.
    """

    def init(variables: Tree) -> tuple[Tree, Tree]:
        server, first = base.init(variables)
        return server, {BASE_KEY: first, PERSONAL_KEY: personal.init(variables)[1]}

    def aggregate(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
        server, client_states = base.aggregate(server, clients[BASE_KEY], uploads, n)
        return server, {**clients, BASE_KEY: client_states}

    def view_of(view: View, key: str) -> View:
        return lambda server, client: view(server, client and client[key])

    views = {
        GLOBAL: view_of(base.views[GLOBAL], BASE_KEY),
        PERSONAL: view_of(personal.views[PERSONAL], PERSONAL_KEY),
    }
    joint = joint_pass({BASE_KEY: single_pass(base), PERSONAL_KEY: single_pass(personal)})

    def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
        client_state, uploads = joint.end(server, client, work)
        return client_state, uploads[BASE_KEY]

    averaging = isinstance(base.aggregate, WeightedAverage)
    merged = WeightedAverage(aggregate) if averaging else aggregate
    return Method(init, (replace(joint, end=end),), merged, views)
