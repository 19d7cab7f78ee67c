"""Tests of the GPU-hour ledger and the reports based on it."""
