"""``python -m fl``."""

import os
import sys

from fl.base.errors import EXIT_INTERRUPTED, EXIT_LEFT


def run() -> int:
    """The command line; Ctrl-C ends it with one word, also while modules are being imported."""
    try:
        from fl.cli.main import main

        return main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def command() -> None:
    """The command ``fedloom``, and ``python -m fl``: `run`, and the end of the process."""
    status = run()
    if status in (EXIT_LEFT, EXIT_INTERRUPTED):
        sys.stdout.flush()
        sys.stderr.flush()
        # At once: PyTorch would first compile all that still waits to be compiled.
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    command()
