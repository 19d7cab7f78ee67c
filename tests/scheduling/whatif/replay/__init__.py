"""Tests of replays, start estimates and the doors to the engine."""
