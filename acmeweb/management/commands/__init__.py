"""Management commands that start and prepare an instance."""
