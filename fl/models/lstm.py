"""A stacked LSTM over characters or words, with a classifier after the last of the text.

Caldas, Duddu, Wu, Li, Konečný, McMahan, Smith, Talwalkar. LEAF: A Benchmark for Federated Settings.
2018. arXiv:1812.01097 (its Shakespeare model: embedding 8, two layers of 256).

Gates i, f, g, o of a layer with input x_t: c_t = s(f) c_{t-1} + s(i) tanh(g), h_t = s(o) tanh(c_t),
all four from W x_t + U h_{t-1} + b (Hochreiter and Schmidhuber 1997). It is written in plain tensor
operations, because PyTorch's own LSTM cannot be stacked over clients (torch.func.vmap has no rule
for it). Its initialisation is PyTorch's, uniform up to 1/sqrt(hidden), but with one bias, not two,
and 1 more for the forget gate, as in the TensorFlow cell that LEAF uses (Jozefowicz, Zaremba,
Sutskever. An Empirical Exploration of Recurrent Network Architectures. ICML 2015). Without it, a
cell loses half of its content at every token in the beginning.

Data sets fill a short text up with one token, mostly their last, which then also stands for unknown
words. The classifier reads the state before that tail: after it, nothing is left of a short text.
LEAF's code reads the state after the tail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fl.api import Count, Index


@dataclass(frozen=True)
class LSTM:
    """A stacked LSTM.

    Attributes:
        tokens: number of characters or words, numbered from 0; a plan takes it from the data set.
        embedding: width of their vectors.
        hidden: width of each layer.
        layers: number of layers.
        padding: token that fills texts up, taken from the data set; without one, the last token.
    """

    tokens: Count = 80
    embedding: Count = 8
    hidden: Count = 256
    layers: Count = 2
    padding: Index | None = None

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model of tokens (length,), or (texts, length) read one after the other."""
        return _LSTM(self, classes)


class _LSTM(nn.Module):
    def __init__(self, choices: LSTM, classes: int) -> None:
        super().__init__()
        self.padding = choices.tokens - 1 if choices.padding is None else choices.padding
        self.embedding = nn.Embedding(choices.tokens, choices.embedding)
        widths = [choices.embedding, *[choices.hidden] * (choices.layers - 1)]
        self.layers = nn.ModuleList(_Layer(width, choices.hidden) for width in widths)
        self.classifier = nn.Linear(choices.hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            # A program of every token, layer and step is too large to compile in useful time. The
            # compiler skips a function that raises, which then runs uncompiled.
            raise RuntimeError("an LSTM is not compiled")
        tokens = x.flatten(1)
        sequence = self.embedding(tokens)
        for layer in self.layers:
            sequence = layer(sequence)
        logits: Tensor = self.classifier(_state_at_end(sequence, tokens != self.padding))
        return logits


def _state_at_end(sequence: Tensor, is_text: Tensor) -> Tensor:
    """Return the state [b, hidden] at the last token of each text; at the first without any.

    Args:
        sequence: States, [b, t, hidden].
        is_text: Whether a token is none that fills the text up, [b, t].
    """
    positions = torch.arange(is_text.shape[1], device=is_text.device)
    last = (positions * is_text).amax(dim=1, keepdim=True)
    # A product with zeros and a one: unlike an index, it is summed in a fixed order in backward.
    weights = (positions == last).to(sequence.dtype).unsqueeze(1)
    return (weights @ sequence).squeeze(1)


class _Layer(nn.Module):
    """Layer from sequences [b, t, inputs] to hidden states [b, t, hidden]."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.input = nn.Parameter(torch.empty(4 * hidden, inputs))
        self.state = nn.Parameter(torch.empty(4 * hidden, hidden))
        self.bias = nn.Parameter(torch.empty(4 * hidden))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(hidden), 1 / math.sqrt(hidden))
        with torch.no_grad():
            self.bias[hidden : 2 * hidden] += 1

    def forward(self, x: Tensor) -> Tensor:
        from_inputs = x @ self.input.T + self.bias
        hidden = torch.zeros_like(from_inputs[:, 0, : self.state.shape[1]])
        cell, states = hidden, []
        for step in from_inputs.unbind(dim=1):
            i, f, g, o = (step + hidden @ self.state.T).chunk(4, dim=1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
            states.append(hidden)
        return torch.stack(states, dim=1)
