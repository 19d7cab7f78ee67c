"""Views and forms of the pages for replays, and of the page that changes a policy."""
