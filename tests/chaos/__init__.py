"""The chaos test: a storm of faults on a running instance, and the judge of its results."""
