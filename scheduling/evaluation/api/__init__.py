"""API of evaluation campaigns."""
