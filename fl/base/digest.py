"""Hashes for names of runs and data."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest(payload: Any) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a JSON-like value; keys may have any order."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
