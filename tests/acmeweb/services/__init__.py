"""Tests of acmeweb.services: set-up, supervision and user separation."""
