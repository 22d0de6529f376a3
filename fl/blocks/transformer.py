"""Layers of transformers: self-attention and a small network at every position."""

from __future__ import annotations

from torch import nn


def transformer_encoder(
    depth: int, dim: int, heads: int, hidden: int, dropout: float, *, pre_norm: bool = False
) -> nn.Sequential:
    """Return ``depth`` of PyTorch's encoder layers, from [b, positions, dim] to the same shape.

    Dropout acts on the outputs of linear layers, as in Dosovitskiy et al. (2021), and never on
    weights of attention.

    Args:
        depth: The number of layers.
        dim: The width of a position.
        heads: The number of attention heads.
        hidden: The width of the small network at every position.
        dropout: The probability of dropout.
        pre_norm: Whether the input of each half of a layer is normalised, with GELU (Dosovitskiy et
            al. 2021); otherwise its output is, with ReLU (Vaswani et al. 2017).

    Raises:
        ValueError: If ``heads`` does not divide ``dim``.
    """
    if dim % heads:
        raise ValueError(f"{heads} heads do not divide a width of {dim}")
    layers = [
        nn.TransformerEncoderLayer(
            dim,
            heads,
            hidden,
            dropout,
            "gelu" if pre_norm else "relu",
            batch_first=True,
            norm_first=pre_norm,
        )
        for _ in range(depth)
    ]
    for layer in layers:
        layer.self_attn.dropout = 0.0
    return nn.Sequential(*layers)
