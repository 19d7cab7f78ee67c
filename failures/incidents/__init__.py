"""Groups failures into incidents and combines a log diagnosis with the cluster's report. Pure functions."""
