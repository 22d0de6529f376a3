"""The arithmetic of a process: chosen before libraries are imported, told, and changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fl.base import arithmetic
from fl.base.arithmetic import NATIVE, PORTABLE
from fl.base.errors import FedloomError

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    not arithmetic.can_be_portable(), reason="needs an x86-64 processor"
)

TOLD = """
from fl.base import arithmetic
print(arithmetic.current(), sorted(arithmetic.VARIABLES.keys() & os.environ.keys()) != [])
"""


def told(code: str, **variables: str) -> list[str]:
    environment = {k: v for k, v in os.environ.items() if k not in arithmetic.VARIABLES}
    environment |= {"PYTHONPATH": str(ROOT), **variables}
    words = [sys.executable, "-c", f"import os\n{code}\n{TOLD}"]
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.split()


CHOOSE = "from fl.base import arithmetic; arithmetic.choose()"


def test_a_process_is_portable_if_it_chooses_before_it_imports_libraries() -> None:
    assert told(CHOOSE) == [PORTABLE, "True"]
    assert told("") == [NATIVE, "False"]
    assert told(f"import numpy\n{CHOOSE}") == [NATIVE, "False"]
    assert told("import numpy", **arithmetic.VARIABLES) == [PORTABLE, "True"]


def test_a_native_process_drops_the_variables_that_it_inherits() -> None:
    native = {arithmetic.CHOICE_VARIABLE: NATIVE}
    assert told(CHOOSE, **native, **arithmetic.VARIABLES) == [NATIVE, "False"]
    environment = arithmetic.environment_of(NATIVE)
    assert not environment.keys() & arithmetic.VARIABLES.keys()
    assert environment[arithmetic.CHOICE_VARIABLE] == NATIVE


def test_only_a_command_starts_again() -> None:
    other = NATIVE if arithmetic.current() == PORTABLE else PORTABLE
    with pytest.raises(FedloomError, match=arithmetic.CHOICE_VARIABLE):
        arithmetic.restart(other)
    arithmetic.restart(arithmetic.current())
