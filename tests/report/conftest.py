from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def _any_name(any_name: None) -> None:
    pass
