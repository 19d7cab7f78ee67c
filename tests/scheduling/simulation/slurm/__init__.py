"""Tests of the simulated and local cluster server."""
