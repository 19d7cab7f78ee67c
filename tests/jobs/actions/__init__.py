"""Tests of `jobs.actions`."""
