"""Pages that belong to no app: home, health checks and search."""
