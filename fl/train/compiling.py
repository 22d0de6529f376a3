"""Whether compiling the steps of some runs pays, and doing it, once for all jobs of a study.

What a compiler needs grows faster than the program that it is given, and for the gradient of a
gradient it is hours. So the calls of a step are counted before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from fl.engine import compiled
from fl.train import programs
from fl.train.candidates import Candidates
from fl.train.learnt import Learnt, Measured

logger = logging.getLogger(__name__)

PAYS = 60.0
"""Seconds of work from which compiling, which takes tens of seconds, is worth a try."""

MOST = 1 / 3
"""Of that work, what compiling is expected to take at most."""

LEAST, EACH = 12.0, 6.2e-5
"""Seconds of compiling, at least and by the square of the calls in a program: W1 of
`bench.local_steps` has 90 calls a step and took 20 s, W3 has 206 and took 54 s.
"""


def foreseen(runs: Candidates, known: Measured, learnt: Learnt, steps: float) -> Measured:
    """What is known, with what compiling is expected to take, if so many steps may be worth it."""
    if known.expected or not runs.compilable or _work(known, steps) <= PAYS:
        return known
    found = replace(known, expected=expected(runs))
    learnt.write(found)
    return found


def worth(runs: Candidates, known: Measured, steps: float) -> bool:
    """Whether to try it for so many steps, by what is `foreseen`."""
    work = _work(known, steps)
    return work > PAYS and runs.compilable and known.expected < MOST * work


def _work(known: Measured, steps: float) -> float:
    """Seconds that so many steps take uncompiled; 0 where it is settled whether to compile, or
    where the loop and the stack have not both been timed.
    """
    if len(known.seconds) != 2 or known.refused:
        return 0.0
    return min(known.seconds.values()) * steps


def expected(runs: Candidates) -> float:
    """Seconds that compiling takes, by a rough guess from the calls of a step."""
    return LEAST + EACH * (compiled.CHUNK * runs.calls) ** 2


def done(
    runs: Candidates,
    known: Measured,
    learnt: Learnt,
    program: str | None,
    waiting: Callable[[], None],
) -> Measured:
    """What is known, with the speed of the compiled stack, as measured here or meanwhile."""
    with programs.once(program, waiting):
        meanwhile = learnt.read()
        if meanwhile and (meanwhile.refused or "compiled" in meanwhile.seconds):
            return meanwhile
        found = _with_compiled(runs, known, waiting)
        learnt.write(found)
        return found


def ready(
    runs: Candidates, known: Measured, program: str | None, waiting: Callable[[], None]
) -> Measured:
    """What is known, with the program compiled; without it, if that is not possible here."""
    if not runs.compilable:
        return known.uncompiled()
    with programs.once(program, waiting) as first:
        return _with_compiled(runs, known.uncompiled(), waiting) if first else known


def _with_compiled(runs: Candidates, known: Measured, waiting: Callable[[], None]) -> Measured:
    try:
        spent, step = _compile(runs)
    except Exception as error:  # A compiler that does not work, or code it cannot take.
        waiting()  # Ctrl-C ends a compiler too.
        reason = f"{type(error).__name__}: {str(error).strip().split(chr(10))[0]}"
        logger.warning("not compiled (%s)", reason)
        # A full disk or memory is no property of the code, and the next job may have more luck.
        return replace(known, refused="" if isinstance(error, OSError | MemoryError) else reason)
    return replace(known, seconds={**known.seconds, "compiled": step}, compiling=spent)


def _compile(runs: Candidates) -> tuple[float, float]:
    """The seconds that compiling took, and those of a step afterwards."""
    begun = time.perf_counter()
    runs.seconds("compiled", compiled.CHUNK)
    spent = time.perf_counter() - begun
    step = runs.seconds("compiled", 3 * compiled.CHUNK, tries=2)
    return max(0.0, spent - compiled.CHUNK * step), step
