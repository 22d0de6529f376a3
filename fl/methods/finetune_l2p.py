"""FedL2P's personalisation: a stored model is fine-tuned as the meta-nets say that came with it.

Lee, Kim, Li, Qiu, Hospedales, Huszár, Lane. FedL2P: Federated Learning to Personalize. NeurIPS
2023. arXiv:2310.02420.

Family: stored model. Exchanged: down, nets that set rates. Local: model. Key: `samples`.

It is an entry ``{method: finetune-l2p, start: fedl2p}``. Every client trains alone, also those held
out of training, which the nets have never seen. Round 0 is the stored model. Before round 1 the
client measures what goes into its layers, and keeps the rates and the beta that follow from it.
Steps are plain ones, without momentum, weight decay and schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from fl.api import (
    BuildContext,
    Method,
    Sampling,
    Tree,
    Variables,
    Weights,
    all_weights,
    declare,
    select,
    trees,
)
from fl.blocks.exchange import aggregate_nothing
from fl.blocks.first_round import is_first
from fl.blocks.l2p_network import L2PNetwork, MeasuredClient, TuningWork
from fl.blocks.l2p_tuning import (
    TUNING_SPLITS,
    check_no_added_loss,
    client_hyperparameters,
    statistics_sweep,
    tuning_pass,
)


class NetsServer(TypedDict):
    """State of the server.

    Attributes:
        meta: Weights of the stored meta-nets.
        fixed: See `L2PNetwork.fixed_values`.
    """

    meta: Tree
    fixed: Weights


class FineTuneClient(MeasuredClient, Variables):
    """State of a client: its model, and what it needs of the stored one.

    Attributes:
        stored: Running statistics of the stored model, by name.
    """

    stored: Weights


@declare(
    "personal",
    title="FedL2P, fine-tuned",
    independent=True,
    starts=("fedl2p",),
    training={"rounds": 15, "local_epochs": 1, "lr": 0.001},
)
class FineTuneL2P:
    """Fine-tuning by the networks of FedL2P.

    Attributes:
        samples: Training samples: `all` includes validation samples, as in the paper, so that
            validation scores mean nothing; `train` excludes them.
    """

    samples: Literal["all", "train"] = "all"

    def build(self, context: BuildContext) -> Method:
        """A sweep before the first round; then fine-tuning from round to round."""
        check_no_added_loss(context, "finetune-l2p")
        l2p_network, split = L2PNetwork(context), TUNING_SPLITS[self.samples]
        steps = FineTuneL2PSteps(l2p_network, context)
        sweep = statistics_sweep(l2p_network, origin, split, is_first, with_hyperparameters=True)
        return Method(
            steps.init,
            (sweep, tuning_pass(l2p_network, steps.begin, end, Sampling(split))),
            aggregate_nothing,
            {"personal": steps.personal},
            trace_clients=client_hyperparameters,
        )


@dataclass(frozen=True, eq=False)
class FineTuneL2PSteps:
    """Functions of the pass and the view of `FineTuneL2P`.

    Attributes:
        l2p_network: The network that is fine-tuned.
        context: The context in which the method is built.
    """

    l2p_network: L2PNetwork
    context: BuildContext

    def init(self, variables: Any) -> tuple[NetsServer, FineTuneClient]:
        """Return the states: stored nets, and the stored model with new statistics."""
        template = trees.leaves(variables["params"])[0]
        # Without stored nets, in a rehearsal, they are fresh ones.
        learns = ("bn", "lr") if self.l2p_network.normalised else ("lr",)
        meta = variables.get("meta") or self.l2p_network.initial_nets(
            self.context, template, learns
        )
        fixed = self.l2p_network.fixed_values(self.context, template, learns, 1.0)
        server: NetsServer = {"meta": meta, "fixed": variables.get("fixed", fixed)}
        model = select(variables, all_weights)
        model["buffers"] = self.l2p_network.restarted_buffers(model["buffers"])
        stored = self.l2p_network.running_statistics(variables["buffers"])
        return server, {**model, "stored": stored, **self.l2p_network.zero_client_state(template)}

    def begin(self, server: object, client: FineTuneClient) -> TuningWork:
        """Begin fine-tuning at the client's model."""
        model = (client["params"], client["buffers"], client["stored"])
        return self.l2p_network.work_tree(*model, client["hyper"])

    def personal(self, server: object, client: FineTuneClient) -> Variables:
        """Return the client's model, with mixed statistics, as a view."""
        beta = client["hyper"]["beta"]
        buffers = self.l2p_network.mixed_buffers(client["buffers"], client["stored"], beta)
        return {"params": client["params"], "buffers": buffers}


def origin(server: object, client: FineTuneClient) -> Variables:
    """Return the stored model, of which layers are measured."""
    return {
        "params": client["params"],
        "buffers": {**client["buffers"], **client["stored"]},
    }


def end(server: object, client: FineTuneClient, work: TuningWork) -> tuple[FineTuneClient, Tree]:
    """Keep the tuned model."""
    return {**client, "params": work["params"], "buffers": work["buffers"]}, {}
