"""Tests of a complete instance, started with `make up`."""
