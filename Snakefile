include: "workflow/Snakefile"


localrules:
    all,


# An included file's default target does not count for Snakemake; this one does.
rule all:
    input:
        rules.reports.input,
