"""Sending queued commands to clusters: claims, submissions, all other commands."""
