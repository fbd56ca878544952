"""Files, records, processes and policies.  The only room that calls C; it knows no lock object."""
