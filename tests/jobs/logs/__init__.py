"""Tests of `jobs.logs`."""
