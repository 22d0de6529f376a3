"""Random-k: random entries of an upload are sent, and the rest is added to the next one.

Stich, Cordonnier, Jaggi. Sparsified SGD with Memory. NeurIPS 2018. arXiv:1809.07599.

Algorithm 1, for the change of weights in a round. Indices follow from a seed of 64 bits, which is
sent. Without feedback numbers are multiplied by d / k, so that their mean is the upload.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from fl.api import ALL_TASKS, BuildContext, RoundUploads, Share, UploadFilter, UploadSize
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

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> UploadFilter | None:
        """Return a filter that keeps k random numbers of each upload."""
        if self.share == 1:
            return None

        def apply(uploads: RoundUploads) -> RoundUploads:
            update = uploads.rows + uploads.client_states["rest"] if self.feedback else uploads.rows
            length = update.shape[1]
            k = sent_count(self.share, length)
            indices = uploads.uniform("wire random-k").topk(k, dim=1).indices
            upload = torch.zeros_like(update).scatter(1, indices, update.gather(1, indices))
            if not self.feedback:
                return replace(uploads, rows=upload * (length / k))
            return replace(uploads, rows=upload, client_states={"rest": update - upload})

        def upload_size(size: UploadSize) -> UploadSize:
            return UploadSize(
                sent_count(self.share, size.number_count),
                size.bits_per_number,
                size.extra_bits + SEED_BITS,
            )

        return UploadFilter(
            "random-k",
            apply,
            upload_size,
            init_client_state=no_remainder if self.feedback else lambda row: {},
        )
