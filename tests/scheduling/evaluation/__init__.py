"""Tests of evaluation campaigns and rules."""
