"""Pure functions that scheduling loops, pages and the API share. No database and no clock."""
