"""Tests of diagnosing attempts, grouping them into incidents, following logs and sending notices."""
