"""Why attempts fail, and what to do about it: diagnosis, incidents, detectors and recovery decisions."""
