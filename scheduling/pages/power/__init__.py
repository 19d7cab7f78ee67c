"""Pages of power budgets."""
