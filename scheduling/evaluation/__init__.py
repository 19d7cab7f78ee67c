"""Evaluation campaigns without Django: requests, cost estimates, planning, job instructions and output."""
