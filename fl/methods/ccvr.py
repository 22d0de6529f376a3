"""CCVR: the head of a stored model is trained again, on features drawn from what clients sent.

Luo, Chen, Hu, Zhang, Liang, Feng. No Fear of Heterogeneity: Classifier Calibration for Federated
Learning with Non-IID Data. NeurIPS 2021. arXiv:2106.05001.

Family: stored model. Exchanged: class moments of features, once. Local: nothing. Key: `samples`.

An entry names the entry from whose model it starts (``start: fedavg``). Every client sends, once,
the number of its samples of each class, the sum of their features and that of the products of their
features. Mean and covariance of a class, equations 4 and 5, follow from the sums over clients. As
many features are drawn for every class, from a normal distribution. The paper transforms features
behind a ReLU first, which are not normal; here they are taken as they are. A class with fewer than
two samples takes no part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    Count,
    Method,
    Phase,
    Positive,
    ServerWork,
    Share,
    Sweep,
    Tree,
    Variables,
    Weights,
    all_weights,
    classification_loss,
    declare,
    rng,
    select,
    shared_model,
    trees,
)
from fl.blocks.anchors import class_sums
from fl.blocks.exchange import aggregate_nothing
from fl.blocks.linear_layers import head_outputs, head_parameters
from fl.blocks.server_learning import descend

JITTER = 1e-6
"""Added to a covariance, relative to its mean variance, so that it has a root."""


class ClassSums(TypedDict):
    """Upload of a client: sums over its samples of each class, in double precision.

    Attributes:
        sums: Sums of features z, [C, d].
        counts: Numbers of samples, [C].
        products: Sums of zz', [C, d * d].
    """

    sums: Tensor
    counts: Tensor
    products: Tensor


@declare("global", title="CCVR", starts="any", training={"rounds": 1, "local_epochs": 1})
class CCVR:
    """A shared model with a head that is calibrated on virtual features.

    Attributes:
        samples: Number of features drawn for each class (the paper: 100 to 2,000).
        steps: Steps of the head, each on all features.
        head_lr: Learning rate of the head.
        head_momentum: Momentum of the steps.
    """

    samples: Count = 200
    steps: Count = 100
    head_lr: Positive = 0.1
    head_momentum: Share = 0.9

    def build(self, context: BuildContext) -> Method:
        """Return a phase in which all clients send sums and the server trains the head."""
        steps = CCVRSteps(self, context)
        phase = Phase((Sweep(steps.look, send),), steps.calibrate, all_clients=True)
        return Method(
            init,
            (),
            aggregate_nothing,
            {"global": shared_model},
            earlier_phases=(phase,),
            server_work=(ServerWork(lambda round_: self.steps, steps.one_step),),
        )

    def draw_features(self, totals: ClassSums, seed: int) -> tuple[Tensor, Tensor]:
        """Draw features [C, samples, d] in double precision, and weights [C] of the classes."""
        counts = totals["counts"].double()
        n = counts.clamp(min=2)[:, None, None]
        mean = totals["sums"] / n[:, :, 0]
        width = mean.shape[1]
        products = totals["products"].reshape(-1, width, width)
        covariance = (products - n * mean[:, :, None] * mean[:, None]) / (n - 1)
        scale = covariance.diagonal(dim1=1, dim2=2).mean(1).clamp(min=JITTER)
        eye = torch.eye(width, dtype=mean.dtype, device=mean.device)
        values, vectors = torch.linalg.eigh(covariance + JITTER * scale[:, None, None] * eye)
        # The symmetric root: eigenvectors of equal eigenvalues differ from processor to processor.
        roots = (vectors * values.clamp(min=0).sqrt()[:, None]) @ vectors.mT
        generator = torch.Generator().manual_seed(rng.torch_seed(seed, "ccvr"))
        shape = (len(counts), self.samples, width)
        normal = torch.randn(shape, generator=generator, dtype=torch.float64).to(mean.device)
        return mean[:, None] + normal @ roots, (counts >= 2).to(mean.dtype)

    def train_head(
        self, context: BuildContext, params: Weights, features: Tensor, weight: Tensor, steps: int
    ) -> Weights:
        """Train the head of ``params`` on features [C, m, d] with weights [C] of classes."""
        network = context.network
        head = {name: params[name] for name in network.names["params"] if name in network.head}
        rows = features.flatten(0, 1).to(next(iter(head.values())))
        labels = torch.arange(len(weight), device=rows.device).repeat_interleave(features.shape[1])
        batch = {"y": labels, "weight": weight.to(rows)[labels]}

        def loss(head: Weights) -> Tensor:
            outputs = head_outputs(head_parameters(network, head), rows)
            return classification_loss(outputs, batch)

        return {**params, **descend(head, loss, steps, self.head_lr, self.head_momentum)}


@dataclass(frozen=True, eq=False)
class CCVRSteps:
    """Functions of the phase of CCVR.

    Attributes:
        options: The keys of the method.
        context: The context in which the method is built.
    """

    options: CCVR
    context: BuildContext

    def look(self, server: Variables, client: Tree, upload: Tree, batch: Batch) -> ClassSums:
        """Return sums of features z by class, and of z z'."""
        output = self.context.network.eval(server["params"], server["buffers"], batch["x"])
        z = output.features.flatten(1).double()
        products = (z[:, :, None] * z[:, None]).flatten(1)
        sums, counts = class_sums(z, batch["y"], batch["weight"], self.context.classes)
        squares, _ = class_sums(products, batch["y"], batch["weight"], self.context.classes)
        return {"sums": sums, "counts": counts, "products": squares}

    def calibrate(
        self, server: Variables, clients: Tree, uploads: ClassSums, n: Tensor
    ) -> tuple[Variables, Tree]:
        """Train the head on features that are drawn."""
        totals = trees.apply(lambda leaf: leaf.sum(0), uploads)
        features, weight = self.options.draw_features(totals, self.context.seed)
        params = self.options.train_head(
            self.context, server["params"], features, weight, self.options.steps
        )
        return {**server, "params": params}, clients

    def one_step(self, server: Variables) -> Weights:
        """Take a step of the head, for the costs of a run."""
        head = head_parameters(self.context.network, server["params"])["weight"]
        features = head.new_zeros((self.context.classes, self.options.samples, head.shape[1]))
        return self.options.train_head(
            self.context, server["params"], features, head.new_ones(self.context.classes), 1
        )


def init(variables: Variables) -> tuple[Variables, Tree]:
    """Return the stored model."""
    return select(variables, all_weights), {}


def send(
    server: Variables, client: Tree, upload: Tree, totals: ClassSums
) -> tuple[Tree, ClassSums]:
    """Upload the sums."""
    return client, totals
