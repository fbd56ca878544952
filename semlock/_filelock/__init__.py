"""filelock's interface on semlock's locks; ``semlock.filelock`` has the names for users."""
