"""New files for users' own components: ``fedloom new method NAME`` writes one that runs."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template

from fl.base import registry
from fl.base.errors import FedloomError
from fl.base.files import write_bytes

KIND_BY_WORD = {
    "method": "method",
    "term": "term",
    "alteration": "alteration",
    "model": "model",
    "dataset": "data set",
    "scheme": "partition scheme",
    "analysis": "analysis",
}
"""Kind of component by the word of the command line."""

TEMPLATES = Path(__file__).parent / "templates"


def write(kind: str, name: str, folder: Path) -> Path:
    """Write ``<name>.py`` from a template into the kind's folder in ``folder``; return its path.

    Args:
        kind: Word of `KIND_BY_WORD`.
        name: Name in configs.
        folder: Folder of plugins.

    Raises:
        FedloomError: For a name that configs cannot use, or if the file exists.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise FedloomError(
            f"name: cannot be {name!r}",
            "small letters, digits and single dashes between them, beginning with a letter",
        )
    cls = "".join(word.capitalize() for word in name.split("-"))
    function = name.replace("-", "_")
    template = (TEMPLATES / f"{kind}.txt").read_text(encoding="utf-8")
    defined = function if "$function" in template else cls
    exists = name in registry.names(KIND_BY_WORD[kind])
    if exists or keyword.iskeyword(defined) or re.search(rf"\b{defined}\b", template):
        raise FedloomError(f"name: {name!r} is in use", advice="choose another name")
    path = folder / Path(registry.FOLDER_BY_KIND[KIND_BY_WORD[kind]]).name / f"{function}.py"
    if path.exists():
        raise FedloomError(f"{path}: exists already", advice="choose another name")
    text = Template(template).substitute(name=name, cls=cls, function=function)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, text.encode())
    return path
