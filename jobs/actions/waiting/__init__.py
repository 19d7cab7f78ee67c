"""Waiting jobs: what users change in them, and how many there may be."""
