"""Tests of recovery decisions, checkpoints, pair tests, resizing and the recovery loop."""
