"""Fine-tuning of a stored model with a rule for whose statistics batch normalisation goes by.

Lee, Kim, Li, Qiu, Hospedales, Huszár, Lane. FedL2P: Federated Learning to Personalize. NeurIPS
2023. arXiv:2310.02420.

Family: stored model. Exchanged: nothing. Local: model. Key: `statistics`.

These are the three strategies with which FedL2P is compared there: FT (BN C), FT (BN G) and FT (BN
I). Each is an entry ``{method: finetune-bn, start: fedavg}``; a round is an epoch unless the study
says otherwise.

As in the released code, the client's statistics go on from the stored ones. With the stored ones,
the network is in evaluation mode while it trains, and the statistics stay. Where each batch is
normalised by its own statistics, so are the batches of 50 samples in which the model is scored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    Count,
    FedloomError,
    Inputs,
    Method,
    Predictor,
    RecipeServer,
    RecipeWork,
    Sampling,
    Tree,
    Variables,
    all_weights,
    declare,
    personal_model,
    recipe,
    single_pass,
    trees,
)
from fl.blocks.l2p_tuning import TUNING_SPLITS, check_no_added_loss


@declare(
    "personal",
    title="Fine-tuning (BN)",
    tasks="any",
    independent=True,
    starts="any",
    training={"rounds": 15, "local_epochs": 1},
)
class FineTuneBN:
    """Fine-tuning with a choice of statistics of batch normalisation.

    Attributes:
        statistics: Statistics for normalisation: the `client`'s (BN C), those of the `stored` model
            (BN G), or the `batch`'s, also in evaluation (BN I).
        scored: Samples in a batch of the evaluation with BN I.
        samples: Training samples: `all` includes validation samples, as in the paper, so that
            validation scores mean nothing; `train` excludes them.
    """

    statistics: Literal["client", "stored", "batch"] = "client"
    scored: Count = 50
    samples: Literal["all", "train"] = "train"

    def build(self, context: BuildContext) -> Method:
        """Local training, with another loss or another way to be scored."""
        check_no_added_loss(context, "finetune-bn")
        network = context.network
        if not network.batch_norm and self.statistics != "client":
            raise FedloomError(
                f"finetune-bn: statistics is {self.statistics}, but the model has no batch "
                "normalisation. Allowed: client, or a model that has"
            )
        base = recipe(context, local=all_weights, keep_optimizer=True)
        tuning = replace(single_pass(base), sampling=Sampling(TUNING_SPLITS[self.samples]))

        def unmoved(server: RecipeServer, work: RecipeWork, batch: Batch) -> tuple[Tensor, Tree]:
            params = {**work["frozen"], **work["params"]}
            outputs = network.eval(params, work["buffers"], batch["x"]).outputs
            return context.task.loss(outputs, batch), {"buffers": work["buffers"]}

        def predict(variables: Variables, memory: Tree, x: Inputs) -> Tensor:
            params, buffers, samples = variables["params"], variables["buffers"], {"x": x}
            pieces = (
                trees.take(samples, batch_)["x"]
                for batch_ in cut(len(trees.leaves(samples)[0]), self.scored)
            )
            return torch.cat([network.train(params, buffers, piece).outputs for piece in pieces])

        if self.statistics == "stored":
            return replace(base, passes=(replace(tuning, loss=unmoved),))
        views = {"personal": Predictor(personal_model, predict)}
        views_ = views if self.statistics == "batch" else base.views
        return replace(base, passes=(tuning,), views=views_)


def cut(count: int, size: int) -> list[slice]:
    """Return the places at which ``count`` samples are cut into pieces of ``size``.

    A single sample that is left over has no variance, and goes with the piece before it.
    """
    begins = list(range(0, count, size))
    if len(begins) > 1 and count - begins[-1] == 1:
        begins.pop()
    return [slice(a, b) for a, b in zip(begins, [*begins[1:], count], strict=True)]
