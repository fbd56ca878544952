"""What a lock stands on: how a store tries, releases, refreshes, looks and waits."""
