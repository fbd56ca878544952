"""What waiting costs: hand-overs, deaths of holders, crowds, order, and what waiters burn."""
