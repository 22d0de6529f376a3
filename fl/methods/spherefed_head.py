"""SphereFed's calibration: a stored model's head becomes the best one by least squares.

Dong, Zhang, Li, Kung. SphereFed: Hyperspherical Federated Learning. ECCV 2022. arXiv:2207.09413.

Family: stored model. Exchanged: products of features and labels, once. Local: nothing. Key:
`ridge`.

An entry names the entry from whose model it starts (``start: spherefed``). Every client sends,
once, the sums Z'Z [d, d] and Z'Y [d, C] over its samples, with the features Z divided by their
lengths and the labels' unit vectors Y. The head is (Z'Z + ridge I)^-1 Z'Y of the sums over clients,
which is what a server with all samples would find. The ridge makes the matrix invertible; its size
is a choice made here.
"""

from __future__ import annotations

from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    Method,
    Phase,
    Positive,
    Predictor,
    Sweep,
    Tree,
    Variables,
    all_weights,
    declare,
    select,
    shared_model,
)
from fl.blocks.anchors import class_sums
from fl.blocks.exchange import aggregate_nothing
from fl.blocks.fixed_heads import head_by_name, predict_by_cosines
from fl.blocks.subspaces import feature_moments

TRAINING = {"rounds": 1, "local_epochs": 1}


class Sums(TypedDict):
    """Upload of a client, with its unit features Z [n, d] and labels Y [n, C].

    Attributes:
        products: Z'Z, [d, d].
        sums: Y'Z, [C, d].
    """

    products: Tensor
    sums: Tensor


@declare("global", title="SphereFed, calibrated", starts=("spherefed",), training=TRAINING)
class SphereFedHead:
    """SphereFed's model with a head by ridge regression.

    Attributes:
        ridge: Number that is added to the diagonal of Z'Z.
    """

    ridge: Positive = 1e-3

    def build(self, context: BuildContext) -> Method:
        """Return a phase in which all clients send sums and the server solves for the head."""
        network, classes = context.network, context.classes

        def init(variables: Variables) -> tuple[Variables, Tree]:
            return select(variables, all_weights), {}

        def look(server: Variables, client: Tree, upload: Tree, batch: Batch) -> Sums:
            features = network.eval(server["params"], server["buffers"], batch["x"]).features
            z = F.normalize(features.flatten(1).double(), dim=-1)
            sums, _ = class_sums(z, batch["y"], batch["weight"], classes)
            return {"products": feature_moments(z, batch)["second"], "sums": sums}

        def calibrate(
            server: Variables, clients: Tree, uploads: Sums, n: Tensor
        ) -> tuple[Variables, Tree]:
            weight = self.solution(uploads["products"].sum(0), uploads["sums"].sum(0))
            head = head_by_name(network, server, weight)
            return {**server, "params": {**server["params"], **head}}, clients

        predict = predict_by_cosines(network)
        view = Predictor(shared_model, predict, serves_absent_clients=True, is_per_sample=True)
        phase = Phase((Sweep(look, send),), calibrate, all_clients=True)
        return Method(init, (), aggregate_nothing, {"global": view}, earlier_phases=(phase,))

    def solution(self, products: Tensor, sums: Tensor) -> Tensor:
        """Return the head's weight [C, d] from Z'Z [d, d] and Y'Z [C, d], in double precision."""
        eye = torch.eye(len(products), dtype=products.dtype, device=products.device)
        return torch.linalg.solve(products + self.ridge * eye, sums.T).T


def send(server: Variables, client: Tree, upload: Tree, totals: Sums) -> tuple[Tree, Sums]:
    """Upload the sums."""
    return client, totals
