"""Loops about power: the energy of everything that runs, and caps that keep power within its budgets."""
