"""A new file of a user's own: ``python -m fl new method NAME`` writes one that runs as it is."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template

from fl.base import registry
from fl.base.errors import FedloomError
from fl.base.files import write_bytes

KINDS = {
    "method": "method",
    "term": "term",
    "alteration": "alteration",
    "model": "model",
    "dataset": "data set",
    "scheme": "partition scheme",
    "analysis": "analysis",
}
"""What can be made, and what the registry calls it."""

TEMPLATES = Path(__file__).parent / "templates"


def write(kind: str, name: str, folder: Path) -> Path:
    """Write ``<name>.py`` into the kind's folder of ``folder`` from its template; returns the path.

    Raises:
        FedloomError: For a name that configs could not use, and for a file that exists.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise FedloomError(
            f"name {name!r}. Allowed: small letters, digits and dashes between them, a letter first"
        )
    cls = "".join(word.capitalize() for word in name.split("-"))
    function = name.replace("-", "_")
    template = (TEMPLATES / f"{kind}.txt").read_text(encoding="utf-8")
    defined = function if "$function" in template else cls
    taken = name in registry.names(KINDS[kind])
    if taken or keyword.iskeyword(defined) or re.search(rf"\b{defined}\b", template):
        raise FedloomError(f"name {name!r} is taken; choose another")
    path = folder / Path(registry.FOLDER_BY_KIND[KINDS[kind]]).name / f"{function}.py"
    if path.exists():
        raise FedloomError(f"{path}: is there already; choose another name")
    text = Template(template).substitute(name=name, cls=cls, function=function)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, text.encode())
    return path
