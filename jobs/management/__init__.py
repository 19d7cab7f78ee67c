"""Management commands of the app jobs."""
