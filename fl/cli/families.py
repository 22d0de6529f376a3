"""Families of methods: which methods do a similar thing, what they exchange and what stays local.

A method's docstring has one paragraph on it, which a plugin's may lack::

    Family: personal layers. Exchanged: body. Local: head. Key: `layers`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fl.base.errors import Location, unknown_name
from fl.base.registry import Documentation

ABOUT = {
    "reference": "what others are compared with or start from",
    "aggregation": "how the server weighs and moves the mean of what clients send",
    "server samples": "the server has samples of its own",
    "drift": "clients' steps are corrected or held near the shared model",
    "sharpness": "clients' gradients are those of a worse point nearby",
    "classifier": "the head or the loss is made fair to classes that a client lacks",
    "distillation": "models learn from each other's outputs",
    "class means": "clients exchange mean features by class",
    "features": "inputs or features are made alike over clients",
    "personal layers": "a part of the network stays with the client",
    "personal model": "each client has a model beside the shared one",
    "mixture of clients": "each client gets its own mixture of models",
    "stored model": "begins with the model of another entry, which it personalises or calibrates",
}
"""What the methods of each family have in common, in the order of the page of methods."""

_PARAGRAPH = re.compile(
    r"Family: (?P<family>[^.]+)\. Exchanged: (?P<exchanged>[^.]+)\. Local: (?P<local>[^.]+)\."
    r" Key: `?(?P<key>[^.`]+)`?\."
)


@dataclass(frozen=True)
class Profile:
    """A method's family and what it exchanges, from the docstring of its file.

    Attributes:
        family: Family, a key of `ABOUT`.
        exchanged: What a client receives and sends in a round.
        local: What stays with the client from round to round.
        key: The config key that matters most; `none` if it has none.
    """

    family: str
    exchanged: str
    local: str
    key: str


def profile_of(component: Documentation) -> Profile | None:
    """Return a method's profile; None if its docstring has none."""
    found = _PARAGRAPH.search(" ".join(component.notes.split()))
    return Profile(**found.groupdict()) if found else None


def members(family: str, components: Iterable[Documentation]) -> list[Documentation]:
    """Return the components of a family.

    Raises:
        FedloomError: If there is no family of that name.
    """
    if family not in ABOUT:
        raise unknown_name(Location("--family"), "family", family, ABOUT)
    profiles = [(component, profile_of(component)) for component in components]
    return [component for component, profile in profiles if profile and profile.family == family]
