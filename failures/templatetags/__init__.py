"""Template tags and filters for failures, used on the pages of jobs and nodes."""
