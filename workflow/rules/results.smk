rule tables:
    input:
        lambda wildcards: unless_there(
            [table(wildcards)],
            sorted(
                {
                    marker(HOME[name])
                    for name in study(wildcards)["bundles"]
                    if name in HOME
                }
            ),
        ),
    output:
        f"{RESULTS}/tables/{{study}}.parquet",
        f"{RESULTS}/tables/{{study}}.runs.parquet",
        f"{RESULTS}/metrics/{{study}}.json",
        f"{RESULTS}/plots/{{study}}.csv",
    log:
        f"{RESULTS}/logs/tables/{{study}}.log",
    message:
        "tables of {wildcards.study}"
    shell:
        f"{FL} tables {{wildcards.study}} --config {CONFIG} > {{log}} 2>&1"


rule report:
    input:
        lambda wildcards: unless_there(
            [f"{RESULTS}/report/{wildcards.study}.html"],
            [
                table(wildcards),
                *(
                    f"{RESULTS}/partitions/{name}/partition.json"
                    for name in study(wildcards)["partitions"]
                ),
            ],
        ),
    output:
        multiext(f"{RESULTS}/report/{{study}}", ".html", ".md", ".tex"),
    log:
        f"{RESULTS}/logs/report/{{study}}.log",
    message:
        "report of {wildcards.study}"
    shell:
        f"{FL} report {{wildcards.study}} --planned --config {CONFIG} > {{log}} 2>&1"
