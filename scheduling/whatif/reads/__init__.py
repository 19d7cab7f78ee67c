"""Read-only queries about replays, and traces from rows and files."""
