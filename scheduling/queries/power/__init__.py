"""Reads for power budgets: budgets in snapshots, and what is drawn of each."""
