rule tables:
    input:
        plan=f"{RESULTS}/plan/studies/{{study}}.json",
        markers=lambda wildcards: [
            str(graph.marker(Path(RESULTS), name))
            for name in PLAN["studies"][wildcards.study]["bundles"]
        ],
    output:
        f"{RESULTS}/tables/{{study}}.parquet",
        f"{RESULTS}/tables/{{study}}.runs.parquet",
    log:
        f"{RESULTS}/logs/tables/{{study}}.log",
    shell:
        "{FL} tables {wildcards.study} --config {CONFIG} > {log} 2>&1"


rule report:
    input:
        f"{RESULTS}/tables/{{study}}.parquet",
        lambda wildcards: [
            ancient(f"{RESULTS}/partitions/{name}/partition.json")
            for name in PLAN["studies"][wildcards.study]["partitions"]
        ],
    output:
        multiext(f"{RESULTS}/report/{{study}}", ".html", ".md", ".tex"),
    log:
        f"{RESULTS}/logs/report/{{study}}.log",
    shell:
        "{FL} report {wildcards.study} --config {CONFIG} > {log} 2>&1"
