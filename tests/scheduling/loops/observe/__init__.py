"""Tests of the loops of scheduling."""
