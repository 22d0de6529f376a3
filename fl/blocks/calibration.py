"""Calibration of a client's logits by its numbers of training samples by class.

A client's softmax loss then takes its own class distribution into account, so that the model itself
need not. Evaluation uses the logits as they are.

A class without a sample has one rule: it is left out of the softmax, which is the limit of each of
these losses when the number of samples falls to 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from fl.api import ClientFacts, Forward, Method, Pass, Term, Tree, classification_loss

AnyMethod = TypeVar("AnyMethod", bound=Method)

Calibrate = Callable[[Tensor, Tensor], Tensor]
"""Function from logits [b, C] and numbers of samples by class [C] to logits [b, C]."""


def calibrated_loss(calibrate: Calibrate) -> Term:
    """Return the cross-entropy of calibrated logits; for a method of `with_class_counts`."""

    def term(forward: Forward) -> Tensor:
        outputs = forward.output.outputs
        counts = forward.work["counts"].to(outputs.dtype)
        return classification_loss(calibrate(outputs, counts), forward.batch)

    return term


def balanced_logits(outputs: Tensor, counts: Tensor) -> Tensor:
    """Return z_c + log n_c.

    Ren et al. Balanced Meta-Softmax for Long-Tailed Visual Recognition. NeurIPS 2020, equation 4.
    """
    return outputs + counts.log()


def margin_logits(outputs: Tensor, counts: Tensor, tau: float) -> Tensor:
    """Return z_c - tau n_c^(-1/4) (FedLC: Zhang et al. ICML 2022)."""
    margin = tau * counts.clamp(min=1) ** -0.25
    return torch.where(counts > 0, outputs - margin, -float("inf"))


def restricted_logits(outputs: Tensor, counts: Tensor, alpha: float) -> Tensor:
    """Return z_c, and alpha z_c for a class without samples (FedRS: Li and Zhan. KDD 2021).

    This is the exception from the rule for such classes, as it is what the method is about.
    """
    return torch.where(counts > 0, outputs, alpha * outputs)


def with_class_counts(method: AnyMethod) -> AnyMethod:
    """Return the method whose passes have the client's class counts in their state, ``counts``."""

    def counting(pass_: Pass) -> Pass:
        def begin(server: Tree, client: ClientFacts) -> Tree:
            return {**pass_.begin(server, client), "counts": client["counts"]}

        return replace(pass_, begin=begin)

    passes = tuple(counting(p) if isinstance(p, Pass) else p for p in method.passes)
    return replace(method, passes=passes)
