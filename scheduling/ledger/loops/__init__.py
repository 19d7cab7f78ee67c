"""Loops of the ledger."""
