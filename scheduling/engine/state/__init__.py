"""What the engine derives from its jobs: indexes and caches, each with the rule that keeps it correct. Pure."""
