"""Periodic tasks: diagnose failures, follow logs, run detectors, send notices, learn rules. Each survives a kill."""
