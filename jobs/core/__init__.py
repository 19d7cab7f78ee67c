"""Rules and calculations without Django: states, request parsing, formats and masking. Pure modules only."""
