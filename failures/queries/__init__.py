"""Read-only queries over failure records and logs."""
