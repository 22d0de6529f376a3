"""QSGD: each number of an upload is rounded at random to one of a few levels.

Alistarh, Grubic, Li, Tomioka, Vojnovic. QSGD: Communication-Efficient SGD via Gradient Quantization
and Encoding. NeurIPS 2017. arXiv:1610.02132.

Section 3.1, with the whole upload as one vector. A number is sent as its sign and its level, by
`bits` bits, in addition to the norm of the vector; the paper's code of varying length is not used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from fl.api import ALL_TASKS, Bound, BuildContext, RoundUploads, UploadFilter, UploadSize

FLOAT_BITS = 32


@dataclass(frozen=True)
class Quantize:
    """Random rounding to few levels.

    Attributes:
        bits: bits b of a number, for s = 2^(b - 1) - 1 levels besides 0, and a sign; 32 leaves
            uploads as they are.
    """

    bits: Annotated[int, Bound(low=2, high=FLOAT_BITS)]

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> UploadFilter | None:
        """Return a filter that replaces v_i by ||v|| sign(v_i) l / s.

        l is the integer below |v_i| s / ||v|| or the one above, at random, so that the mean is v_i.
        """
        if self.bits == FLOAT_BITS:
            return None
        levels = 2 ** (self.bits - 1) - 1

        def apply(uploads: RoundUploads) -> RoundUploads:
            rows = uploads.rows.double()
            length = rows.norm(dim=1, keepdim=True)
            scaled = rows.abs() * levels / length.where(length > 0, 1.0)
            level = (scaled + uploads.uniform("wire quantize")).floor().clamp(max=levels)
            rounded = length * rows.sign() * level / levels
            return replace(uploads, rows=rounded.to(uploads.rows.dtype))

        def upload_size(size: UploadSize) -> UploadSize:
            return replace(
                size,
                bits_per_number=min(self.bits, size.bits_per_number),
                extra_bits=size.extra_bits + FLOAT_BITS,
            )

        return UploadFilter("quantize", apply, upload_size)
