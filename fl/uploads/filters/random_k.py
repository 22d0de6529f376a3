"""Random-k: of an upload some numbers are sent, drawn at random, the rest is added to the next one.

Stich, Cordonnier, Jaggi. Sparsified SGD with Memory. NeurIPS 2018. arXiv:1809.07599.

Algorithm 1, for what a client changed in a round. Places follow from a seed of 64 bits, which is
sent. Without feedback numbers are multiplied by d / k, so that their mean is the upload.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from fl.api import ANY, BuildContext, Crossing, Message, Share, Stage
from fl.uploads.filters.top_k import count, rest

SEED = 64


@dataclass(frozen=True)
class RandomK:
    """share: k, by the length d of an upload; at least one number is sent. 1 is all.
    feedback: whether what is not sent is added to the client's next upload.
    """

    share: Share
    feedback: bool = True

    tasks: ClassVar = ANY

    def build(self, context: BuildContext) -> Stage | None:
        """A stage that keeps k numbers of each upload, every client and round others."""
        if self.share == 1:
            return None

        def apply(crossing: Crossing) -> Crossing:
            whole = crossing.rows + crossing.kept["rest"] if self.feedback else crossing.rows
            length = whole.shape[1]
            sent_of = count(self.share, length)
            places = crossing.uniform("wire random-k").topk(sent_of, dim=1).indices
            sent = torch.zeros_like(whole).scatter(1, places, whole.gather(1, places))
            if not self.feedback:
                return replace(crossing, rows=sent * (length / sent_of))
            return replace(crossing, rows=sent, kept={"rest": whole - sent})

        def message(sent: Message) -> Message:
            return Message(count(self.share, sent.numbers), sent.bits, sent.more + SEED)

        return Stage("random-k", apply, message, kept=rest if self.feedback else lambda row: {})
