"""FedCP: a selector divides each sample's features between a shared head and one of the client's.

Zhang, Hua, Wang, Song, Xue, Ma, Guan. FedCP: Separating Feature Information for Personalized
Federated Learning via Conditional Policy. KDD 2023. arXiv:2307.01217.

Family: personal layers. Exchanged: model, selector. Local: head. Key: `lam`.

While clients train, the shared head and a copy of the arrived body stand still: features are held
near those of the copy. The head that a client sends is the mean of its own and the shared one. The
selector's noise is drawn in training only; in the authors' code (TsingZ0/PFLlib, d832e76) it is
drawn in tests as well, so that predictions are random, and a client that did not take part in the
last round trains with an older shared head and selector.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    SHARED,
    BuildContext,
    Forward,
    Method,
    NonNegative,
    Predictor,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    ReferencePass,
    ReferenceTerm,
    TrainingPass,
    Tree,
    Variables,
    Weights,
    classification_loss,
    declare,
    keyed,
    recipe,
    rng,
    shared_model,
    single_pass,
    trees,
    weights_not_in,
)
from fl.blocks.distances import pairwise_distances
from fl.blocks.linear_layers import (
    feature_width,
    head_outputs,
    head_parameters,
    linear_outputs,
    linear_parameters,
)

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)
"""Bandwidths a of the kernels exp(-|x - y|^2 / (2 a))."""
SELECTOR_STREAM = keyed.stream_number("fedcp selector")
SENT_FEATURES = "features of the sent body"


class FedCPWork(RecipeWork):
    """State of a client's pass.

    Attributes:
        context: Vector that the selector multiplies features by, see `head_context`, [d].
    """

    context: Tensor


class FedCPModel(Variables):
    """Evaluated weights: the shared model, and beside it a head and the selector.

    Attributes:
        personal_params: The client's own head, ``weight`` [classes, d] and ``bias`` [classes].
        shared_params: The selector, see `FedCP.selector`.
    """

    personal_params: Weights
    shared_params: Weights


@declare("personal", title="FedCP")
class FedCP:
    """FedAvg with a head of the client's own and a selector of features.

    Attributes:
        lam: Weight of the discrepancy between features and those of the sent body (the authors'
            script for MNIST: 5).
    """

    lam: NonNegative = 5.0

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg of body and selector; outputs h_k(r z) + h(s z) with r + s = 1."""
        network = context.network
        base = recipe(
            context,
            terms=(ReferenceTerm(self.loss, sent_features),),
            passes=(TrainingPass(weights_not_in(network.head)),),
            personal_params=lambda variables: dict(head_parameters(network, variables["params"])),
            shared_params=lambda variables: self.selector(context, variables),
        )
        local = single_pass(base)

        def begin(server: RecipeServer, client: RecipeClient) -> FedCPWork:
            condition = head_context(client["personal_params"])
            return {**local.begin(server, client), "context": condition}

        def end(
            server: RecipeServer, client: RecipeClient, work: FedCPWork
        ) -> tuple[RecipeClient, RecipeUpload]:
            client, upload = local.end(server, client, work)
            own_head = client["personal_params"]
            params = {
                name: (tensor + own_head[name.rpartition(".")[2]]) / 2
                if name in network.head
                else tensor
                for name, tensor in upload["params"].items()
            }
            return client, {**upload, "params": params}

        def predict(model: FedCPModel, memory: Tree, x: Tensor) -> Tensor:
            output = network.eval(model["params"], model["buffers"], x)
            features, own_head = output.features.flatten(1), model["personal_params"]
            shares = selection(model["shared_params"], features, head_context(own_head), None)
            shared_head = head_parameters(network, model["params"])
            return mixed_outputs(own_head, shared_head, features, shares)

        sampling = replace(local.sampling, needs_keys=True)
        step = replace(local, begin=begin, end=end, sampling=sampling)
        views = {"personal": Predictor(own_model, predict, is_per_sample=True)}
        return replace(base, passes=(step,), views=views)

    def loss(self, forward: Forward) -> Tensor:
        """Return CE(h_k(r z) + h(s z)) + lam MMD^2(z, z of the sent body), a scalar."""
        batch, features = forward.batch, forward.output.features.flatten(1)
        work: FedCPWork = forward.work
        shares = selection(forward.shared_params, features, work["context"], batch["key"])
        shared_head = head_parameters(forward.network, forward.params)
        outputs = mixed_outputs(forward.personal_params, shared_head, features, shares)
        sent = batch["reference"][SENT_FEATURES]
        discrepancy = kernel_discrepancy(features, sent, batch["weight"])
        return classification_loss(outputs, batch) + self.lam * discrepancy

    def selector(self, context: BuildContext, variables: Variables) -> Weights:
        """Return a linear layer from d to 2 d numbers, and its normalisation's scale and shift."""
        leaf = trees.leaves(variables["params"])[0]
        width = feature_width(context.network, variables["params"])
        generator = torch.Generator().manual_seed(rng.torch_seed(context.seed, "fedcp"))
        norm = {"scale": leaf.new_ones(2 * width), "shift": leaf.new_zeros(2 * width)}
        return {**linear_parameters(generator, leaf, width, 2 * width), **norm}


