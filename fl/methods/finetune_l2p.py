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

from typing import Literal

from fl.api import BuildContext, Method, Sampling, Tree, all_weights, declare, select, trees
from fl.blocks.exchange import aggregate_nothing
from fl.blocks.l2p_network import L2PNetwork
from fl.blocks.l2p_tuning import (
    TUNING_SPLITS,
    check_no_added_loss,
    client_hyperparameters,
    statistics_sweep,
    tuning_pass,
)


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

        def init(variables: Tree) -> tuple[Tree, Tree]:
            template = trees.leaves(variables["params"])[0]
            # Without stored nets, in a rehearsal, they are fresh ones.
            learns = ("bn", "lr") if l2p_network.normalised else ("lr",)
            meta = variables.get("meta") or l2p_network.initial_nets(context, template, learns)
            fixed = l2p_network.fixed_values(context, template, learns, 1.0)
            server = {"meta": meta, "fixed": variables.get("fixed", fixed)}
            model = {**select(variables, all_weights)}
            model["buffers"] = l2p_network.restarted_buffers(model["buffers"])
            stored = l2p_network.running_statistics(variables["buffers"])
            return server, {**model, "stored": stored, **l2p_network.zero_client_state(template)}

        def origin(server: Tree, client: Tree) -> Tree:
            return {
                "params": client["params"],
                "buffers": {**client["buffers"], **client["stored"]},
            }

        def begin(server: Tree, client: Tree) -> Tree:
            model = (client["params"], client["buffers"], client["stored"])
            return l2p_network.work_tree(*model, client["hyper"])

        def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
            trained = {"params": dict(work["params"]), "buffers": dict(work["buffers"])}
            return {**client, **trained}, {}

        def personal(server: Tree, client: Tree | None) -> Tree:
            model = client or {}
            beta = model["hyper"]["beta"]
            buffers = l2p_network.mixed_buffers(model["buffers"], model["stored"], beta)
            return {"params": dict(model["params"]), "buffers": buffers}

        sweep = statistics_sweep(
            l2p_network, origin, split, lambda round_: round_ == 1, with_hyperparameters=True
        )
        passes = (sweep, tuning_pass(l2p_network, begin, end, Sampling(split)))
        return Method(
            init,
            passes,
            aggregate_nothing,
            {"personal": personal},
            trace_clients=client_hyperparameters,
        )
