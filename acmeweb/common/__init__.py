"""Helpers that every app may import: environment, live updates, metrics, outgoing HTTP."""
