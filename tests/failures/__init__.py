"""Tests of the app failures; make.py creates its records."""
