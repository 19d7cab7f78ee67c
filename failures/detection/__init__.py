"""Detectors for running jobs and nodes: hangs, slowdowns, bad losses and node faults. Pure functions and values."""
