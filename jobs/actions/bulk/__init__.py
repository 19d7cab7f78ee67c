"""Actions of users on many jobs at once."""
