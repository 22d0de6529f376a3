"""Ditto: FedAvg, and beside it a model of each client's own that is held near the shared one.

Li, Hu, Beirami, Smith. Ditto: Fair and Robust Federated Learning Through Personalization. ICML
2021. arXiv:2012.04221.

Both models see the same batches and take as many steps. The optimizer's state outlives a round, as
in the reference implementation of FL4Health. Terms that a study adds hold the client's own model.
"""

from __future__ import annotations

from dataclasses import replace

from fl.api import Method, NonNegative, Setting, declare, everything, recipe, task_loss
from fl.parts.pair import pair
from fl.parts.proximal import proximal


@declare("global", "personal", tasks="any", modalities=True)
class Ditto:
    """lam: lambda of (lambda/2) ||v_k - w||^2, equation 2; 0 is Local."""

    lam: NonNegative = 0.1

    def build(self, setting: Setting) -> Method:
        """FedAvg paired with Local under a proximal term."""
        terms = (task_loss, proximal(self.lam)) if self.lam else (task_loss,)
        return pair(
            recipe(replace(setting, terms=()), keep_optimizer=True),
            recipe(setting, terms=terms, local=everything, keep_optimizer=True),
        )
