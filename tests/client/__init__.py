"""Tests of acme-client: the command line and the library for training programs."""