def own_model(server: RecipeServer, client: RecipeClient) -> FedCPModel:
    """Return the shared model and the selector with the client's head, as a view."""
    return {
        **shared_model(server, None),
        "personal_params": client["personal_params"],
        "shared_params": server["shared_params"],
    }


def sent_features(reference_pass: ReferencePass) -> dict[str, Tensor]:
    """Return the features of the body that the server sent, for `FedCP.loss`."""
    return {SENT_FEATURES: reference_pass(SHARED).features.flatten(1)}


def head_context(head: Weights) -> Tensor:
    """Return the sum of a head's rows, divided by its length: the client's context, [d]."""
    return F.normalize(head["weight"].detach().sum(0), dim=0)


def selection(selector: Weights, features: Tensor, context: Tensor, key: Tensor | None) -> Tensor:
    """Return the shares r of features [b, d] that go to the client's own head.

    Args:
        selector: The selector's parameters.
        features: Features z, [b, d].
        context: The client's context, [d].
        key: Keys of the samples, [b], for Gumbel noise; None: no noise.
    """
    hidden = linear_outputs(selector, features * context)
    hidden = F.layer_norm(hidden, hidden.shape[-1:], selector["scale"], selector["shift"])
    first, second = F.relu(hidden).chunk(2, dim=-1)
    logit = first - second
    if key is not None:
        u = keyed.uniform(key, SELECTOR_STREAM, (features.shape[1],)).clamp(1e-12, 1 - 1e-12)
        # The difference of two Gumbel numbers is logistic.
        logit = logit + (u / (1 - u)).log().to(logit.dtype)
    return logit.sigmoid()


def mixed_outputs(
    own_head: Weights, shared_head: Weights, features: Tensor, shares: Tensor
) -> Tensor:
    """Return the outputs of both heads, added: h_k(r z) + h((1 - r) z)."""
    return head_outputs(own_head, shares * features) + head_outputs(
        shared_head, (1 - shares) * features
    )


def kernel_discrepancy(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Return the squared maximum mean discrepancy of weighted rows [b, d], with bias, a scalar."""
    shares = weight / weight.sum().clamp(min=1)
    squares = torch.stack([pairwise_distances(a, b) for a, b in ((x, x), (y, y), (x, y))])
    kernels = torch.stack([squares / (-2 * width) for width in BANDWIDTHS]).exp().sum(0)
    mean_xx, mean_yy, mean_xy = (shares @ kernels * shares).sum(-1).unbind()
    return mean_xx + mean_yy - 2 * mean_xy
