"""Folders that come with the package: the workflow, example studies, published numbers.

In a clone they stand beside ``fl``. A wheel has copies in its folder
``share`` (``setup.py``).
"""

from __future__ import annotations

from fl.base.plugins import FL

SHARED_FOLDERS = FL / "share" if (FL / "share").is_dir() else FL.parent
WORKFLOW = SHARED_FOLDERS / "workflow"
CONFIG = SHARED_FOLDERS / "config"
