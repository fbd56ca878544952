"""``python -m semlock`` is the command ``semlock``."""

from semlock.cli import entry

if __name__ == "__main__":
    entry()
