"""Locks on servers: semlock beside each server's bare client and beside other libraries."""
