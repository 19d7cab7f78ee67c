"""Read-only queries over failure records and logs. The exception is log_progress, which also stores what it read."""
