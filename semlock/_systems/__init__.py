"""The lock systems, one module or one family of modules each."""
