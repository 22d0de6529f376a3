"""Virtual images: what clients and the server distil, at first and at last.

After figures 15 to 17 of: Huang, Jin, Zhao, Xu, Li. Federated Learning on Virtual Heterogeneous
Data with Local-Global Dataset Distillation. TMLR 2024. arXiv:2303.02278.

Reads the traces ``local`` [rounds, clients, classes x kept, ...] and ``global`` [rounds, images,
...] of methods that have them (`fedlgd`). The table says how far the images moved from the first
round that was evaluated to the last: the root mean squared difference of pixels, which are from 0
to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from fl.analyses import Panel, Result, Source, TableRow, first_seeds, keys, tabled, with_traces
from fl.analyses.inversion import side_by_side
from fl.base.fields import Count

NAMES = ("local", "global")


@dataclass(frozen=True)
class VirtualImages:
    """Virtual images of clients.

    Attributes:
        clients: Largest number of clients.
        images: Largest number of images of each client.
    """

    clients: Count = 5
    images: Count = 10

    traces: ClassVar = NAMES

    def read(self, runs: Sequence[Source]) -> Result:
        """Return how far images moved, by setting, method, kind and seed; pictures of some."""
        shown = {run.run for run in first_seeds(runs)}
        rows: list[TableRow] = []
        panels: list[Panel] = []
        traced, notes = with_traces(runs, *NAMES)
        for run, traces in traced:
            rounds, pixels = traces["round"].tolist(), run.simulation().arrays.pixels
            for kind in NAMES:
                first, last = (pixels(traces[kind][at]).clamp(0, 1) for at in (0, -1))
                moved = float((first - last).square().mean().sqrt())
                rows.append({**keys(run), "images": kind, "moved": moved})
                if run.run in shown:
                    panels += self._panels(run, kind, (first, last), (rounds[0], rounds[-1]))
        return Result(
            table=tabled(runs, rows, "images", "moved"),
            columns={"moved": "moved (RMS)"},
            caption="How far virtual images moved between the first and the last evaluated round: "
            "root mean squared difference of pixels from 0 to 1.",
            panels=tuple(panels),
            figure="Virtual images, above after the first evaluated round and below after the "
            "last, by the run of the lowest seed.",
            notes=notes,
        )

    def _panels(
        self, run: Source, kind: str, images: tuple[Tensor, Tensor], rounds: tuple[int, int]
    ) -> list[Panel]:
        """A picture of the server's images, or one of each client's."""
        owners: list[tuple[str, list[Tensor]]] = [("global", list(images))]
        if kind == "local":
            count = min(self.clients, images[0].shape[0])
            owners = [(f"client {k}", [sent[k] for sent in images]) for k in range(count)]
        panels = []
        for title, pair in owners:
            step = max(1, len(pair[0]) // self.images)
            lines = [np.asarray(stack[::step][: self.images]) for stack in pair]
            alt = f"{len(lines[0])} virtual images, {title}, after rounds {rounds[0]} and "
            picture = side_by_side(lines)
            panels.append(Panel(run.setting, run.method, title, f"{alt}{rounds[1]}.", picture))
        return panels
