"""Building blocks that several methods, terms and models share."""
