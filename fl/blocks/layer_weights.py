"""Weights of layers by the layers' names, for methods that share some layers only."""

from __future__ import annotations

from collections.abc import Iterable

from fl.api import FedloomError, Network


def weights_of_layers(network: Network, layers: Iterable[str] | None) -> frozenset[str]:
    """Return the names of the weights and buffers of these layers, and of all layers inside them.

    Args:
        network: The network.
        layers: Names of layers, such as ``classifier`` or ``blocks.2``; None: the head.

    Raises:
        FedloomError: If a name is no layer with weights or buffers.
    """
    if layers is None:
        return network.head
    names = [name for group in network.names.values() for name in group]
    chosen: set[str] = set()
    for layer in layers:
        inside = {name for name in names if name.startswith(f"{layer}.")}
        if not inside:
            available = dict.fromkeys(name.rpartition(".")[0] for name in names)
            raise FedloomError(
                f"layers: the model has no layer {layer!r} with weights",
                ", ".join(name for name in available if name),
            )
        chosen |= inside
    return frozenset(chosen)
