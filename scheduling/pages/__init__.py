"""Views and forms of the pages for scheduling."""
