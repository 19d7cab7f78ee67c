"""Template filters and tags for pages and admin."""
