"""Tests of sleeping nodes and of energy."""
