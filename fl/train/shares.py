"""A process's share of a phase: dealt, trained, put together again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import Averaging, Phase
from fl.api.trees import Tree
from fl.engine import engine
from fl.engine.arrays import Arrays
from fl.engine.batches import Schedule
from fl.engine.engine import Gathered, Plan, State
from fl.engine.midway import Midway
from fl.engine.processes import split
from fl.train import messages

Part = dict[str, Any]
"""Some participants of one run, as plain values: the run's place, and what `_unpacked` reads."""


@dataclass(frozen=True)
class Dealt:
    """The participants of a phase, dealt to processes.

    Attributes:
        rows: By process and run, the rows of its participants in the run's plan.
        parts: The same as it is sent; a run without participants there is left out.
        totals: By run, the samples of all participants, where every process has some of each run
            and uploads are only averaged: they are then reduced to one mean. None: gathered.
    """

    rows: list[list[np.ndarray]]
    parts: list[list[Part]]
    totals: list[float] | None


def deal(
    phase: Phase, states: Sequence[State], plans: Sequence[Plan], number: int, size: int
) -> Dealt:
    """The participants of all runs, by their steps in the phase."""
    work = np.concatenate([steps(plan, number) for plan in plans])
    ends = np.cumsum([0, *(len(plan.clients) for plan in plans)])
    runs = range(len(plans))
    rows = [
        [own[(own >= ends[i]) & (own < ends[i + 1])] - ends[i] for i in runs]
        for own in split(work, size)
    ]
    parts = [
        [_part(i, states[i], plans[i], own[i], number) for i in runs if len(own[i])] for own in rows
    ]
    reduced = isinstance(phase.aggregate, Averaging)
    reduced = reduced and all(len(own) for by_run in rows for own in by_run)
    return Dealt(rows, parts, [float(plan.n.sum()) for plan in plans] if reduced else None)


def steps(plan: Plan, number: int) -> np.ndarray:
    """How many steps each participant takes in a phase, [m]."""
    found = np.zeros(len(plan.clients))
    for schedule in plan.phases[number] or ():
        if schedule is not None:
            found += schedule.steps
    return found


def _part(run: int, state: State, plan: Plan, rows: np.ndarray, number: int) -> Part:
    index = torch.from_numpy(rows)
    schedules = plan.phases[number] or ()
    return {
        "run": run,
        "clients": trees.take(state.clients, plan.clients[index]),
        "n": plan.n[index.to(plan.n.device)],
        "round": plan.round,
        "lr": plan.lr,
        "schedules": [one and _packed(one.take(rows)) for one in schedules],
    }


def _packed(schedule: Schedule) -> dict[str, Any]:
    def tensors(value: Any) -> Any:
        if isinstance(value, tuple):
            return [torch.from_numpy(one) for one in value]
        return None if value is None else torch.from_numpy(value)

    return {one.name: tensors(getattr(schedule, one.name)) for one in fields(schedule)}


def _unpacked(part: Part, server: Tree, arrays: Arrays, number: int) -> tuple[State, Plan]:
    """A part as a run of its own, whose clients are the part's."""
    schedules = tuple(one and _schedule(one) for one in part["schedules"])
    plan = Plan(
        round=part["round"],
        clients=torch.arange(len(part["n"])),
        n=part["n"].to(arrays.device),
        schedules=schedules,
        arrays=arrays,
        lr=part["lr"],
        before=(None,) * number,
    )
    return State(dict(server), part["clients"]), plan


