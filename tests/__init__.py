"""The tests; the directories mirror the packages."""
