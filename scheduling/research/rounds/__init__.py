"""Replays in rounds: jobs share GPUs of several types by time, and a policy says how much of which type each gets."""
