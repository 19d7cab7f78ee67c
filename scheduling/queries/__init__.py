"""Read-only queries shared by pages, API and loops."""
