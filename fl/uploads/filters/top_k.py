"""Top-k: the largest entries of an upload are sent, and the rest is added to the next one.

Stich, Cordonnier, Jaggi. Sparsified SGD with Memory. NeurIPS 2018. arXiv:1809.07599.

Algorithm 1, for the change of weights in a round. The rest stays with the client until it takes
part again. A number is sent with its index.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fl.api import ALL_TASKS, BuildContext, RoundUploads, Share, UploadFilter, UploadSize


@dataclass(frozen=True)
class TopK:
    """The largest entries of each upload.

    Attributes:
        share: k, as a share of the length of an upload; at least one number is sent. 1 sends all.
        feedback: whether the rest is added to the client's next upload.
    """

    share: Share
    feedback: bool = True

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> UploadFilter | None:
        """Return a filter that keeps the numbers with the largest absolute values."""
        if self.share == 1:
            return None

        def apply(uploads: RoundUploads) -> RoundUploads:
            update = uploads.rows + uploads.client_states["rest"] if self.feedback else uploads.rows
            indices = update.abs().topk(sent_count(self.share, update.shape[1]), dim=1).indices
            upload = torch.zeros_like(update).scatter(1, indices, update.gather(1, indices))
            client_state = {"rest": update - upload} if self.feedback else {}
            return replace(uploads, rows=upload, client_states=client_state)

        def upload_size(size: UploadSize) -> UploadSize:
            numbers = sent_count(self.share, size.number_count)
            index_bits = math.ceil(math.log2(size.number_count)) if size.number_count > 1 else 0
            return UploadSize(numbers, size.bits_per_number, size.extra_bits + numbers * index_bits)

        return UploadFilter(
            "top-k",
            apply,
            upload_size,
            init_client_state=no_remainder if self.feedback else lambda row: {},
        )


def no_remainder(row: Tensor) -> Mapping[str, Tensor]:
    """Return the remainder before the first upload, zero."""
    return {"rest": row}


def sent_count(share: float, length: int) -> int:
    """Return how many of ``length`` numbers are sent."""
    return max(1, round(share * length))
