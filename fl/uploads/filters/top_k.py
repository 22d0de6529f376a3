"""Top-k: of an upload the largest numbers alone are sent, the rest is added to the next one.

Stich, Cordonnier, Jaggi. Sparsified SGD with Memory. NeurIPS 2018. arXiv:1809.07599.

Algorithm 1, for what a client changed in a round. What was not sent stays with the client until it
takes part again. A number is sent with its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fl.api import ANY, BuildContext, Crossing, Message, Share, Stage


@dataclass(frozen=True)
class TopK:
    """share: k, by the length of an upload; at least one number is sent. 1 is all.
    feedback: whether what is not sent is added to the client's next upload.
    """

    share: Share
    feedback: bool = True

    tasks: ClassVar = ANY

    def build(self, context: BuildContext) -> Stage | None:
        """A stage that keeps the numbers with the largest absolute values."""
        if self.share == 1:
            return None

        def apply(crossing: Crossing) -> Crossing:
            update = crossing.rows + crossing.kept["rest"] if self.feedback else crossing.rows
            indices = update.abs().topk(count(self.share, update.shape[1]), dim=1).indices
            upload = torch.zeros_like(update).scatter(1, indices, update.gather(1, indices))
            client_state = {"rest": update - upload} if self.feedback else {}
            return replace(crossing, rows=upload, kept=client_state)

        def message(sent: Message) -> Message:
            numbers = count(self.share, sent.numbers)
            index_bits = math.ceil(math.log2(sent.numbers)) if sent.numbers > 1 else 0
            return Message(numbers, sent.bits, sent.more + numbers * index_bits)

        return Stage(
            "top-k", apply, message, kept=no_remainder if self.feedback else lambda row: {}
        )


def no_remainder(row: Tensor) -> Mapping[str, Tensor]:
    """Nothing is left of uploads before the first."""
    return {"rest": row}


def count(share: float, length: int) -> int:
    """How many of so many numbers are sent."""
    return max(1, round(share * length))
