"""Template tags of scheduling."""
