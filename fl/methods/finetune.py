"""Fine-tuning: every client trains a stored shared model further on its own data, alone.

Yu, Bagdasaryan, Shmatikov. Salvaging Federated Learning by Local Adaptation. 2020.
arXiv:2002.04758.

Family: stored model. Exchanged: nothing. Local: model. Key: `lr`.

With FedAvg as the start this is the FedAvg-FT baseline, which many personalised methods fail to
beat. It is a stage of its own: its entry names the entry from which it starts (``start: fedavg``),
its round 0 is that model before personalisation, and a round is an epoch unless the study says
otherwise.
"""

from __future__ import annotations

from fl.api import BuildContext, Method, all_weights, declare, recipe


@declare(
    "personal",
    tasks="any",
    independent=True,
    modalities=True,
    starts="any",
    training={"rounds": 5, "local_epochs": 1},
)
class FineTune:
    """Fine-tuning, without hyper-parameters of its own."""

    def build(self, context: BuildContext) -> Method:
        """Every weight is the client's own from the start."""
        return recipe(context, local=all_weights, keep_optimizer=True)
