"""FedPAC: clients align features by shared prototypes, and each gets its own mixture of all heads.

Xu, Tong, Huang. Personalized Federated Learning with Feature Alignment and Classifier
Collaboration. ICLR 2023. arXiv:2306.11867.

Family: class means. Exchanged: body, head, mean features by class. Local: head. Key: `lam`.

A round trains the head alone, then the body. The mixture of heads minimises an estimate of the
client's test loss, from statistics that are taken with the body that was sent; a client without
samples is in no mixture. A client is scored with the newest shared body and its latest mixture. In
the authors' code (JianXu95/FedPAC, 5770f4ff) features of a class without a prototype are pulled
towards the client's own mean; here they are not pulled. PFLlib mixes heads in place, so that a
client's mixture contains mixtures of others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NotRequired, TypedDict, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    ClientFacts,
    Count,
    Method,
    NonNegative,
    Pass,
    Positive,
    Rate,
    Recipe,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    StepResults,
    Sweep,
    TrainingPass,
    Tree,
    Variables,
    Weights,
    consumes_gradients,
    cross_entropy,
    declare,
    personal_model,
    recipe,
    training_passes,
    trees,
    weights_in,
    weights_not_in,
)
from fl.blocks.anchor_exchange import anchors_after_training
from fl.blocks.anchors import anchor_average, class_sums, means_from_sums, towards_anchors
from fl.blocks.mixing import mix

SMALLEST_WEIGHT = 1e-3
"""Smaller weights of heads count as 0, as in the authors' code."""
TRIES = 3
"""Exchanges of all wrong variables at once that may pass without fewer of them."""
RIDGE = 1e-12
"""Number that is added to the diagonal of a matrix whose largest entry there is 1.

Matrices in single precision get more: as much as rounding can lower their smallest eigenvalue.
"""
TOLERANCE = 1e-9
"""Slopes, of size 1 where all is 0, that still count as 0."""
_LIMIT = 10
"""Exchanges for each variable, after which a matrix without numbers is given up."""
_NONE_YET = 2**31


class HeadStatistics(TypedDict):
    """Statistics of a client's features, from which its mixture of heads follows.

    Attributes:
        variance: V, equation 9, [].
        means: H, equation 10: p_c m_c, where p_c are the client's class shares and m_c the mean
            features of its classes, [C, d].
        samples: Number of its samples, [].
    """

    variance: Tensor
    means: Tensor
    samples: Tensor


class FedPACServer(RecipeServer):
    """State of the server.

    Attributes:
        heads: Mixture of heads of each client, by name in the network, [clients, ...].
    """

    heads: Weights


class FedPACClient(RecipeClient):
    """State of a client.

    Attributes:
        statistics: Statistics of its features, from the begin of a round to its end.
    """

    statistics: NotRequired[HeadStatistics]


class FedPACUpload(RecipeUpload):
    """Upload of a client.

    Attributes:
        head: Its head, by name in the network.
        statistics: Statistics of its features.
    """

    head: Weights
    statistics: HeadStatistics


@declare("personal", title="FedPAC")
class FedPAC:
    """FedAvg of the body with prototypes, and mixtures of heads.

    Attributes:
        lam: Weight of the distance between features and prototypes.
        head_epochs: Epochs of the head, before those of the body.
        head_lr: Learning rate of the head in every round; null: that of the run, with its schedule.
    """

    lam: NonNegative = 1.0
    head_epochs: Count = 1
    head_lr: Positive | None = 0.1

    def build(self, context: BuildContext) -> Method:
        """Return two training passes, prototypes after them, and heads that the server mixes."""
        head = context.network.head
        base = recipe(
            context,
            terms=(cross_entropy, towards_anchors(self.lam)),
            local=weights_in(head),
            passes=(
                TrainingPass(weights_in(head), self.head_epochs),
                TrainingPass(weights_not_in(head)),
            ),
        )
        first, second = training_passes(base)
        steps = FedPACSteps(base, context, first, second, self.head_lr)
        passes: tuple[Pass | Sweep, ...] = (
            Sweep(steps.look, keep_statistics),
            replace(first, begin=steps.begin, update=steps.update),
            replace(second, end=steps.end),
        )
        method = replace(
            base, init=steps.init, passes=passes, aggregate=steps.aggregate, payload=mixed_head
        )
        aligned = anchors_after_training(method, context, anchor_average("weighted"), first=2)
        inner_send = aligned.send or dict

        def send(server: FedPACServer) -> Tree:
            return {key: leaf for key, leaf in inner_send(server).items() if key != "heads"}

        return replace(aligned, send=send, views={"personal": own_model})


