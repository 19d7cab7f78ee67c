"""Applying the report of a cluster to the database: nodes, attempts, foreign jobs, outcomes."""
