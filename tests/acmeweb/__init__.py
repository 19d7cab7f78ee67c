"""Tests of acmeweb: pages, authentication, metrics and live updates."""
