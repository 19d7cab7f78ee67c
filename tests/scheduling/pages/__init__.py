"""Tests of the pages for scheduling."""
