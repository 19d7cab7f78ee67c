"""Replays of elastic jobs: the speed of a job follows from its width, its nodes, its batch size and its progress."""
