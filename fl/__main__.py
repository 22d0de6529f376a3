"""``python -m fl``."""

import sys

from fl.cli import main

sys.exit(main())
