"""L2P: FedL2P without federation, every client learns meta-nets of its own and follows them.

Lee, Kim, Li, Qiu, Hospedales, Huszár, Lane. FedL2P: Federated Learning to Personalize. NeurIPS
2023. arXiv:2310.02420.

Family: stored model. Exchanged: down, the stored model. Local: model, nets that set rates. Key:
`iterations`.

An entry names the entry whose model is personalised (``start: fedavg``). In all rounds but the
last, clients train their nets as in `fedl2p`, with as many iterations a round. In the last round
they fine-tune the stored model as the nets say, by default on validation samples too. Until then a
client's own model is the stored one; it stays so for a client that is not drawn in the last round.
Nets are those of the last iteration, as in the released code. Clients that are held out of training
have no nets, so there must be none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fl.api import (
    Bound,
    BuildContext,
    Count,
    FedloomError,
    Method,
    Pass,
    Positive,
    Sampling,
    Sweep,
    Tree,
    Variables,
    all_weights,
    declare,
    select,
    trees,
)
from fl.blocks.exchange import aggregate_nothing
from fl.blocks.l2p_network import L2PNetwork, L2PServer, TuningWork
from fl.blocks.l2p_training import (
    MetaTraining,
    MetaTrainingOptions,
    MetaWork,
    client_after_iteration,
)
from fl.blocks.l2p_tuning import (
    TUNING_SPLITS,
    IteratingClient,
    check_batch_norm,
    check_no_added_loss,
    client_hyperparameters,
    server_model,
    statistics_sweep,
    tuning_pass,
)


class L2PClient(IteratingClient, Variables):
    """State of a client: its model, and its own meta-nets."""


@declare(
    "personal",
    starts="any",
    needs=("val",),
    training={
        "rounds": 101,
        "local_epochs": 15,
        "lr": 0.001,
        "participation": 1.0,
        "evaluate_every": 101,
    },
)
class L2P:
    """Networks of FedL2P that each client trains alone.

    Attributes:
        samples: Training samples of the last round: `all` with validation samples, or `train`
            without them.
        psi: Step size psi of the Neumann series.
        neumann: Number of terms Q of the Neumann series.
        bn_lr: Learning rate of BNNet.
        lr_lr: Learning rate of LRNet.
        tilde_lr: Learning rate of the multipliers of learning rates.
        clip: Largest absolute value of an element of a hypergradient.
        iterations: Number of steps of the networks in a round.
    """

    samples: Literal["all", "train"] = "all"
    psi: Annotated[float, Bound(above=0, high=1)] = 0.1
    neumann: Annotated[int, Bound(low=0, high=1000)] = 3
    bn_lr: Positive = 1e-3
    lr_lr: Positive = 1e-3
    tilde_lr: Positive = 1e-4
    clip: Positive = 1.0
    iterations: Count = 3

    def build(self, context: BuildContext) -> Method:
        """Iterations that every client makes for itself, and fine-tuning in the last round."""
        check_no_added_loss(context, "l2p")
        if context.absent_clients:
            raise FedloomError(
                "l2p: clients are held out of training, and L2P has no nets for whom it never saw. "
                "Allowed: a partition without unseen clients, or fedl2p"
            )
        l2p_network = L2PNetwork(context)
        check_batch_norm(l2p_network, "l2p")
        split, rounds = TUNING_SPLITS[self.samples], context.training.rounds

        def is_earlier(round_: int) -> bool:
            return round_ < rounds

        def is_last(round_: int) -> bool:
            return round_ == rounds

        rates = {"bn": self.bn_lr, "lr": self.lr_lr, "tilde": self.tilde_lr}
        rules = MetaTrainingOptions("implicit", self.psi, self.neumann, rates, self.clip)
        iteration = MetaTraining(l2p_network, rules, is_due=is_earlier).passes(conclude)
        steps = L2PSteps(l2p_network, context)
        passes: tuple[Pass | Sweep, ...] = (
            statistics_sweep(l2p_network, server_model, is_due=is_earlier),
            *iteration * self.iterations,
            statistics_sweep(l2p_network, server_model, split, is_last, with_hyperparameters=True),
            tuning_pass(l2p_network, steps.begin, steps.end, Sampling(split, is_active=is_last)),
        )
        return Method(
            steps.init,
            passes,
            aggregate_nothing,
            {"personal": lambda server, client: select(client, all_weights)},
            send=lambda server: {key: server[key] for key in ("origin", "fixed")},
            trace_clients=client_hyperparameters,
        )


@dataclass(frozen=True, eq=False)
class L2PSteps:
    """Functions of the passes of L2P.

    Attributes:
        l2p_network: The network that is fine-tuned.
        context: The context in which the method is built.
    """

    l2p_network: L2PNetwork
    context: BuildContext

    def init(self, variables: Variables) -> tuple[L2PServer, Tree]:
        """Return the states: a client has first nets of its own."""
        template = trees.leaves(variables["params"])[0]
        model = select(variables, all_weights)
        meta = self.l2p_network.initial_nets(self.context, template, ("bn", "lr"))
        server: L2PServer = {"origin": model, "meta": meta, "fixed": {}}
        return server, {**model, "meta": meta, **self.l2p_network.zero_client_state(template)}

    def begin(self, server: L2PServer, client: L2PClient) -> TuningWork:
        """Begin fine-tuning of the stored model."""
        origin = server["origin"]
        fresh = self.l2p_network.restarted_buffers(origin["buffers"])
        return self.l2p_network.work_tree(
            origin["params"], fresh, origin["buffers"], client["hyper"]
        )

    def end(self, server: L2PServer, client: L2PClient, work: TuningWork) -> tuple[L2PClient, Tree]:
        """Keep the tuned model, with the statistics by which it is evaluated."""
        stored = server["origin"]["buffers"]
        buffers = self.l2p_network.mixed_buffers(work["buffers"], stored, client["hyper"]["beta"])
        return {**client, "params": work["params"], "buffers": buffers}, {}


def conclude(
    server: L2PServer, client: IteratingClient, work: MetaWork
) -> tuple[IteratingClient, Tree]:
    """End an iteration, and keep the nets."""
    return client_after_iteration(client, work, is_last=True), {}
