"""Tests of replays, start estimates, uploaded traces and the page "What if"."""
