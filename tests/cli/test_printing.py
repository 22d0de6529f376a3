"""What is printed stays on its line and obeys nobody."""

from __future__ import annotations

import pytest

from fl.cli.printing import plain, say


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Krizhevsky 2009, \u00e4 \u2192 \u6570", "Krizhevsky 2009, \u00e4 \u2192 \u6570"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb\rc\td", "a\\nb\\rc\\td"),
        ("\x7f\x9b", "\\x7f\\x9b"),
        ("\u202e\u2028\ud800", "\\u202e\\u2028\\ud800"),
        (1.5, "1.5"),
    ],
)
def test_characters_that_a_terminal_obeys_are_shown_as_they_are_written(text, shown):
    assert plain(text) == shown


def test_a_line_is_a_line(capsys):
    say("one\ntwo")
    assert capsys.readouterr().out == "one\\ntwo\n"
