"""Tests of the failure pages, the REST API and the admin."""
