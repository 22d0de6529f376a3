"""Three rounds of methods beside the code that others released, executed on the same numbers."""
