"""Evaluation campaigns: they measure checkpoints with datasets, and rules start them for new checkpoints.

api | pages
loops
actions            the only code that changes rows
reads
rules              pure
program            the command that trials run on nodes
"""
