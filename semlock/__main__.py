"""``python -m semlock`` is the command ``semlock``."""

import sys

from semlock.cli import main

if __name__ == "__main__":
    sys.exit(main())
