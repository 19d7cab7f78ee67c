"""Tests of the simulated machines."""
