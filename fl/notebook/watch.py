"""`fl.watch`: the page of `fedloom watch` in a notebook, beside the process that trains."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import TYPE_CHECKING

from fl.base.errors import FedloomError, optional_package
from fl.notebook.display import short_traceback
from fl.notebook.run import settings_of
from fl.store.store import Store

if TYPE_CHECKING:
    from rich.console import Group

SIZE = (100, 30)
"""Columns and lines of the page in a notebook."""


@short_traceback
def watch(study: str | None = None, config: str | Path | None = None) -> None:
    """Show the runs of a study while another process trains them, until all are done.

    A notebook that trains is busy until the end of `run`, so this is for another notebook, and for
    ``fedloom run`` or a cluster. Interrupting the cell stops no training.

    Args:
        study: Name of a planned study, or ``name`` of a call of `run`; by default all of the plan.
        config: Config folder, as that of `run`.

    Raises:
        FedloomError: If the plan lacks the study, or if rich or IPython is not installed.
    """
    with optional_package("fl.watch", "python -m pip install 'fedloom[watch]' ipykernel"):
        from IPython.display import HTML, display

        from fl.workflow.watch import Watch, pages
    folder, settings = settings_of(config)
    is_config = (folder / "config.yaml").exists()
    names = [study] if study else []
    seen = Watch(Path(settings.results), Store(Path(settings.store)), names)
    shown = display(HTML(""), display_id=True)
    if shown is None:
        problem = "fl.watch: shows its page in a notebook, and this is none"
        raise FedloomError(problem, advice="fedloom watch, in a terminal")
    with contextlib.suppress(KeyboardInterrupt):
        for page in pages(seen, lambda: SIZE, folder if is_config else None):
            shown.update(HTML(as_html(page)))


def as_html(page: Group) -> str:
    """Return a page as HTML, with the colours of a terminal."""
    from rich.console import Console

    width, _ = SIZE
    console = Console(file=io.StringIO(), record=True, width=width, force_jupyter=False)
    console.print(page)
    block = "<pre style='line-height: 1.3; overflow-x: auto'>{code}</pre>"
    return console.export_html(inline_styles=True, code_format=block)
