"""Clients that others have written read and drive the simulated cluster."""
