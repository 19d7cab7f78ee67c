"""Replays of jobs with tables of speeds: their files, the policies of both replays, and the report."""
