"""``python -m backpass`` is the command ``backpass``."""

import sys

from backpass.cli import main

sys.exit(main())
