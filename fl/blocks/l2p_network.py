"""FedL2P's network: fine-tuning controlled by learning rates and by mixed normalisation statistics.

Lee et al. FedL2P: Federated Learning to Personalize. NeurIPS 2023. arXiv:2310.02420.

A client's *hyper-parameters* control its fine-tuning: ``beta`` [B], for each layer of batch
normalisation the share of the client's own statistics, and ``rates`` [P], a learning rate for each
parameter tensor. They follow from *statistics* of the inputs of the stored model's layers, by
meta-nets that are trained or by fixed values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from fl.api import (
    Around,
    Batch,
    BuildContext,
    ClientFacts,
    Output,
    Tree,
    Variables,
    Weights,
    rng,
    trees,
)
from fl.base.errors import FedloomError
from fl.blocks.metanets import BNNet, LRNet, Statistics, mixed_statistics, symmetric_kl
from fl.pytorch import torch_internals

VARIANCE_FLOOR = 1e-5
"""A number that is added to variances before their root is taken."""

INITIAL_BETA = 0.5
"""The approximate initial output of BNNet."""

NET_RULES = ("constant", "sigmoid")
"""Rules for nets, as keys of the ``fixed`` values.

`constant`: nets get zeros as inputs, so that their outputs are the same for every client;
`sigmoid`: a sigmoid bounds BNNet's outputs.
"""

Convolution = nn.modules.conv._ConvNd


class LayerStatistics(TypedDict):
    """Statistics of a client's inputs of layers: what the meta-nets get.

    Attributes:
        xi: Divergence from the stored model's running statistics, by normalised layer, [B].
        inputs: Mean and deviation of the inputs of each measured layer, [2 M].
    """

    xi: Tensor
    inputs: Tensor


class HyperParameters(TypedDict):
    """Hyper-parameters of a client's fine-tuning: what the meta-nets return.

    Attributes:
        beta: Share of the client's own statistics, by normalised layer, [B].
        rates: Learning rate of each parameter of the network, [P].
    """

    beta: Tensor
    rates: Tensor


class L2PServer(TypedDict):
    """State of the server.

    Attributes:
        origin: Variables of the stored model.
        meta: Weights of the meta-nets ``bn``, ``lr`` and ``tilde``, as far as they are learnt.
        fixed: Hyper-parameters that no net predicts, and rules; see `L2PNetwork.fixed_values`.
    """

    origin: Variables
    meta: Tree
    fixed: Weights


class MeasuredClient(ClientFacts):
    """State of a client.

    Attributes:
        statistics: Statistics of its samples; zeros before they are measured.
        hyper: Hyper-parameters of its fine-tuning; zeros before a net has predicted them.
    """

    statistics: LayerStatistics
    hyper: HyperParameters


class TuningWork(TypedDict):
    """State of a pass of fine-tuning.

    Attributes:
        params: Parameters by name.
        buffers: Buffers by name, with the client's running statistics.
        stored: Running statistics of the stored model, by name.
        beta: As in `HyperParameters`.
        rates: Learning rate of each parameter, by its name, [].
    """

    params: Weights
    buffers: Weights
    stored: Weights
    beta: Tensor
    rates: Weights


class L2PNetwork:
    """A network that mixes normalisation statistics and measures the inputs of layers.

    It works on a view of the context's network, which stays as it is.

    Attributes:
        network: The view.
        task: The task, whose loss is minimised.
        normalised: The names of layers of batch normalisation with running statistics, B of them.
        measured: The names of layers whose inputs are measured, M of them: convolutional,
            normalising and linear ones.
    """

    def __init__(self, context: BuildContext) -> None:
        # A view, so that the study's network keeps its layers as they are.
        network = context.network.view()
        self.network, self.task = network, context.task
        buffers = set(network.names["buffers"])
        layers = network.layers(torch_internals.BatchNorm)
        self.normalised = [name for name in layers if f"{name}.running_mean" in buffers]
        self.measured = network.layers(Convolution, torch_internals.BatchNorm, nn.Linear)
        network.surround(self.measured)

    # Statistics of the inputs of layers

    def input_sums(self, params: Weights, buffers: Weights, batch: Batch) -> Tree:
        """Sum the inputs of layers over a batch, for a sweep.

        For each measured layer the sums are over the whole input, for each normalised one by
        channel.
        """
        whole: dict[str, Tree] = {}
        channels: dict[str, Tree] = {}

        def measure(
            name: str, layer: nn.Module, inner: Callable[[Tensor], Tensor], x: Tensor
        ) -> Tensor:
            whole[name] = _sums(x.flatten(1)[:, None], batch["weight"])
            if name in self.normalised:
                rows = x.flatten(2) if x.dim() > 2 else x[..., None]
                channels[name] = _sums(rows, batch["weight"])
            return inner(x)

        around = {name: partial(measure, name) for name in self.measured}
        self.network.eval(params, buffers, batch["x"], around=around)
        uncalled_layers = [name for name in self.measured if name not in whole]
        if uncalled_layers:
            raise FedloomError(
                "FedL2P needs the inputs of all layers, but a pass of this model does not call "
                f"{', '.join(uncalled_layers[:3])}",
                advice="choose a model without attention, which calls all its convolutional, "
                "normalising and linear layers",
            )
        return {"whole": whole, "channels": channels}

    def statistics(self, sums: Tree, model: Variables) -> LayerStatistics:
        """Compute the inputs of the meta-nets from the sums of `input_sums`.

        Args:
            sums: The sums over all batches, in float64.
            model: The stored model, whose precision the meta-nets have.
        """
        precision = next(iter(model["params"].values())).dtype
        xi = []
        for name in self.normalised:
            stored = self._of(model["buffers"], name)
            xi.append(symmetric_kl(*_moments(sums["channels"][name]), *stored))
        inputs = []
        for name in self.measured:
            mean, var = _moments(sums["whole"][name])
            inputs += [mean[0], (var[0] + VARIANCE_FLOOR).sqrt()]
        statistics: LayerStatistics = {
            "xi": torch.stack(xi) if xi else inputs[0].new_zeros(0),
            "inputs": torch.stack(inputs),
        }
        return trees.apply(lambda leaf: leaf.to(precision), statistics)

    def zero_client_state(self, example: Tensor) -> MeasuredClient:
        """Return statistics and hyper-parameters of a client that has not been measured: zeros."""
        layers, count = len(self.normalised), len(self.network.names["params"])
        inputs = 2 * len(self.measured)
        return {
            "statistics": {"xi": example.new_zeros(layers), "inputs": example.new_zeros(inputs)},
            "hyper": {"beta": example.new_zeros(layers), "rates": example.new_zeros(count)},
        }

    # Meta-nets

    def initial_nets(
        self,
        context: BuildContext,
        example: Tensor,
        learns: tuple[str, ...],
        begin: float = INITIAL_BETA,
        sigmoid: bool = False,
    ) -> Tree:
        """Draw the initial weights of the meta-nets ``bn`` and ``lr`` that are learnt.

        Args:
            context: The context, with the seed and the learning rate of the run.
            example: A tensor with the precision and device of the result.
            learns: The names of the nets that are learnt.
            begin: The approximate initial output of BNNet.
            sigmoid: Whether a sigmoid bounds BNNet's outputs.
        """
        generator = torch.Generator().manual_seed(rng.torch_seed(context.seed, "meta-nets"))
        count, nets = len(self.network.names["params"]), dict[str, Tree]()
        if "bn" in learns:
            layers = len(self.normalised)
            nets["bn"] = BNNet(layers, layers, begin, sigmoid).init(generator, example)
        if "lr" in learns:
            nets["lr"] = LRNet(2 * len(self.measured), count).init(generator, example)
            nets["tilde"] = {"rates": example.new_full((count,), context.training.lr)}
        return nets

    def fixed_values(
        self,
        context: BuildContext,
        example: Tensor,
        learns: tuple[str, ...],
        beta: float,
        rules: tuple[str, ...] = (),
    ) -> Weights:
        """Return the hyper-parameters that no net predicts, and the `NET_RULES` in force."""
        values = {} if "bn" in learns else {"beta": example.new_tensor(beta)}
        if "lr" not in learns:
            values["rate"] = example.new_full((), context.training.lr)
        return {**values, **dict.fromkeys(rules, example.new_ones(()))}

    def hyperparameters(
        self, meta: Tree, fixed: Weights, statistics: LayerStatistics
    ) -> HyperParameters:
        """Return a client's ``beta`` and ``rates``, equation 4; ``fixed`` replaces missing nets."""
        layers, count = len(self.normalised), len(self.network.names["params"])
        if "constant" in fixed:
            statistics = trees.apply(torch.zeros_like, statistics)
        if "bn" in meta:
            net = BNNet(layers, layers, sigmoid="sigmoid" in fixed)
            beta = net(meta["bn"], statistics["xi"])
        else:
            beta = fixed["beta"].expand(layers)
        if "lr" in meta:
            factors = LRNet(2 * len(self.measured), count)(meta["lr"], statistics["inputs"])
            return {"beta": beta, "rates": factors * meta["tilde"]["rates"]}
        return {"beta": beta, "rates": fixed["rate"].expand(count)}

    # Passes through the network

    def train(
        self, params: Weights, buffers: Weights, stored: Weights, beta: Tensor, batch: Batch
    ) -> Output:
        """Return the outputs in training mode, which moves ``buffers``.

        The stored model's buffers are ``stored``.
        """
        around, moved_buffers = self._mixing(buffers, stored, beta, training=True)
        output = self.network.train(
            params, buffers, batch["x"], key=batch.get("key"), around=around
        )
        return output._replace(buffers={**output.buffers, **moved_buffers})

    def eval(
        self, params: Weights, buffers: Weights, stored: Weights, beta: Tensor, x: Tensor
    ) -> Tensor:
        """Return the outputs [b, classes] in evaluation mode; gradients of them may be nested."""
        around, _ = self._mixing(buffers, stored, beta, training=False)
        return self.network.eval(params, buffers, x, nested=True, around=around).outputs

    def _mixing(
        self, buffers: Weights, stored: Weights, beta: Tensor, training: bool
    ) -> tuple[Around, dict[str, Tensor]]:
        """Return functions that replace the normalising layers, and the buffers that they move."""
        moved_buffers: dict[str, Tensor] = {}

        def mixed_normalisation(index: int, name: str) -> Any:
            def normalise(layer: Any, inner: Any, x: Tensor) -> Tensor:
                momentum = 0.1 if layer.momentum is None else layer.momentum
                (mean, var), running = mixed_statistics(
                    x,
                    beta[index],
                    self._of(stored, name),
                    self._of(buffers, name),
                    training,
                    momentum,
                )
                if training:
                    moved_buffers[f"{name}.running_mean"], moved_buffers[f"{name}.running_var"] = (
                        running
                    )
                    moved_buffers[f"{name}.num_batches_tracked"] = (
                        buffers[f"{name}.num_batches_tracked"] + 1
                    )
                # By channel first: over x there are two operations, and so in every derivative.
                scale = (var + layer.eps).rsqrt()
                scale = scale if layer.weight is None else scale * layer.weight
                shift = -mean * scale if layer.bias is None else layer.bias - mean * scale
                shape = (-1, *[1] * (x.dim() - 2))
                return x * scale.reshape(shape) + shift.reshape(shape)

            return normalise

        return {
            name: mixed_normalisation(i, name) for i, name in enumerate(self.normalised)
        }, moved_buffers

    def restarted_buffers(self, buffers: Weights) -> Weights:
        """Return the buffers with the running statistics of a new layer: 0 and 1."""
        new_buffers = dict(buffers)
        for name in self.normalised:
            for key, value in (("running_mean", 0), ("running_var", 1), ("num_batches_tracked", 0)):
                new_buffers[f"{name}.{key}"] = torch.full_like(buffers[f"{name}.{key}"], value)
        return new_buffers

    def mixed_buffers(self, buffers: Weights, stored: Weights, beta: Tensor) -> Weights:
        """Return buffers with which the plain network evaluates as the mixing one does."""
        mixed_buffers = dict(buffers)
        for index, name in enumerate(self.normalised):
            for key in (f"{name}.running_mean", f"{name}.running_var"):
                mixed_buffers[key] = (1 - beta[index]) * stored[key] + beta[index] * buffers[key]
        return mixed_buffers

    def running_statistics(self, buffers: Weights) -> Weights:
        """Return the running statistics among buffers; mixing needs those of the stored model."""
        keys = [f"{n}.running_{k}" for n in self.normalised for k in ("mean", "var")]
        return {key: buffers[key] for key in keys}

    @staticmethod
    def _of(buffers: Weights, name: str) -> Statistics:
        return buffers[f"{name}.running_mean"], buffers[f"{name}.running_var"]

    # Fine-tuning

    def work_tree(
        self, params: Weights, buffers: Weights, stored: Weights, hyper: HyperParameters
    ) -> TuningWork:
        """Return the state of a `tuning_pass`: a model and its hyper-parameters."""
        names = self.network.names["params"]
        rates = {name: hyper["rates"][i] for i, name in enumerate(names)}
        return {
            "params": {name: params[name] for name in names},
            "buffers": dict(buffers),
            "stored": self.running_statistics(stored),
            "beta": hyper["beta"],
            "rates": rates,
        }

    def loss(self, server: object, work: TuningWork, batch: Batch) -> tuple[Tensor, Tree]:
        """Return the task's loss, with mixed statistics."""
        output = self.train(work["params"], work["buffers"], work["stored"], work["beta"], batch)
        return self.task.loss(output.outputs, batch), {"buffers": output.buffers}


def _sums(x: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """Sum x [b, channels, n] and its squares by channel, and count the numbers."""
    wide = x.double()
    counts = weight.double()
    first, second = wide.sum(2), wide.square().sum(2)
    return {
        "sum": counts @ first,
        "square": counts @ second,
        "count": counts.sum() * x.shape[2],
    }


def _moments(sums: Mapping[str, Tensor]) -> Statistics:
    """Mean and unbiased variance by channel; 0 without numbers."""
    count = sums["count"]
    mean = sums["sum"] / count.clamp(min=1)
    var = (sums["square"] - count * mean.square()) / (count - 1).clamp(min=1)
    return mean, var.clamp(min=0)
