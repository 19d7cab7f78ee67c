"""Loops of power. Each module describes its eligible rows, what a turn does, and its failure story."""
