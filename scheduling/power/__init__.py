"""Power: energy, budgets and caps, and nodes that sleep while nobody needs them.

api | pages
budget_states      reads with the predicted power of running jobs, which need a snapshot
loops
actions            the only code that changes rows
reads
rules              pure
"""
