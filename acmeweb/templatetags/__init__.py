"""Template tags of all pages that concern the site as a whole."""
