"""Passes and sweeps of methods that control how clients fine-tune a stored model.

Lee et al. FedL2P: Federated Learning to Personalize. NeurIPS 2023. arXiv:2310.02420.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fl.api import Batch, BuildContext, FedloomError, Pass, Rate, Sampling, Sweep, Tree, trees
from fl.blocks.l2p_network import L2PNetwork

TUNING_SPLITS = {"all": "train+val", "train": "train"}
"""By the value of the key ``samples``: the splits on which a client fine-tunes at the end."""


def tuning_step(server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
    """Take a plain gradient step at the own rate of each tensor."""
    moved = trees.apply(
        lambda w, g, rate: w - trees.align(rate, w) * g, work["params"], grads, work["rates"]
    )
    return {**work, "params": moved, "buffers": aux["buffers"]}


def tuning_pass(l2p_network: L2PNetwork, begin: Any, end: Any, draws: Sampling) -> Pass:
    """Return a pass of fine-tuning; ``begin`` returns an `L2PNetwork.work_tree`."""
    return Pass(begin, l2p_network.loss, tuning_step, end, draws)


StoredModel = Callable[[Tree, Tree], Tree]
"""(server, client) -> the stored model's variables."""


def server_model(server: Tree, client: Tree) -> Tree:
    """Return the stored model, if the server has it."""
    model: Tree = server["origin"]
    return model


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

    def look(server: Tree, client: Tree, upload: Tree, batch: Batch) -> Tree:
        model = origin(server, client)
        return l2p_network.input_sums(model["params"], model["buffers"], batch)

    def end(server: Tree, client: Tree, upload: Tree, totals: Tree) -> tuple[Tree, Tree]:
        statistics = l2p_network.statistics(totals, origin(server, client)["buffers"])
        client_state = {**client, "statistics": statistics}
        if with_hyperparameters:
            meta = client.get("meta") or server["meta"]
            client_state["hyper"] = l2p_network.hyperparameters(meta, server["fixed"], statistics)
        return client_state, {}

    return Sweep(look, end, split, is_due)


def client_hyperparameters(clients: Tree) -> dict[str, Tensor]:
    """Return the hyper-parameters and statistics of all clients; zeros before a client took part.

    Returns:
        ``beta`` [clients, B], ``rates`` [clients, P], and the inputs of the nets, ``xi`` and
        ``inputs``.
    """
    return {**clients["hyper"], **clients["statistics"]}


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
