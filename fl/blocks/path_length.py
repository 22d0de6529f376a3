"""Length of a client's path: the sum of the weights of a round's gradients in its update.

For K steps of plain SGD at a constant rate eta it is K eta. Momentum makes it longer, because a
gradient also counts in later steps. A proximal term makes it shorter, because it takes back a part
of each move. It is the l1-norm of the vector a of FedNova (Wang et al. NeurIPS 2020), times the
rate.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fl.api import BuildContext, FedloomError, Rate, RecipeWork, trees


class PathWork(RecipeWork):
    """State of a pass whose path is measured. It tracks the first gradient of the round alone.

    Attributes:
        pull: Weight of that gradient in the velocity v, [].
        reach: Its weight in w_0 - w, []. At a constant rate, `reach` after n steps is also the
            final weight of the n-th gradient from the end; so its sizes add up to `path`.
        path: Length of the path so far, [].
    """

    pull: Tensor
    reach: Tensor
    path: Tensor


def check_sgd(context: BuildContext, method: str) -> None:
    """Raise `FedloomError` unless a step is a sum of the round's gradients."""
    if context.training.keep_optimizer:
        problem = "keep_optimizer is true, but a path consists of one round's gradients"
        raise FedloomError(f"{method}: {problem}", "false")
    if context.training.nesterov:
        raise FedloomError(f"{method}: nesterov is true, but its path is not known", "false")
    if context.training.schedule_by == "steps":
        problem = "schedule_by is steps, but a path needs a constant rate in a round"
        raise FedloomError(f"{method}: {problem}", "rounds")
    if context.training.optimizer != "sgd":
        raise FedloomError(f"{method}: optimizer is {context.training.optimizer!r}", "sgd")


def start_path(work: RecipeWork) -> PathWork:
    """Return the state of a pass with a path of length 0."""
    zero = trees.leaves(work["params"])[0].new_zeros(())
    return {**work, "pull": zero, "reach": zero, "path": zero}


def step_path(work: PathWork, momentum: float, lr: Rate, mu: float = 0.0) -> PathWork:
    """Return the state after a step of v <- momentum v + g + mu (w - w_0), w <- w - lr v."""
    first = (work["path"] == 0).to(work["path"].dtype)
    pull = momentum * work["pull"] - mu * work["reach"] + first
    reach = work["reach"] + lr * pull
    return {**work, "pull": pull, "reach": reach, "path": work["path"] + reach.abs()}


def path_divisor(work: PathWork) -> Tensor:
    """Return the path's length as a divisor, []; 1 for a client without samples."""
    return torch.where(work["path"] > 0, work["path"], 1)
