"""Loops of evaluation campaigns."""
