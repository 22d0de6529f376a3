"""Per-FedAvg: a shared model that is good after one gradient step on a client's data.

Fallah, Mokhtari, Ozdaglar. Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach. NeurIPS 2020. arXiv:2002.07948.

Each batch is cut in two: the step is taken on one half, its outcome is judged on the other, and the
Hessian is that of the first half (the paper draws a third batch for it). A batch of one sample has
nothing to be judged on and teaches nothing. The personalised model is that of an entry ``{method:
finetune, start: perfedavg, rounds: 1, local_steps: 1}``.

Running statistics of batch normalisation, of which the paper says nothing, are by default those of
the second half alone: they then belong to the weights after the step, which are the ones that are
judged and used. PFLlib's code lets both halves move them, one after the other.

Features that a study alters are altered in both halves, by keys of their own; the state of an
alteration adapts to what was seen in the second one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.func import grad

from fl import trees
from fl.alteration import STATES, Alterations
from fl.errors import FedloomError
from fl.fields import Positive
from fl.method import Method, Setting, only
from fl.network import Output
from fl.parts.losses import classification
from fl.recipe import recipe
from fl.schema import GLOBAL
from fl.term import Batch
from fl.trees import Tree


@dataclass(frozen=True)
class PerFedAvg:
    """alpha: rate of the inner step; order: `second` keeps the Hessian, `first` drops it (FO).

    statistics: of batch normalisation, moved by the `outer` pass or by `both`.
    """

    alpha: Positive = 0.01
    order: Literal["second", "first"] = "second"
    statistics: Literal["outer", "both"] = "outer"

    title: ClassVar = "Per-FedAvg"
    stages: ClassVar = (GLOBAL,)

    def build(self, setting: Setting) -> Method:
        """FedAvg on F(w) = f(w - alpha grad f(w; D); D'), equation 3."""
        size = setting.training.batch_size
        if size < 2:
            raise FedloomError(f"perfedavg: batch_size is {size}; allowed: 2 or more, to be cut")
        if setting.terms:
            raise FedloomError("perfedavg: terms are set; allowed: none, as its loss is its own")
        base, network = recipe(setting), setting.network
        local, alterations = only(base), Alterations(setting.alterations)

        def loss(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, dict[str, Any]]:
            # Every other sample, so that what fills up a last batch falls to both halves.
            inner, outer = ({k: v[i::2] for k, v in batch.items()} for i in (0, 1))

            def forward(params: Tree, buffers: Tree, half: Batch) -> tuple[Output, dict[str, Any]]:
                alter, met = alterations.functions(work.get(STATES, {}), half)
                x, key = half["x"], half.get("key")
                return network.train(params, buffers, x, nested=True, key=key, alter=alter), met

            def before(params: Tree) -> tuple[Tensor, Tree]:
                output, _ = forward(params, work["buffers"], inner)
                return classification(output.outputs, inner), output.buffers

            direction, moved = grad(before, has_aux=True)(work["params"])
            if self.order == "first":
                direction = trees.apply(lambda g: g.detach(), direction)
            adapted = trees.apply(lambda w, g: w - self.alpha * g, work["params"], direction)
            buffers = moved if self.statistics == "both" else work["buffers"]
            output, met = forward(adapted, buffers, outer)
            aux = {"buffers": output.buffers, "met": met}
            return classification(output.outputs, outer), aux

        return replace(base, passes=(replace(local, loss=loss),))
