"""Locks on servers and shared directories: what all engines share, and one module for each."""
