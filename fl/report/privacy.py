"""What a run with clipped and noised uploads hides of a client: epsilon, at a delta.

A round draws m of N clients, all sets of m alike, and adds noise to the sum of what they send, none
of which is longer than the clip S. A neighbour of a population is one in which one client is
another: the sum changes by 2 S at most, so noise of deviation z S has the multiplier z / 2. Rounds
compose. Two bounds hold, by the package dp-accounting, and the smaller one is told: that of Wang et
al., theorem 27, where not all take part, and that of Mironov, corollary 3, which gives nothing for
who is drawn. Epsilon is of the shared model alone, after the rounds that a run completed; what
validation data choose is not counted: a grid's point, and when a run stops early.
"""

from __future__ import annotations

from importlib.util import find_spec

from fl.store.run_record import Costs, RunRecord, UnknownCosts

PRIVACY = {"epsilon": "float64", "delta": "float64", "epsilon_lacks": "string"}
"""Of the runs table: epsilon and its delta, or why none is told of a run with noise."""

CITATION = (
    "Wang, Balle, Kasiviswanathan. Subsampled Renyi Differential Privacy and Analytical Moments "
    "Accountant. AISTATS 2019. arXiv:1808.00087; Mironov. Renyi Differential Privacy. CSF 2017. "
    "arXiv:1702.07476."
)
"""Of what epsilon is computed by."""

STAGE, PACKAGE = "noise", "dp_accounting"
UNCOUNTED = "dp-accounting is not installed (`make extras`)"
"""Of `PRIVACY`, why none is told: unlike other reasons it may pass."""


def installed() -> bool:
    """Whether there is the package that `epsilon` needs."""
    return find_spec(PACKAGE) is not None


def epsilon_columns(record: RunRecord) -> dict[str, float | str]:
    """The columns of a run, from its record; {} of a run without noise."""
    spec = record.spec
    noise = [stage for stage in spec.get("wire", ()) if stage["name"] == STAGE]
    if not noise or noise[0]["multiplier"] == 0:
        return {}
    costs = Costs() if isinstance(record.costs, UnknownCosts) else record.costs
    clients, participants = costs.clients, costs.participants
    if clients is None or participants is None:
        return {"epsilon_lacks": "its record does not say how many clients there are"}
    if spec.get("start") is not None or spec.get("train_on") is not None:
        return {"epsilon_lacks": "it begins from what another run made of the same clients"}
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
