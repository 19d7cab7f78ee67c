"""Replays: traces and simulated time on the scheduling engine, and the reports on them."""
