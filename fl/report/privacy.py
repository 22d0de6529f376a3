"""Differential privacy of a run with clipped uploads and noise: epsilon for a given delta.

A round draws m of N clients, every set of m with the same probability, and adds noise to the sum of
their uploads, whose norms are at most the clip S. Two populations are neighbours if one client is
exchanged: the sum changes by at most 2 S, so noise of standard deviation z S has the multiplier
z / 2. Rounds compose. The package dp-accounting computes two bounds, and the smaller one is
reported: that of Wang et al., theorem 27, if not all clients take part in a round, and that of
Mironov, corollary 3, which does not use that clients are drawn. Epsilon is of the shared model
alone, after the completed rounds of a run. Choices on validation data are not counted: the point of
a grid, and when a run stops early.
"""

from __future__ import annotations

from importlib.util import find_spec

from fl.store.run_record import Costs, RunRecord, UnknownCosts

PRIVACY = {"epsilon": "float64", "delta": "float64", "epsilon_lacks": "string"}
"""Columns of the runs table: epsilon and its delta, or why a run with noise has none."""

CITATION = (
    "Wang, Balle, Kasiviswanathan. Subsampled Renyi Differential Privacy and Analytical Moments "
    "Accountant. AISTATS 2019. arXiv:1808.00087; Mironov. Renyi Differential Privacy. CSF 2017. "
    "arXiv:1702.07476."
)
"""Works by which epsilon is computed."""

STAGE, PACKAGE = "noise", "dp_accounting"
UNCOUNTED = "dp-accounting is not installed (`make extras`)"
"""Reason why a run has no epsilon; unlike other reasons, it ends when the package is installed."""


def installed() -> bool:
    """Whether the package that `epsilon` needs is installed."""
    return find_spec(PACKAGE) is not None


def epsilon_columns(record: RunRecord) -> dict[str, float | str]:
    """Return the columns `PRIVACY` of a run from its record; {} for a run without noise."""
    spec = record.spec
    noise = [stage for stage in spec.get("wire", ()) if stage["name"] == STAGE]
    if not noise or noise[0]["multiplier"] == 0:
        return {}
    costs = Costs() if isinstance(record.costs, UnknownCosts) else record.costs
    clients, participants = costs.clients, costs.participants
    if clients is None or participants is None:
        return {"epsilon_lacks": "its record does not say how many clients there are"}
    if spec.get("start") is not None or spec.get("train_on") is not None:
        return {"epsilon_lacks": "it starts from another run, which trained on the same clients"}
    if not installed():
        return {"epsilon_lacks": UNCOUNTED}
    delta = noise[0]["delta"] or 1 / clients
    value = epsilon(noise[0]["multiplier"], clients, participants, record.rounds, delta)
    return {"epsilon": value, "delta": delta}


def epsilon(multiplier: float, clients: int, participants: int, rounds: int, delta: float) -> float:
    """Return epsilon of rounds that each draw ``participants`` of ``clients`` without replacement.

    Args:
        multiplier: z, the deviation of the noise on the sum over the norm of the clip.
        clients: Number of clients.
        participants: Number of clients in a round.
        rounds: Number of rounds.
        delta: Delta of (epsilon, delta)-differential privacy.
    """
    import dp_accounting
    from dp_accounting import rdp

    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    noised = dp_accounting.GaussianDpEvent(multiplier / 2)
    # Theorem 27 is loose where many take part, and above the other for little noise.
    events = [noised]
    if participants < clients:
        events.append(dp_accounting.SampledWithoutReplacementDpEvent(clients, participants, noised))
    accountants = [rdp.RdpAccountant(neighboring_relation=relation) for _ in events]
    for accountant, event in zip(accountants, events, strict=True):
        accountant.compose(event, rounds)
    return min(float(accountant.get_epsilon(delta)) for accountant in accountants)
