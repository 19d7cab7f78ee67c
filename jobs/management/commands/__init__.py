"""Management commands, one module per command."""
