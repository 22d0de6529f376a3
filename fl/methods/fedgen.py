"""FedGen: the server learns to generate features by class, on which clients train their heads too.

Zhu, Hong, Zhou. Data-Free Knowledge Distillation for Heterogeneous Federated Learning. ICML 2021.
arXiv:2105.10056.

Family: distillation. Exchanged: model; down, a generator of features. Local: nothing. Key: `alpha`.

After each round, the server trains a generator of features from a label and Gaussian noise, by
Adam, so that the mean outputs of the round's heads give the label (equation 4), and features differ
where noise differs. From the second round on, clients add the cross-entropy of their head on
generated features to their loss (equation 5), one for each sample of a batch. Labels follow the
class counts of the round's clients. In the authors' code (zhuangdizhu/FedGen, dd5807c), clients'
cross-entropies are averaged by their shares of the class (``teachers: losses``); alpha is 10 and
falls over rounds; outputs for samples are also held to those for features of their label; noise is
uniform; the generator has batch normalisation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    BuildContext,
    Count,
    Forward,
    Method,
    NonNegative,
    Positive,
    Recipe,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    ServerWork,
    Tree,
    Variables,
    cross_entropy,
    declare,
    keyed,
    recipe,
    rng,
    single_pass,
    trees,
    weighted_mean,
)
from fl.blocks.feature_generator import (
    NOISE,
    Ensemble,
    diversity_loss,
    ensemble_loss,
    generated,
    initial_generator,
    train_generator,
)
from fl.blocks.keyed_random import keyed_normal
from fl.blocks.linear_layers import feature_width, head_outputs, head_parameters

STREAM = keyed.stream_number("generated features")


class FedGenServer(RecipeServer):
    """State of the server.

    Attributes:
        generator: State of the generator, see `fl.blocks.feature_generator`; clients get its
            ``params`` alone.
        label_shares: Share of each class in the samples of the last round's clients, [C]; zeros
            before round 1.
        round: Number of finished rounds, int64 []; it stays on the server.
    """

    generator: Tree
    label_shares: Tensor
    round: Tensor


@declare("global", title="FedGen")
class FedGen:
    """FedAvg with features from a generator.

    Attributes:
        alpha: Weight of the cross-entropy on generated features; 0 is FedAvg.
        teachers: Loss of the generator: cross-entropy of the mean `logits` of clients, or mean of
            their `losses` by shares of the class.
        diversity: Weight of the diversity of features.
        server_steps: Steps of the generator in a round.
        server_batch: Features in a step of the generator.
        server_lr: Learning rate of the generator.
    """

    alpha: NonNegative = 1.0
    teachers: Ensemble = "logits"
    diversity: NonNegative = 1.0
    server_steps: Count = 50
    server_batch: Count = 128
    server_lr: Positive = 3e-4

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg with one more term, and a server that trains the generator."""
        base = recipe(context, terms=(cross_entropy, self.loss_on_generated))
        local = single_pass(base)
        steps = FedGenSteps(self, base, context)
        return replace(
            base,
            init=steps.init,
            passes=(replace(local, sampling=replace(local.sampling, needs_keys=True)),),
            aggregate=steps.aggregate,
            send=send,
            server_work=(ServerWork(lambda round_: self.server_steps, steps.one_step),),
        )

    def loss_on_generated(self, forward: Forward) -> Tensor:
        """Alpha CE(h(G(y, e)), y) for labels y and noise e; 0 until the generator has learned."""
        server: FedGenServer = forward.server
        batch, shares = forward.batch, server["label_shares"]
        keys = keyed.derive_keys(batch["key"], STREAM)
        thresholds = shares.cumsum(0)[:-1]
        labels = (keyed.uniform(keys, 0)[:, None].to(thresholds) >= thresholds).sum(-1)
        noise = keyed_normal(keys, 1, (NOISE,)).to(shares.dtype)
        features = generated(server["generator"], noise, labels)
        outputs = head_outputs(head_parameters(forward.network, forward.params), features)
        losses = F.cross_entropy(outputs, labels, reduction="none")
        return self.alpha * weighted_mean(losses, batch) * (shares.sum() > 0)


@dataclass(frozen=True, eq=False)
class FedGenSteps:
    """Functions of the server of FedGen.

    Attributes:
        options: The keys of the method.
        base: FedAvg with the term on generated features.
        context: The context in which the method is built.
    """

    options: FedGen
    base: Recipe
    context: BuildContext

    def init(self, variables: Variables) -> tuple[FedGenServer, RecipeClient]:
        """Return FedAvg's states and a first generator."""
        server, client = self.base.init(variables)
        leaf = trees.leaves(variables["params"])[0]
        seed = rng.torch_seed(self.context.seed, "fedgen")
        width = feature_width(self.context.network, variables["params"])
        generator = initial_generator(seed, leaf, self.context.classes, width)
        number = torch.zeros((), dtype=torch.int64, device=leaf.device)
        return {
            **server,
            "generator": generator,
            "label_shares": leaf.new_zeros(self.context.classes),
            "round": number,
        }, client

    def trained_generator(
        self, server: FedGenServer, heads: Tree, counts: Tensor, steps: int
    ) -> Tree:
        """Return the generator after steps in which its features come to suit all heads."""

        def loss(params: Tree, labels: Tensor, noise: Tensor) -> Tensor:
            features = generated(params, noise, labels)
            value = ensemble_loss(heads, counts, features, labels, self.options.teachers)
            return value + self.options.diversity * diversity_loss(noise, features)

        seed = rng.torch_seed(self.context.seed, "fedgen", int(server["round"]) + 1)
        return train_generator(
            server["generator"],
            loss,
            counts.sum(0),
            steps,
            self.options.server_batch,
            self.options.server_lr,
            seed,
        )

    def aggregate(
        self, server: FedGenServer, clients: RecipeClient, uploads: RecipeUpload, n: Tensor
    ) -> tuple[FedGenServer, RecipeClient]:
        """Average the models, and train the generator on all heads."""
        counts = clients["counts"]
        models = [trees.take(uploads["params"], row) for row in range(len(n))]
        heads = trees.stack([head_parameters(self.context.network, model) for model in models])
        generator = self.trained_generator(server, heads, counts, self.options.server_steps)
        shares = (counts.sum(0) / counts.sum()).to(server["label_shares"])
        return {
            **server,
            **trees.mean(uploads, n),
            "generator": generator,
            "label_shares": shares,
            "round": server["round"] + 1,
        }, clients

    def one_step(self, server: FedGenServer) -> Tree:
        """Take a step of the generator, for the costs of a run."""
        clients = self.context.training.participants(self.context.participants)
        heads = trees.repeat(head_parameters(self.context.network, server["params"]), clients)
        return self.trained_generator(server, heads, torch.ones(clients, self.context.classes), 1)


def send(server: FedGenServer) -> Tree:
    """Send the model and the generator's parameters."""
    download = {key: leaf for key, leaf in server.items() if key != "round"}
    return {**download, "generator": server["generator"]["params"]}
