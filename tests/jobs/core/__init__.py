"""Tests of `jobs.core` and `jobs.traces`."""
