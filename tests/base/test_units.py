"""Quantities and values as users read them."""

from __future__ import annotations

from fl.base.units import duration, written


def test_durations_have_the_digits_that_tell_them_apart():
    told = {
        0.0: "0 s",
        0.042: "0.042 s",
        1.24: "1.2 s",
        3: "3.0 s",
        9.96: "10 s",
        95: "95 s",
        720: "12 min",
    }
    assert {seconds: duration(seconds) for seconds in told} == told


def test_values_are_as_a_config_writes_them():
    assert written([True, None, 0.1, ["a", 16]]) == "[true, null, 0.1, [a, 16]]"
