"""Simulated machines: their faults, the programs on them, logs, telemetry, and the execution of real processes."""
