"""Read-only queries that pages and the API share."""
