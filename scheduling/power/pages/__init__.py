"""Views of the pages for power."""
