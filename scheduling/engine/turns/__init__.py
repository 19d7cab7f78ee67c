"""The ways to walk the queue, one function each. They start and stop jobs through the engine and keep no state."""
