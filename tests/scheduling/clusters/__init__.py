"""Tests of cluster settings and connections."""
