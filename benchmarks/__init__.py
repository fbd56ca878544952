"""How fast semlock is, beside C loops of the same system calls and beside its peers.

Run it with ``python -m benchmarks`` from a checkout.
"""
