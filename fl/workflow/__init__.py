"""Glue for Snakemake: what the Snakefile and its rules import."""