@dataclass(frozen=True, eq=False)
class FedPACSteps:
    """Functions of the passes of FedPAC.

    Attributes:
        base: FedAvg of the body, with a pass for the head and one for the body.
        context: The context in which the method is built.
        first: The pass that trains the head.
        second: The pass that trains the body.
        head_lr: Learning rate of the head; None: that of the run.
    """

    base: Recipe
    context: BuildContext
    first: Pass[RecipeWork, RecipeUpload]
    second: Pass[RecipeWork, RecipeUpload]
    head_lr: float | None

    def init(self, variables: Variables) -> tuple[FedPACServer, RecipeClient]:
        """Return FedAvg's states, and the first head for every client."""
        server, client = self.base.init(variables)
        return {**server, "heads": trees.repeat(client["params"], self.context.clients)}, client

    def look(self, server: FedPACServer, client: FedPACClient, upload: Tree, batch: Batch) -> Tree:
        """Return sums of features by class, and of their squares, with the body that was sent."""
        variables = personal_model(server, with_mixed_head(client))
        output = self.context.network.eval(variables["params"], variables["buffers"], batch["x"])
        features, y, weight = output.features.flatten(1), batch["y"], batch["weight"]
        sums, counts = class_sums(features, y, weight, self.context.classes)
        squares = features.square().sum(1, keepdim=True)
        square_sums, _ = class_sums(squares, y, weight, self.context.classes)
        return {"sums": sums, "counts": counts, "squares": square_sums[:, 0]}

    def begin(self, server: FedPACServer, client: FedPACClient) -> RecipeWork:
        """Begin training of the head at the client's mixture."""
        return self.first.begin(server, with_mixed_head(client))

    @consumes_gradients
    def update(
        self, server: FedPACServer, work: RecipeWork, grads: Tree, aux: StepResults, lr: Rate
    ) -> RecipeWork:
        """Take a step of the head at its own learning rate."""
        rate = lr if self.head_lr is None else self.head_lr + 0 * lr
        return self.first.update(server, work, grads, aux, rate)

    def end(
        self, server: FedPACServer, client: FedPACClient, work: RecipeWork
    ) -> tuple[Tree, FedPACUpload]:
        """Upload the head and the statistics beside the body."""
        client, upload = self.second.end(server, client, work)
        state = {key: leaf for key, leaf in client.items() if key != "statistics"}
        sent = {**upload, "head": client["params"], "statistics": client["statistics"]}
        return state, cast(FedPACUpload, sent)

    def aggregate(
        self, server: FedPACServer, clients: FedPACClient, uploads: FedPACUpload, n: Tensor
    ) -> tuple[FedPACServer, FedPACClient]:
        """Average the bodies, and mix the heads of the participants."""
        models = {"params": uploads["params"], "buffers": uploads["buffers"]}
        mean, clients = self.base.aggregate(server, clients, models, n)
        mixtures = mix(head_weights(uploads["statistics"]), uploads["head"])
        heads = trees.replace_clients(server["heads"], clients["id"], mixtures)
        return {**mean, "heads": heads}, clients


def mixed_head(server: FedPACServer, client: ClientFacts) -> Weights:
    """Return a client's mixture of heads, which the server sends to it."""
    number = client["id"].reshape(1)
    return trees.apply(lambda leaf: leaf.index_select(0, number)[0], server["heads"])


def with_mixed_head(client: FedPACClient) -> FedPACClient:
    """Return the client with the mixture that it got in place of its head."""
    return {**client, "params": client["payload"]}


def own_model(server: FedPACServer, client: FedPACClient) -> Variables:
    """Return the server's body with the client's mixture, as a view."""
    own: FedPACClient = {**client, "params": mixed_head(server, client)}
    return personal_model(server, own)


def keep_statistics(
    server: FedPACServer, client: FedPACClient, upload: Tree, totals: Tree
) -> tuple[FedPACClient, Tree]:
    """Keep the statistics for the end of the round."""
    return {**client, "statistics": head_statistics(totals)}, {}


