"""Crowds: many processes or tasks that wait for one lock, and those who are stopped before them."""
