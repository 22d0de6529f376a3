"""Alterations of features that a study can add to any method made by the recipe, one file each."""
