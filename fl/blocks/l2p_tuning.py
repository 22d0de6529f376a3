"""Passes and sweeps of methods that control how clients fine-tune a stored model.

Lee et al. FedL2P: Federated Learning to Personalize. NeurIPS 2023. arXiv:2310.02420.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    FedloomError,
    Pass,
    Rate,
    Sampling,
    Sweep,
    Tree,
    Variables,
    Weights,
    trees,
)
from fl.blocks.l2p_network import L2PNetwork, L2PServer, MeasuredClient, TuningWork


class TunedModel(Variables):
    """The stored model after fine-tuning.

    Attributes:
        grads: Gradient of its last step, by name.
    """

    grads: Weights


class ValidationStep(TypedDict):
    """What a validation batch says of the fine-tuned model.

    Attributes:
        grads: Gradient of the loss by ``weights``, and by ``beta`` if there is one.
        loss: The loss, [].
    """

    grads: Tree
    loss: Tensor


class IteratingClient(MeasuredClient, total=False):
    """State of a client within a round: one pass hands these entries to the next.

    Attributes:
        meta: Weights of the client's meta-nets.
        tuned: The fine-tuned model.
        found: Its last validation step.
        judged: Sum of the validation losses of all iterations so far, [].
    """

    meta: Tree
    tuned: TunedModel
    found: ValidationStep
    judged: Tensor


TUNING_SPLITS = {"all": "train+val", "train": "train"}
"""By the value of the key ``samples``: the splits on which a client fine-tunes at the end."""


def tuning_step(
    server: object, work: TuningWork, grads: Weights, aux: Tree, lr: Rate
) -> TuningWork:
    """Take a plain gradient step at the own rate of each tensor."""
    moved = trees.apply(
        lambda w, g, rate: w - trees.align(rate, w) * g, work["params"], grads, work["rates"]
    )
    return {**work, "params": moved, "buffers": aux["buffers"]}


def tuning_pass(l2p_network: L2PNetwork, begin: Any, end: Any, draws: Sampling) -> Pass:
    """Return a pass of fine-tuning; ``begin`` returns an `L2PNetwork.work_tree`."""
    return Pass(begin, l2p_network.loss, tuning_step, end, draws)


StoredModel = Callable[[Any, Any], Variables]
"""(server, client) -> the stored model's variables."""


def server_model(server: L2PServer, client: object) -> Variables:
    """Return the stored model, if the server has it."""
    return server["origin"]


def statistics_sweep(
    l2p_network: L2PNetwork,
    origin: StoredModel,
    split: str = "train",
    is_due: Callable[[int], bool] = lambda round_: True,
    with_hyperparameters: bool = False,
) -> Sweep:
    """Return a sweep that stores a client's ``statistics`` in its tree.

    Args:
        l2p_network: The network whose layers are measured.
        origin: A function that returns the stored model.
        split: The split that is measured.
        is_due: Whether the sweep takes place in a round.
        with_hyperparameters: Whether it also stores ``hyper``, the hyper-parameters that nets of
            the client or the server predict.
    """

    def look(server: L2PServer, client: MeasuredClient, upload: Tree, batch: Batch) -> Tree:
        model = origin(server, client)
        return l2p_network.input_sums(model["params"], model["buffers"], batch)

    def end(
        server: L2PServer, client: IteratingClient, upload: Tree, totals: Tree
    ) -> tuple[IteratingClient, Tree]:
        statistics = l2p_network.statistics(totals, origin(server, client))
        client_state: IteratingClient = {**client, "statistics": statistics}
        if with_hyperparameters:
            meta = client.get("meta") or server["meta"]
            client_state["hyper"] = l2p_network.hyperparameters(meta, server["fixed"], statistics)
        return client_state, {}

    return Sweep(look, end, split, is_due)


def client_hyperparameters(clients: MeasuredClient) -> dict[str, Tensor]:
    """Return the hyper-parameters and statistics of all clients; zeros before a client took part.

    Returns:
        ``beta`` [clients, B], ``rates`` [clients, P], and the inputs of the nets, ``xi`` and
        ``inputs``.
    """
    hyper, statistics = clients["hyper"], clients["statistics"]
    return {
        "beta": hyper["beta"],
        "rates": hyper["rates"],
        "xi": statistics["xi"],
        "inputs": statistics["inputs"],
    }


def check_no_added_loss(context: BuildContext, name: str) -> None:
    """Raise `FedloomError` for terms and alterations: the method has a loss of its own."""
    added = {"terms": context.terms, "alterations": context.alterations}
    for key in [key for key, value in added.items() if value]:
        raise FedloomError(
            f"{name}: {key} are set, but the method has a loss of its own",
            advice=f"leave {key} out",
        )


def check_batch_norm(l2p_network: L2PNetwork, name: str) -> None:
    """Raise `FedloomError` for a model without running statistics to mix."""
    if not l2p_network.normalised:
        raise FedloomError(
            f"{name}: the model has no batch normalisation with running statistics",
            advice="choose cnn or resnet18, for example, or set `learns: lr` if it is an option",
        )
