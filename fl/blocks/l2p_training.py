"""Training of FedL2P's meta-nets: a client's iterations, and the server's aggregation.

An iteration has three passes. The stored model is fine-tuned with the hyper-parameters of the
meta-nets (`_begin_tuning`). Its loss on a validation batch is differentiated (`_validation_loss`).
The meta-nets take a step along the hypergradient (`_meta_loss`), which needs a new training batch.

The training loss depends on the rates through the last step of fine-tuning, w_K = w_{K-1} - eta g,
with g constant (equations 9 and 10).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict, cast

import torch
from torch import Tensor

from fl.api import Batch, Pass, Rate, Sampling, Sweep, Tree, Weights, trees
from fl.blocks.implicit_gradients import curvature
from fl.blocks.l2p_network import (
    HyperParameters,
    L2PNetwork,
    L2PServer,
    LayerStatistics,
    TuningWork,
)
from fl.blocks.l2p_tuning import IteratingClient, TunedModel, ValidationStep, tuning_step


class LastStepWork(TuningWork):
    """State of the pass that fine-tunes the stored model.

    Attributes:
        grads: Gradient of the last step, by name.
    """

    grads: Weights


class ValidationWork(ValidationStep):
    """State of the pass over a validation batch.

    Attributes:
        params: ``weights`` of the fine-tuned model, and ``beta`` if there is one.
        buffers: Its buffers, by name.
        beta: Share of the client's own statistics, [B].
    """

    params: Tree
    buffers: Weights
    beta: Tensor


class MetaWork(TypedDict):
    """State of the pass that moves the meta-nets.

    Attributes:
        params: Weights of the meta-nets.
        tuned: The fine-tuned model.
        found: Its validation step.
        statistics: Statistics of the client.
    """

    params: Tree
    tuned: TunedModel
    found: ValidationStep
    statistics: LayerStatistics


class FedL2PServer(L2PServer):
    """State of the server of FedL2P; what it adds stays on the server.

    Attributes:
        best: Meta-nets of the round with the lowest validation loss.
        lowest: That loss, [].
    """

    best: Tree
    lowest: Tensor


class FedL2PUpload(TypedDict):
    """Upload of a client of FedL2P.

    Attributes:
        meta: Its meta-nets.
        judged: Its mean validation loss, [].
        held: Its number of validation samples, [].
    """

    meta: Tree
    judged: Tensor
    held: Tensor


TRANSIENT_KEYS = ("meta", "tuned", "found", "judged")
"""Entries of `IteratingClient` that are removed after the phase."""


@dataclass(frozen=True)
class MetaTrainingOptions:
    """Options of the training of meta-nets.

    Attributes:
        gradient: `implicit`, or `fomaml`, the plain derivative through the last step.
        psi: The step of the Neumann series.
        terms: The number of terms of the Neumann series.
        rates: The learning rate of each of the meta-nets.
        clip: The largest absolute value of an element of their gradient.
    """

    gradient: Literal["implicit", "fomaml"]
    psi: float
    terms: int
    rates: dict[str, float]
    clip: float


class MetaTraining:
    """The passes of an iteration, between states of `L2PServer` and `IteratingClient`."""

    def __init__(
        self, l2p_network: L2PNetwork, options: MetaTrainingOptions, is_due: Any = None
    ) -> None:
        self._network, self._options = l2p_network, options
        self._round_filter = {} if is_due is None else {"is_active": is_due}

    def passes(self, end: Any) -> tuple[Pass, ...]:
        """Return the passes of an iteration.

        Args:
            end: The end of the last pass; it gets the client's tree with the present ``meta``.
        """
        round_filter = self._round_filter

        def one_step(round_: int) -> int:
            return 1

        return (
            Pass(
                self._begin_tuning,
                self._network.loss,
                _update_tuning,
                _end_tuning,
                Sampling(**round_filter),
            ),
            Pass(
                self._begin_validation,
                self._validation_loss,
                _update_validation,
                _end_validation,
                Sampling("val", steps=one_step, **round_filter),
            ),
            Pass(
                self._begin_meta_step,
                self._meta_loss,
                self._update_nets,
                end,
                Sampling(steps=one_step, **round_filter),
            ),
        )

    def _hyperparameters(self, server: L2PServer, client: IteratingClient) -> HyperParameters:
        meta = client.get("meta") or server["meta"]
        return self._network.hyperparameters(meta, server["fixed"], client["statistics"])

    # The stored model, fine-tuned

    def _begin_tuning(self, server: L2PServer, client: IteratingClient) -> LastStepWork:
        origin = server["origin"]
        restarted_buffers = self._network.restarted_buffers(origin["buffers"])
        work = self._network.work_tree(
            origin["params"],
            restarted_buffers,
            origin["buffers"],
            self._hyperparameters(server, client),
        )
        return {**work, "grads": trees.zeros_like(work["params"])}

    # The gradient of its loss on a validation batch, by its weights and by beta

    def _begin_validation(self, server: L2PServer, client: IteratingClient) -> ValidationWork:
        # A rehearsal begins with this pass.
        tuned = client.get("tuned") or _tuned_model(self._begin_tuning(server, client))
        beta = self._hyperparameters(server, client)["beta"]
        params = {"weights": tuned["params"], **({"beta": beta} if len(beta) else {})}
        return {
            "params": params,
            "buffers": tuned["buffers"],
            "beta": beta,
            "grads": trees.zeros_like(params),
            "loss": beta.new_zeros(()),
        }

    def _validation_loss(
        self, server: L2PServer, work: ValidationWork, batch: Batch
    ) -> tuple[Tensor, Tree]:
        params = work["params"]
        outputs = self._network.eval(
            params["weights"],
            work["buffers"],
            server["origin"]["buffers"],
            params.get("beta", work["beta"]),
            batch["x"],
        )
        loss = self._network.task.loss(outputs, batch)
        return loss, {"loss": loss}

    # A step of the meta-nets

    def _begin_meta_step(self, server: L2PServer, client: IteratingClient) -> MetaWork:
        tuned = client.get("tuned") or _tuned_model(self._begin_tuning(server, client))
        validation = client.get("found")
        if validation is None:
            judged = self._begin_validation(server, client)
            validation = {"grads": judged["grads"], "loss": judged["loss"]}
        meta = client.get("meta") or server["meta"]
        statistics = client["statistics"]
        return {"params": meta, "tuned": tuned, "found": validation, "statistics": statistics}

    def _meta_loss(self, server: L2PServer, work: MetaWork, batch: Batch) -> tuple[Tensor, Tree]:
        """Return a scalar with the validation loss as value and the hypergradient as gradient."""
        hyper = self._network.hyperparameters(work["params"], server["fixed"], work["statistics"])
        constants = trees.apply(Tensor.detach, hyper)
        slopes = self._hypergradient(server, work, constants, batch)
        products = [
            (slopes["beta"].detach() * hyper["beta"]).sum(),
            (slopes["rates"].detach() * hyper["rates"]).sum(),
        ]
        surrogate = torch.stack(products).sum()
        return work["found"]["loss"] + surrogate - surrogate.detach(), {}

    def _hypergradient(
        self, server: L2PServer, work: MetaWork, constants: HyperParameters, batch: Batch
    ) -> HyperParameters:
        """Return the derivative of the validation loss by a client's hyper-parameters."""
        tuned, v = work["tuned"], work["found"]["grads"]["weights"]
        names, origin = self._network.network.names["params"], server["origin"]

        def training(weights: Weights, hyper: Weights) -> Tensor:
            outputs = self._network.eval(
                weights, tuned["buffers"], origin["buffers"], hyper["beta"], batch["x"]
            )
            return self._network.task.loss(outputs, batch)

        if self._options.gradient == "implicit":
            # The rates move the weights only in the last step, whose gradient is known.
            beta = {"beta": constants["beta"]}
            options = self._options
            by_weights, by_params = curvature(
                training, v, tuned["params"], beta, options.psi, options.terms
            )
            products = [(by_weights[name] * tuned["grads"][name]).sum() for name in names]
            slope: HyperParameters = {"beta": -by_params["beta"], "rates": torch.stack(products)}
        else:
            products = [-(v[name] * tuned["grads"][name]).sum() for name in names]
            slope = {"beta": torch.zeros_like(constants["beta"]), "rates": torch.stack(products)}
        direct = work["found"]["grads"].get("beta", slope["beta"].new_zeros(()))
        return {**slope, "beta": slope["beta"] + direct}

    def _update_nets(
        self, server: object, work: MetaWork, grads: Tree, aux: Tree, lr: Rate
    ) -> MetaWork:
        clip = self._options.clip
        moved = {
            net: trees.apply(
                lambda w, g, rate=self._options.rates[net]: w - rate * g.clamp(-clip, clip),
                leaves,
                grads[net],
            )
            for net, leaves in work["params"].items()
        }
        return {**work, "params": moved}


