"""Reads for the ledger, its pages and its API."""
