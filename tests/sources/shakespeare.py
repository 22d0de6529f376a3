"""Plays as Project Gutenberg's edition of 1994 prints them, in its zip.

The layout (header, notices in angle brackets, two blanks before a role, four before what goes on,
The Comedy of Errors without either) is that which LEAF's preprocess_shakespeare.py takes apart.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sources import Made
from sources.packing import pack

PARAMS = {"complete": False}
BROKEN = {
    "the edition of today": (
        {"content": "The Complete Works\n\nBERTRAM.\nIn delivering my son from me\n"},
        r"1994-01-100\.zip: it contains no role. Allowed: the edition of 1994",
    ),
}
STUDY = {"partitions": ["natural"], "models": [{"lstm": {"hidden": 8}}]}
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's language_utils.py."""

NOTICE = """\

<<THIS ELECTRONIC VERSION OF THE COMPLETE WORKS OF WILLIAM
SHAKESPEARE IS COPYRIGHT 1990-1993 BY WORLD LIBRARY, INC., AND IS
PROVIDED BY PROJECT GUTENBERG ETEXT OF ILLINOIS BENEDICTINE COLLEGE
WITH PERMISSION.>>

"""
HEAD = """\
This is the 100th Etext file presented by Project Gutenberg, and
is presented in cooperation with World Library, Inc.

The Complete Works of William Shakespeare

"""
SONNETS = """\
1609

THE SONNETS

by William Shakespeare



                     1
  From fairest creatures we desire increase,
  That thereby beauty's rose might never die.
  NOBODY. This is no play, and NOBODY no role.
    Nor is this.

"""
WELL = """\
1603

ALL'S WELL THAT ENDS WELL

by William Shakespeare


Dramatis Personae

  KING OF FRANCE
  BERTRAM, Count of Rousillon


ACT I. SCENE 1.
Rousillon. The COUNT'S palace

Enter BERTRAM and HELENA, all in black

  BERTRAM. I heard you say that love is like the sea, and I believed you;
    yet when the tide goes out it leaves the sand behind,   and shells.
                                                    Exit HELENA
  HELENA. The sand remembers what the water wrote upon it,
    and children read it in the morning with their feet, my lord:
    I was a child {there} once | and read it every day.
  Bertram. Then read to me. I never learnt the letters of the sea.
"""
ERRORS = """\
1593

THE COMEDY OF ERRORS

by William Shakespeare


DRAMATIS PERSONAE

SOLINUS, Duke of Ephesus

ACT I. SCENE 1
A hall in the DUKE'S palace

DUKE. Two brothers of one face have come into this town, and each of them
owes money to the other, and to me, and to the baker.
Pays either, then the other has to pay no more.
"""
ERRORS_2 = """\
Not said by anyone after a notice.
AEGEON. How like a merchant; and how very like my son, and his,
who is another, and the same as he, if one may say so;
farewell, my lord, and may the reckoning be short.
MESSENGER. A letter, my lord.
It is short.
"""
ALONE = """\
1599

A PLAY OF ONE

by William Shakespeare


  ONLY. I talk, and talk, and there is no one else upon the stage to hear it,
    which makes it no play for LEAF, which wants two roles at least,
    and so all this is lost.
"""
ROLES = {
    "ALL_S_WELL_THAT_ENDS_WELL_BERTRAM": (
        "I heard you say that love is like the sea, and I believed you; "
        "yet when the tide goes out it leaves the sand behind, and shells. Exit HELENA "
        "Then read to me. I never learnt the letters of the sea. "
    ),
    "ALL_S_WELL_THAT_ENDS_WELL_HELENA": (
        "The sand remembers what the water wrote upon it, "
        "and children read it in the morning with their feet, my lord: "
        "I was a child {there} once | and read it every day. "
    ),
    "THE_COMEDY_OF_ERRORS_AEGEON": (
        "How like a merchant; and how very like my son, and his, "
        "who is another, and the same as he, if one may say so; "
        "farewell, my lord, and may the reckoning be short. "
    ),
    "THE_COMEDY_OF_ERRORS_DUKE": (
        "Two brothers of one face have come into this town, and each of them "
        "owes money to the other, and to me, and to the baker. "
        "Pays either, then the other has to pay no more. "
    ),
}
"""The lines of the four roles that have enough of them, as one text each."""


def text() -> str:
    """The whole file, with the line ends of DOS."""
    parts = [HEAD, NOTICE, SONNETS, NOTICE, WELL, NOTICE, ERRORS, NOTICE, ERRORS_2, NOTICE, ALONE]
    return "".join(parts).replace("\n", "\r\n")


def write(folder: Path, content: str | None = None) -> Made:
    """Write ``1994-01-100.zip`` into ``folder``."""
    pack(folder / "1994-01-100.zip", {"100.txt": text() if content is None else content})
    roles = [[ALPHABET.find(c) % 80 for c in said] for said in ROLES.values()]
    windows = [said[i : i + 81] for said in roles for i in range(len(said) - 80)]
    return Made(
        samples=len(windows),
        shape=(80,),
        classes=tuple(ALPHABET),
        y=np.array([window[80] for window in windows]),
        x=dict(enumerate(np.array(window[:80]) for window in windows)),
        client=np.repeat(range(len(roles)), [len(said) - 80 for said in roles]),
    )
