"""Reads for replays: their requests, the limits of the form and API, and the traces they use."""
