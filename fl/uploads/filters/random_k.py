"""Random-k: random entries of an upload are sent, and the rest is added to the next one.

Stich, Cordonnier, Jaggi. Sparsified SGD with Memory. NeurIPS 2018. arXiv:1809.07599.

Algorithm 1, for the change of weights in a round. Indices follow from a seed of 64 bits, which is
sent. Without feedback numbers are multiplied by d / k, so that their mean is the upload.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from fl.api import ANY, BuildContext, Crossing, Message, Share, Stage
from fl.uploads.filters.top_k import no_remainder, sent_count

SEED_BITS = 64


@dataclass(frozen=True)
class RandomK:
    """Random entries of each upload.

    Attributes:
        share: k, as a share of the length d of an upload; at least one number is sent. 1 sends all.
        feedback: whether the rest is added to the client's next upload.
    """

    share: Share
    feedback: bool = True

    tasks: ClassVar = ANY

    def build(self, context: BuildContext) -> Stage | None:
        """Return a filter that keeps k random numbers of each upload."""
        if self.share == 1:
            return None

        def apply(crossing: Crossing) -> Crossing:
            update = crossing.rows + crossing.kept["rest"] if self.feedback else crossing.rows
            length = update.shape[1]
            k = sent_count(self.share, length)
            indices = crossing.uniform("wire random-k").topk(k, dim=1).indices
            upload = torch.zeros_like(update).scatter(1, indices, update.gather(1, indices))
            if not self.feedback:
                return replace(crossing, rows=upload * (length / k))
            return replace(crossing, rows=upload, kept={"rest": update - upload})

        def message(sent: Message) -> Message:
            return Message(sent_count(self.share, sent.numbers), sent.bits, sent.more + SEED_BITS)

        return Stage(
            "random-k", apply, message, kept=no_remainder if self.feedback else lambda row: {}
        )
