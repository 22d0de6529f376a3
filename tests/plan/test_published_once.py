"""What `make fixtures-demo` runs of published studies is them, made small; it runs them itself."""

from __future__ import annotations

import shutil

import published_once
import pytest
import yaml

from fl.base.errors import Location
from fl.plan import config
from fl.plan.expand import expand
from fl.plan.published_cells import published_cells

SMALL = {"rounds", "evaluate_every", "participation"}


def kept(spec, less):
    """What of a spec must be as shipped."""
    whole = {key: spec.get(key) for key in ("model", "partition", "terms", "alterations", "test")}
    for key in ("training", "method"):
        whole[key] = {k: value for k, value in spec[key].items() if k not in SMALL | set(less)}
    return whole


def test_the_list_names_a_study_of_each_paper():
    assert published_once.listed() == sorted(published_once.STUDIES)
    papers = {name.partition("-")[0] for name in published_once.STUDIES}
    assert papers == {"ditto", "fedl2p", "fedsac", "fedfm", "fedlgd"}


@pytest.mark.parametrize("name", published_once.STUDIES)
def test_a_study_keeps_everything_but_its_size(tmp_path, name):
    shutil.copytree(published_once.CONFIG / "published", tmp_path / "published")
    (tmp_path / "studies").mkdir()
    keys = published_once.study(name)
    (tmp_path / "studies" / f"{name}.yaml").write_text(yaml.safe_dump(keys, sort_keys=False))
    whole, small = (
        expand(folder, name, config.read_draft(folder, name, Location("studies")), checked=False)
        for folder in (published_once.CONFIG, tmp_path)
    )
    for run in small.runs:
        less = published_once.STUDIES[name].less.get(run.method, {})
        shipped = [kept(other.spec, less) for other in whole.runs if other.method == run.method]
        assert kept(run.spec, less) in shipped and run.spec["training"]["rounds"] == 1
    cells = published_cells(small, tmp_path)
    assert cells and {cell["method"] for cell in cells} <= set(published_once.STUDIES[name].methods)
