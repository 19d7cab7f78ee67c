"""The ways a line is walked; one function each. They start and stop jobs through the engine and keep nothing."""
