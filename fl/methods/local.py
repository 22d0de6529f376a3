"""Local: every client trains alone; nothing is shared. The baseline that collaboration must beat.

The usual control, used for example by: Smith, Chiang, Sanjabi, Talwalkar. Federated Multi-Task
Learning. NeurIPS 2017. arXiv:1705.10467.

Family: reference. Exchanged: nothing. Local: model. Key: `lr`.

A round is only a stretch of training here, so the optimizer's state is kept from round to round.
"""

from __future__ import annotations

from fl.api import BuildContext, Method, all_weights, declare, recipe


@declare("personal", tasks="any", independent=True, modalities=True)
class Local:
    """Local training, without hyper-parameters."""

    def build(self, context: BuildContext) -> Method:
        """Every weight stays local."""
        return recipe(context, local=all_weights, keep_optimizer=True)
