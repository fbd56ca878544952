"""How a thread or a task sleeps until something happens to a path; it knows no lock object."""
