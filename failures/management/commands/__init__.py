"""Management commands: diagnose a log file, and test the configured language model."""
