"""The copy of the code that jobs of a cluster run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SEEN = """
from fl.base import plugins
from fl.base.errors import Location
plugins.use(["lab"], Location("plugins"))
from fl.runner import environment
from pathlib import Path
import lab
print([plugins.FL.parent, environment.commit(), environment.environment()["lock"], lab.VALUE])
print(environment.copy_code(Path("results")))
"""


def test_a_copy_is_the_code_as_it_was_with_its_commit_and_its_plugins(tmp_path: Path) -> None:
    plugin = tmp_path / "lab" / "__init__.py"
    plugin.parent.mkdir()

    def seen(code: Path) -> tuple[str, Path]:
        environ = {**os.environ, "PYTHONPATH": str(code)}
        done = subprocess.run(
            [sys.executable, "-P", "-c", SEEN],
            cwd=tmp_path,
            env=environ,
            check=True,
            capture_output=True,
            text=True,
        )
        said, copy = done.stdout.splitlines()
        return said.replace(str(code), ""), Path(copy)

    repository = Path(__file__).resolve().parents[2]
    plugin.write_text("VALUE = 'before'\n")
    said, copy = seen(repository)
    assert "before" in said
    assert copy.parent == tmp_path / "results" / "code"
    plugin.write_text("VALUE = 'after'\n")
    assert seen(copy)[0] == said
    now, other = seen(repository)
    assert now == said.replace("before", "after") and other != copy
