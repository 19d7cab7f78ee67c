"""Management commands of the demo and of recovery drills."""
