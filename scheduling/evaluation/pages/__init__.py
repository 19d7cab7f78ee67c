"""Pages of evaluation campaigns."""
