"""The only code that changes rows of evaluation campaigns."""