def _update_tuning(
    server: object, work: LastStepWork, grads: Weights, aux: Tree, lr: Rate
) -> LastStepWork:
    return {**tuning_step(server, work, grads, aux, lr), "grads": grads}


def _tuned_model(work: LastStepWork) -> TunedModel:
    return {"params": work["params"], "buffers": work["buffers"], "grads": work["grads"]}


def _end_tuning(
    server: object, client: IteratingClient, work: LastStepWork
) -> tuple[IteratingClient, Tree]:
    return {**client, "tuned": _tuned_model(work)}, {}


def _update_validation(
    server: object, work: ValidationWork, grads: Tree, aux: Tree, lr: Rate
) -> ValidationWork:
    return {**work, "grads": grads, "loss": aux["loss"]}


def _end_validation(
    server: object, client: IteratingClient, work: ValidationWork
) -> tuple[IteratingClient, Tree]:
    judged = work["loss"] + client.get("judged", 0)
    validation: ValidationStep = {"grads": work["grads"], "loss": work["loss"]}
    return {**client, "found": validation, "judged": judged}, {}


def client_after_iteration(
    client: IteratingClient, work: MetaWork, is_last: bool
) -> IteratingClient:
    """Return the client's tree after an iteration, with the present meta-nets.

    Args:
        client: The client's tree.
        work: The work tree of the last pass.
        is_last: Whether this was the last iteration; then transient keys are removed.
    """
    if not is_last:
        return {**client, "meta": work["params"]}
    state = {key: leaf for key, leaf in client.items() if key not in TRANSIENT_KEYS}
    return cast("IteratingClient", {**state, "meta": work["params"]})


def validation_count_sweep() -> Sweep:
    """Return a sweep that counts a client's validation samples."""

    def look(server: Tree, client: Tree, upload: Tree, batch: Batch) -> Tree:
        return {"held": batch["weight"].sum()}

    def end(server: Tree, client: Tree, upload: Tree, totals: Tree) -> tuple[Tree, Tree]:
        return {**client, "held": totals["held"]}, {}

    return Sweep(look, end, "val")


def average_and_keep_best(
    server: FedL2PServer, clients: Tree, uploads: FedL2PUpload, n: Tensor
) -> tuple[FedL2PServer, Tree]:
    """Average the nets over clients, and keep those of the best round."""
    meta, judged = trees.mean(uploads["meta"], uploads["held"]), uploads["judged"].mean()
    is_better = judged < server["lowest"]
    best = trees.apply(lambda new, old: torch.where(is_better, new, old), meta, server["best"])
    lowest = torch.where(is_better, judged, server["lowest"])
    return {**server, "meta": meta, "best": best, "lowest": lowest}, clients
