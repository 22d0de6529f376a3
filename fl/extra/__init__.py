"""Extras: features over the core, each of which can be taken away without changing the core.

The core never imports an extra. Where it lets extras take part it has a `fl.base.seams.Seam`, and
calls the functions that `HOOKS` lists for it.
"""

from __future__ import annotations

HOOKS: dict[str, tuple[str, ...]] = {
    "method built": ("fl.extra.uploads:with_upload_filters",),
}
"""By name of a seam, the functions that join it, as ``module:function``, in the order of calls."""
