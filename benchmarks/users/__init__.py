"""What programs meet that wait once, right after their start, and that poll many locks."""
