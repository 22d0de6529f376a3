"""A report's page in a real browser, on a phone and on a wide screen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from browsing import CHROMIUM, measure

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: chromium)")


@pytest.fixture(scope="module", params=["quickstart", "six"])
def measured(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    built: Callable[[str], Path],
):
    page = (built(request.param) / "report" / f"{request.param}.html").read_text()
    return measure(page, (390, 1400), tmp_path_factory.mktemp("browser"))


def test_nothing_is_wider_than_the_page_but_in_a_box_that_shows_itself(measured):
    assert [page["width"] for page in measured] == [390, 1400]
    for page in measured:
        assert page["page"] <= page["width"]
        assert page["wide"] == []
        assert len(page["boxes"]) > 20
        for box in page["boxes"]:
            assert box["shaded"] and box["hinted"] == (box["over"] > 1), box
    phone, screen = measured
    assert any(box["hinted"] for box in phone["boxes"])
    # There is room for every table of numbers, the one of six settings too.
    assert [box for box in screen["boxes"] if box["hinted"]] == []


def test_every_link_leads_somewhere_and_the_console_is_quiet(measured):
    for page in measured:
        assert page["links"] > 50
        assert page["dead"] == []
        assert page["problems"] == []