def _schedule(packed: Mapping[str, Any]) -> Schedule:
    def array(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(one.numpy() for one in value)
        return None if value is None else value.numpy()

    return Schedule(**{name: array(value) for name, value in packed.items()})


class _Left(BaseException):
    """A share was left before it was over. No error: nothing that places these catches it."""

    def __init__(self, tree: Tree) -> None:
        super().__init__()
        self.tree = tree


@dataclass(frozen=True)
class Done:
    """What a process has done.

    Attributes:
        answer: Makes what it gives, in which all processes may take part; None if there is nothing.
        tree: Makes what it goes on from, if another process has left its share.
        left: Whether it has left its own.
    """

    answer: Callable[[], Any] | None = None
    tree: Callable[[], Tree] = dict
    left: bool = False


def train(
    phase: Phase,
    order: Mapping[str, Any],
    servers: Sequence[Tree],
    arrays: Arrays,
    due: Callable[[], bool],
) -> Done:
    """Train the participants of each part; ``servers`` are those of all runs.

    Args:
        order: ``parts``, and of all of them ``number``, ``backend``, ``totals``; ``begun``: what
            the process did of them before.
        due: Whether to leave, asked after every step.
    """
    parts, number = order["parts"], order["number"]
    if not parts:
        return Done(list)
    pairs = [_unpacked(part, servers[part["run"]], arrays, number) for part in parts]
    states, plans = zip(*pairs, strict=True)

    def leave(tree: dict[str, Any]) -> None:
        raise _Left(tree)

    midway = Midway(due, leave, order["begun"])
    try:
        found = engine.trained(phase, states, plans, number, order["backend"], midway)
    except _Left as left:
        return Done(tree=partial(dict, left.tree), left=True)
    return Done(
        partial(answer, found, parts, order["totals"]), partial(engine.over, states, plans, found)
    )


def answer(
    found: Sequence[Gathered], parts: Sequence[Part], totals: Sequence[float] | None
) -> list[dict[str, Any]]:
    """What a process gives for its parts. Where uploads are averaged, all processes call this at
    once, and the first one's has the means.
    """
    given = []
    for one, part in zip(found, parts, strict=True):
        told = {"kept": trees.concatenate(one.kept), "losses": torch.cat(one.losses)}
        if totals is None:
            told |= {"uploads": trees.concatenate(one.uploads), "n": torch.cat(one.n)}
        else:
            told["uploads"] = _mean(one, totals[part["run"]])
        given.append(told)
    if totals is not None and torch.distributed.get_rank():
        for told in given:
            del told["uploads"]
    return given


def _mean(found: Gathered, total: float) -> dict[str, Any]:
    """The mean of the uploads of all processes, one row, in the first one."""
    mean, weight = engine.averaged(found.uploads, found.n)
    share = float(weight) / total if total else 0.0

    def add(leaf: Tensor) -> Tensor:
        # Clients without samples have no mean, and no weight in one.
        if not leaf.is_floating_point():
            return messages.summed(leaf)
        return messages.summed(leaf * share if share else torch.zeros_like(leaf))

    return trees.apply(add, mean)


def merged(
    dealt: Dealt, answers: Sequence[Sequence[Mapping[str, Any]]], plans: Sequence[Plan]
) -> list[Gathered]:
    """What the participants of every run give, in the order of its plan."""
    found = []
    by_run: list[list[tuple[np.ndarray, Mapping[str, Any]]]] = [[] for _ in plans]
    for own, parts, given in zip(dealt.rows, dealt.parts, answers, strict=True):
        for part, one in zip(parts, given, strict=True):
            by_run[part["run"]].append((own[part["run"]], one))
    for run, plan in enumerate(plans):
        rows, told = zip(*by_run[run], strict=True)
        back = torch.from_numpy(np.argsort(np.concatenate(rows)))
        device, home = plan.n.device, engine.HOST
        kept = [trees.to(one["kept"], home if dealt.totals else device) for one in told]
        losses = torch.cat([one["losses"].to(device) for one in told])
        whole = trees.take(trees.concatenate(kept), back)
        uploads, n = _uploads(dealt, run, told, plan, back)
        found.append(Gathered([whole], [uploads], [n], [losses[back.to(device)]]))
    return found


def _uploads(
    dealt: Dealt, run: int, told: Sequence[Mapping[str, Any]], plan: Plan, back: Tensor
) -> tuple[dict[str, Any], Tensor]:
    """A run's uploads and their weights."""
    if dealt.totals:
        return told[0]["uploads"], plan.n.sum(0, keepdim=True)
    device = plan.n.device
    uploads = trees.concatenate([trees.to(one["uploads"], device) for one in told])
    n = torch.cat([one["n"].to(device) for one in told])
    if len(n) < len(plan.n):  # Averaged in groups, whose order means nothing.
        return uploads, n
    return trees.take(uploads, back), n[back.to(device)]
