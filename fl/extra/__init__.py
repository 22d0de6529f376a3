"""Extras: features over the core, each of which can be taken away without changing the core.

The core never imports an extra. Where it lets extras take part it has a `fl.base.seams.Seam`, and
calls the functions that `HOOKS` lists for it.

Without its lines in `HOOKS` an extra is gone, and the core works as before:

- `rehearsal`: what does not fit together fails in training, not when a study is planned.
- `published_cells`: reports have only measured numbers, and grids only those of the study.
"""

from __future__ import annotations

HOOKS: dict[str, tuple[str, ...]] = {
    "study checks": ("fl.extra.published_cells:check_tables",),
    "entry values": ("fl.extra.published_cells:published_values",),
    "scenario checks": ("fl.extra.rehearsal:rehearse",),
    "published cells": ("fl.extra.published_cells:published_cells",),
}
"""Functions by the seam that they join, as ``module:function``, in the order of calls."""
