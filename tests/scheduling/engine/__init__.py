"""Tests of the scheduling engine, its policies and placements, and preemption."""
