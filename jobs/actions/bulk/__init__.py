"""One action on many jobs, at once or in the background."""
