"""Reads for evaluation campaigns, their pages and their API."""
