"""Tests of the pages and the admin of jobs."""
