"""Scheduling: clusters, backends, the engine and its loops, replays and the GPU-hour ledger."""

from scheduling.compiled import prefer_compiled

prefer_compiled()  # before any module of the engine is imported
