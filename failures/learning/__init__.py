"""Similarity search over past cases, and rules derived from confirmed diagnoses. Pure functions and values."""
