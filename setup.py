"""Wheel with the workflow, the example studies and the published numbers in ``fl/share``.

All else about the package stands in ``pyproject.toml``.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDERS = ("workflow", "config")


class BuildWithShare(build_py):
    """Copy of the modules, and of the folders beside them."""

    def run(self) -> None:
        """Copy all; an editable installation finds the folders where they are."""
        super().run()
        if self.editable_mode:
            return
        share = Path(self.build_lib) / "fl" / "share"
        shutil.rmtree(share, ignore_errors=True)
        for name in FOLDERS:
            shutil.copytree(name, share / name)


setup(cmdclass={"build_py": BuildWithShare})
