"""Extras: features over the core, each of which can be taken away without changing the core.

The core never imports an extra. Where it lets extras take part it has a `fl.base.seams.Seam`, and
calls the functions that `HOOKS` lists for it.
"""

from __future__ import annotations

HOOKS: dict[str, tuple[str, ...]] = {
    "method built": ("fl.extra.uploads:with_upload_filters",),
    "published cells": ("fl.extra.published_cells:published_cells",),
    "curves": ("fl.extra.loggers:CurveLoggers",),
    "costs": ("fl.extra.costs:measure_or_explain",),
    "missing runs": ("fl.extra.adoption:adopt",),
    "store commands": ("fl.extra.extra_commands:add_store_commands",),
    "commands": ("fl.extra.extra_commands:add_commands",),
}
"""Functions by the seam that they join, as ``module:function``, in the order of calls."""