def head_statistics(totals: Tree) -> HeadStatistics:
    """Return a client's V and H, equations 9 and 10, from sums over its samples.

    V = (1/n) sum_c (p_c E_c ||z||^2 - p_c^2 ||m_c||^2), a scalar; H_c = p_c m_c, [C, d]. p_c are
    the client's class shares and m_c the mean features of its classes.
    """
    counts, n = totals["counts"], totals["counts"].sum().clamp(min=1)
    class_means, _ = means_from_sums(totals["sums"], counts)
    shares = (counts / n)[:, None]
    second_moments = totals["squares"].sum() / n
    variance = (second_moments - (shares * class_means).square().sum()) / n
    return {"variance": variance, "means": shares * class_means, "samples": counts.sum()}


def head_weights(statistics: HeadStatistics) -> Tensor:
    """Return the weights of all heads in each client's head, [K, K], equation 11.

    Row i minimises a' (diag V + D_i) a over the simplex, D_i[j, l] = sum_c <H_ic - H_jc, H_ic -
    H_lc>.
    """
    class_means = statistics["means"].flatten(1).double()
    gram = class_means @ class_means.T
    # <H_i - H_j, H_i - H_l>, without a tensor of all differences.
    distances = gram.diagonal()[:, None, None] - gram[:, :, None] - gram[:, None] + gram[None]
    matrices = distances + torch.diag(statistics["variance"].double())
    weights = minimise_on_simplex(matrices, statistics["samples"] > 0)
    weights = torch.where(weights > SMALLEST_WEIGHT, weights, 0)
    return F.normalize(weights, p=1, dim=-1)


def minimise_on_simplex(matrix: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return the a >= 0 with sum(a) = 1 that minimises a' P a, for each matrix P: [..., K].

    The minimiser is x / sum(x), where x >= 0 minimises x' P x / 2 - sum(x): both have the same
    optimality conditions up to a factor. The latter is solved exactly by block principal pivoting
    (Kim, Park. Fast Nonnegative Matrix Factorization: An Active-Set-Like Method and Comparisons.
    SIAM Journal on Scientific Computing 2011): variables are free or 0; those with a wrong sign
    change sides, all at once, or the last of them alone when that does not help. The computation is
    in double precision: in single precision, signs are lost where a matrix is nearly singular.

    Args:
        matrix: Positive semidefinite matrices P, [..., K, K], each up to rounding.
        allowed: Which weights may be positive, bool [K]; None, or none of them: all.
    """
    if allowed is None or not allowed.any():
        allowed = torch.ones_like(matrix[..., 0, :], dtype=torch.bool)
    dtype, matrix = matrix.dtype, matrix.double()
    ridge = max(RIDGE, matrix.shape[-1] * torch.finfo(dtype).eps)
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    largest = matrix.diagonal(dim1=-2, dim2=-1).amax(-1)[..., None, None]
    matrix = matrix / torch.where(largest > 0, largest, 1) + ridge * identity
    number = torch.arange(matrix.shape[-1], device=matrix.device)
    is_free = allowed.expand(matrix.shape[:-1]).clone()
    fewest = torch.full_like(is_free[..., :1], _NONE_YET, dtype=torch.int64)
    tries = torch.full_like(fewest, TRIES)
    for _ in range(_LIMIT * matrix.shape[-1]):
        x = _solution(matrix, identity, is_free)
        slope = (matrix @ x[..., None])[..., 0] - 1
        is_wrong = torch.where(is_free, x < 0, allowed & (slope < -TOLERANCE))
        count = is_wrong.sum(-1, keepdim=True)
        if not count.any():
            break
        is_better = count < fewest
        tries = torch.where(is_better, TRIES, tries - 1)
        fewest = torch.where(is_better, count, fewest)
        last = torch.where(is_wrong, number, -1).amax(-1, keepdim=True)
        is_free = is_free ^ torch.where(tries >= 0, is_wrong, is_wrong & (number == last))
    x = x.clamp(min=0)
    return (x / x.sum(-1, keepdim=True)).to(dtype)


def _solution(matrix: Tensor, identity: Tensor, is_free: Tensor) -> Tensor:
    """Return the x with (P x)_i = 1 for the free variables i, and 0 for the others."""
    is_pair = is_free[..., :, None] & is_free[..., None, :]
    x: Tensor = torch.linalg.solve_ex(
        torch.where(is_pair, matrix, identity), is_free.to(matrix.dtype)[..., None]
    ).result[..., 0]
    return torch.where(is_free, x, 0)
