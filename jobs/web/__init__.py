"""Shared code of the pages: rendering, URL parameters, forms and job filters."""
