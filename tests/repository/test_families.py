"""Families of methods, and the table of their costs."""

from __future__ import annotations

from itertools import chain

import pytest

from fl.api.training import Training
from fl.base import fields, plugins, registry
from fl.base.errors import FedloomError, Location
from fl.cli import catalogue
from tools import method_costs

METHODS = [
    method
    for method in registry.list_documentation("method")
    if method.file.is_relative_to(plugins.FL)
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_method_names_its_family_and_a_key_that_it_has(method: registry.Documentation) -> None:
    profile = catalogue.profile_of(method)
    assert profile is not None
    assert profile.family in catalogue.FAMILIES
    declared = registry.find_declaration("method", method.name, Location("test")).target
    keys = {**fields.fields(declared), **fields.fields(Training), "none": None}
    assert profile.key in keys


def test_every_family_has_members_and_can_be_listed() -> None:
    names = [
        [member.name for member in catalogue.members(family, METHODS)]
        for family in catalogue.FAMILIES
    ]
    assert sorted(chain.from_iterable(names)) == [method.name for method in METHODS]
    assert min(map(len, names)) >= 3
    listed = "\n".join(catalogue.listing("method", "personal layers"))
    assert "FedPer: a shared body" in listed
    assert "FedProx" not in listed
    with pytest.raises(FedloomError, match="did you mean 'personal layers'"):
        list(catalogue.listing("method", "personal layer"))


def test_every_method_has_costs_and_they_are_measured_again() -> None:
    assert method_costs.costs().keys() == {method.name for method in METHODS}
    [row], _ = method_costs.measured(["fedpac"])
    assert row in method_costs.PAGE.read_text().splitlines()
