"""FedL2P: nets are learnt federatedly that tell each client how to fine-tune a stored model.

Lee, Kim, Li, Qiu, Hospedales, Huszár, Lane. FedL2P: Federated Learning to Personalize. NeurIPS
2023. arXiv:2310.02420.

Family: stored model. Exchanged: nets that set rates; down, the stored model. Local: nothing. Key:
`lr`.

An entry names the entry whose model is to be personalised (``start: fedavg``). Another entry then
personalises that model by the nets that were best: ``{method: finetune-l2p, start: fedl2p}``. The
training keys say how clients fine-tune on the way: ``local_epochs``, ``batch_size``, and ``lr``, at
which the rates begin. Steps are plain ones, without momentum and weight decay.

As in the released code, where the paper leaves it open: the direct term reaches BNNet alone; the
hypergradient is taken in evaluation mode, its training loss on a batch of its own; p is not
multiplied by psi; running statistics begin anew; clients weigh by their validation samples; and the
nets are kept of the round in which the mean validation loss of its clients was lowest.

Other than there, statistics are of samples that are not augmented; ``iterations`` is the same for
every client (there, three epochs of its validation batches); nothing is clipped where a loss
exceeds 100; and rounds do not end early. A round's training loss is the validation loss of the last
iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fl.api import (
    Bound,
    BuildContext,
    Count,
    Method,
    Pass,
    Positive,
    Share,
    Sweep,
    Tree,
    Variables,
    Weights,
    all_weights,
    declare,
    select,
    trees,
)
from fl.blocks.l2p_network import INITIAL_BETA, L2PNetwork
from fl.blocks.l2p_training import (
    FedL2PServer,
    FedL2PUpload,
    MetaTraining,
    MetaTrainingOptions,
    MetaWork,
    average_and_keep_best,
    client_after_iteration,
    validation_count_sweep,
)
from fl.blocks.l2p_tuning import (
    IteratingClient,
    check_batch_norm,
    check_no_added_loss,
    client_hyperparameters,
    server_model,
    statistics_sweep,
)


class FedL2PClient(IteratingClient):
    """State of a client.

    Attributes:
        held: Its number of validation samples, [].
    """

    held: Tensor


class ScoredModel(Variables):
    """The stored model, which is scored, and the best nets.

    Attributes:
        meta: Weights of the meta-nets.
        fixed: See `L2PNetwork.fixed_values`.
    """

    meta: Tree
    fixed: Weights


@declare(
    "global",
    starts="any",
    needs=("val",),
    training={"rounds": 100, "local_epochs": 15, "lr": 0.001, "evaluate_every": 100},
)
class FedL2P:
    """Networks that learn how each client fine-tunes a stored model.

    Attributes:
        learns: Trained networks: `both`, BNNet only (`bn`) or LRNet only (`lr`).
        beta: Share of a client's own statistics if BNNet does not determine it; 1 is BN C, 0 is BN
            G.
        told: Inputs of the networks: a client's `statistics`, or `nothing`, so that shares and
            rates are learnt but are equal for all clients (worst case of appendix B).
        bn_output: Function that limits BNNet's outputs: `clamp` or `sigmoid`.
        bn_begin: Approximate first value of BNNet's outputs (appendix E: .2, .5 and .8 give similar
            results).
        gradient: Hypergradient: `implicit`, or `fomaml` for FOMAML+.
        psi: Step size psi of the Neumann series.
        neumann: Number of terms Q of the Neumann series.
        bn_lr: Learning rate of BNNet.
        lr_lr: Learning rate of LRNet.
        tilde_lr: Learning rate of the multipliers of learning rates.
        clip: Largest absolute value of an element of a hypergradient.
        iterations: Number K of steps of the networks in a client's round.
    """

    learns: Literal["both", "bn", "lr"] = "both"
    beta: Share = 1.0
    told: Literal["statistics", "nothing"] = "statistics"
    bn_output: Literal["clamp", "sigmoid"] = "clamp"
    bn_begin: Annotated[float, Bound(above=0, below=1)] = INITIAL_BETA
    gradient: Literal["implicit", "fomaml"] = "implicit"
    psi: Annotated[float, Bound(above=0, high=1)] = 0.1
    neumann: Annotated[int, Bound(low=0, high=1000)] = 3
    bn_lr: Positive = 1e-3
    lr_lr: Positive = 1e-3
    tilde_lr: Positive = 1e-4
    clip: Positive = 1.0
    iterations: Count = 3

    def build(self, context: BuildContext) -> Method:
        """A sweep for statistics, then the iterations, on a model that stays as it is."""
        check_no_added_loss(context, "fedl2p")
        l2p_network = L2PNetwork(context)
        learns = {"both": ("bn", "lr")}.get(self.learns, (self.learns,))
        if "bn" in learns:
            check_batch_norm(l2p_network, "fedl2p")

        rates = {"bn": self.bn_lr, "lr": self.lr_lr, "tilde": self.tilde_lr}
        options = MetaTrainingOptions(self.gradient, self.psi, self.neumann, rates, self.clip)
        learning = MetaTraining(l2p_network, options)
        steps = FedL2PSteps(self, l2p_network, context, learns)
        iteration = learning.passes(keep_nets)
        last_iteration = learning.passes(steps.send_nets)
        passes: tuple[Pass | Sweep, ...] = (
            validation_count_sweep(),
            statistics_sweep(l2p_network, server_model),
            *iteration * (self.iterations - 1),
            *last_iteration,
        )
        return Method(
            steps.init,
            passes,
            average_and_keep_best,
            {"global": stored_model},
            send=lambda server: {key: server[key] for key in ("origin", "meta", "fixed")},
            trace=lambda server: {"lowest": server["lowest"]},
            trace_clients=client_hyperparameters,
        )


@dataclass(frozen=True, eq=False)
class FedL2PSteps:
    """Functions of the passes of FedL2P.

    Attributes:
        options: The keys of the method.
        l2p_network: The network that is fine-tuned.
        context: The context in which the method is built.
        learns: Names of the nets that are trained.
    """

    options: FedL2P
    l2p_network: L2PNetwork
    context: BuildContext
    learns: tuple[str, ...]

    def init(self, variables: Variables) -> tuple[FedL2PServer, Tree]:
        """Return the states: first nets, and the values that no net learns."""
        template = trees.leaves(variables["params"])[0]
        sigmoid = self.options.bn_output == "sigmoid"
        meta = self.l2p_network.initial_nets(
            self.context, template, self.learns, self.options.bn_begin, sigmoid
        )
        rules = {"constant": self.options.told == "nothing", "sigmoid": sigmoid}
        active_rules = tuple(name for name, is_active in rules.items() if is_active)
        server: FedL2PServer = {
            "origin": select(variables, all_weights),
            "meta": meta,
            "fixed": self.l2p_network.fixed_values(
                self.context, template, self.learns, self.options.beta, active_rules
            ),
            "best": meta,
            "lowest": template.new_full((), torch.finfo(template.dtype).max),
        }
        return server, {
            **self.l2p_network.zero_client_state(template),
            "held": template.new_zeros(()),
        }

    def send_nets(
        self, server: FedL2PServer, client: FedL2PClient, work: MetaWork
    ) -> tuple[IteratingClient, FedL2PUpload]:
        """End the last iteration: upload the nets, and keep what they predict."""
        next_client = client_after_iteration(client, work, is_last=True)
        meta = next_client.pop("meta")
        hyper = self.l2p_network.hyperparameters(meta, server["fixed"], client["statistics"])
        judged = client["judged"] / self.options.iterations
        upload: FedL2PUpload = {"meta": meta, "judged": judged, "held": client["held"]}
        return {**next_client, "hyper": hyper}, upload


def keep_nets(
    server: FedL2PServer, client: FedL2PClient, work: MetaWork
) -> tuple[IteratingClient, Tree]:
    """End an iteration, and keep the nets for the next one."""
    return client_after_iteration(client, work, is_last=False), {}


def stored_model(server: FedL2PServer, client: object) -> ScoredModel:
    """Return the stored model and the best nets."""
    return {**server["origin"], "meta": server["best"], "fixed": server["fixed"]}
