"""Synthetic clients whose inputs and labelling functions differ to a chosen degree.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar and V. Smith. Federated Optimization in
Heterogeneous Networks. MLSys 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fl.base.errors import DataError
from fl.base.fields import Count, NonNegative, Positive, Seed
from fl.base.rng import generator
from fl.data.download import Source
from fl.data.prepared import Writer

INPUTS, HIDDEN, CLASSES = 60, 20, 10
MIN_SAMPLES = 50
"""Smallest number of samples of a client if numbers are drawn."""
MAX_SAMPLES = 10**9
"""Largest number of samples of all clients, 240 GB with 60 inputs each."""

Layer = tuple[np.ndarray, np.ndarray]
"""A weight matrix ``[out, in]`` and a bias ``[out]``."""


@dataclass(frozen=True)
class Synthetic:
    """Inputs in R^60 and ten classes; every client k draws its own labelling network.

    Inputs: x ~ N(v_k, Sigma), Sigma diagonal with Sigma_jj = j^-1.2, each element of v_k ~
    N(B_k, 1), B_k ~ N(0, beta). Labels: ``one-layer`` y = argmax softmax(W x + b) (FedProx, Li et
    al. 2020); ``two-layer`` y = argmax softmax(W2 ((W1 x + b1) / T) + b2) with 20 hidden units. The
    elements of each W and b ~ N(u, 1), with u ~ N(0, alpha) drawn per client and layer and shared
    by W and b.

    The defaults are those of the two-layer set. FedProx's set is ``generator: one-layer``,
    ``clients: 30``, ``samples: null`` with alpha = beta of 0, 0.5 or 1, without a temperature.

    Attributes:
        generator: Labelling network, see above; `one-layer` is FedProx's.
        alpha: Standard deviation over clients of the mean of their labelling weights.
        beta: Standard deviation over clients of the mean of their inputs.
        clients: Number of clients.
        samples: Number of samples of each client; null: whole numbers from lognormal(4, 2), plus
            50.
        temperature: Divisor T of the hidden layer, for two layers only.
        iid: Whether all clients have the same input distribution, with v_k = 0, and the labelling
            network of client 0 (FedProx's Synthetic-IID).
        seed: Seed of all random numbers.
    """

    generator: Literal["one-layer", "two-layer"] = "two-layer"
    alpha: NonNegative = 0.0
    beta: NonNegative = 0.0
    clients: Count = 8
    samples: Count | None = 5000
    temperature: Positive = 2.0
    iid: bool = False
    seed: Seed = 0

    shape: ClassVar[tuple[int, ...]] = (INPUTS,)
    classes: ClassVar[int] = CLASSES
    sources: ClassVar[tuple[Source, ...]] = ()
    published_splits: ClassVar[tuple[str, ...]] = ()

    @property
    def natural_clients(self) -> int:
        """Number of natural clients."""
        return self.clients

    @property
    def size(self) -> int:
        """Number of samples of all clients.

        Raises:
            DataError: If it exceeds `MAX_SAMPLES`.
        """
        total = self.clients * (MIN_SAMPLES if self.samples is None else self.samples)
        if total <= MAX_SAMPLES and self.samples is None:
            total = sum(self.sizes())
        if total > MAX_SAMPLES:
            raise DataError(
                f"synthetic: {self.clients:,} clients would hold {total:,} samples or more."
                f" Allowed: {MAX_SAMPLES:,} samples over all clients"
            )
        return total

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x float32 ``[samples, 60]``, y int64 and client int32 ``[samples]``."""
        for client, size in enumerate(self.sizes()):
            x = self.inputs(client, size)
            writer.append("x", x)
            writer.append("y", self.label(client, x))
            writer.append("client", np.full(size, client, np.int32))
        writer.describe([str(label) for label in range(self.classes)])

    def sizes(self) -> list[int]:
        """Return the number of samples of each client."""
        if self.samples is not None:
            return [self.samples] * self.clients
        drawn = generator(self.seed, "synthetic sizes").lognormal(4.0, 2.0, self.clients)
        return [int(size) + MIN_SAMPLES for size in drawn]

    def inputs(self, client: int, size: int) -> np.ndarray:
        """Return a client's inputs, float32 [size, 60]."""
        rng = generator(self.seed, "synthetic inputs", client)
        mean = rng.normal(rng.normal(0.0, self.beta), 1.0, INPUTS) * (not self.iid)
        sd = np.arange(1, INPUTS + 1) ** -0.6
        return (mean + sd * rng.standard_normal((size, INPUTS))).astype(np.float32)

    def layers(self, client: int) -> list[Layer]:
        """Return the layers of a client's labelling network, from the input on."""
        rng = generator(self.seed, "synthetic weights", 0 if self.iid else client)
        hidden = [HIDDEN] if self.generator == "two-layer" else []
        widths = [INPUTS, *hidden, self.classes]
        layers = []
        for width, height in pairwise(widths):
            u = rng.normal(0.0, self.alpha)
            layers.append((rng.normal(u, 1.0, (height, width)), rng.normal(u, 1.0, height)))
        return layers

    def label(self, client: int, x: np.ndarray) -> np.ndarray:
        """Return the labels, int64 [n], that a client's network gives inputs [n, 60].

        The softmax is left out, because it does not change the argmax.
        """
        *hidden, (weight, bias) = self.layers(client)
        out = x.astype(np.float64)
        for inner, offset in hidden:
            out = (out @ inner.T + offset) / self.temperature
        return (out @ weight.T + bias).argmax(axis=1)
