"""Pictures and reports made from a trace."""
