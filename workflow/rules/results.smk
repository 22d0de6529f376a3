rule tables:
    input:
        table_inputs,
    output:
        update(f"{RESULTS}/tables/{{study}}.parquet"),
        update(f"{RESULTS}/tables/{{study}}.runs.parquet"),
        update(f"{RESULTS}/metrics/{{study}}.json"),
        update(f"{RESULTS}/plots/{{study}}.csv"),
    log:
        f"{RESULTS}/logs/tables/{{study}}.log",
    localrule: True
    conda:
        "../envs/fedloom.yaml"
    params:
        fl=FL,
        config=CONFIG,
    message:
        "tables of {wildcards.study}"
    shell:
        "{params.fl:q} tables {wildcards.study:q} --config {params.config:q} > {log:q} 2>&1"


rule report:
    input:
        report_inputs,
    output:
        report_output(f"{RESULTS}/report/{{study}}.html", "page", "report"),
        report_output(f"{RESULTS}/report/{{study}}.md", "tables", "tables, Markdown"),
        report_output(f"{RESULTS}/report/{{study}}.tex", "tables", "tables, LaTeX"),
    log:
        f"{RESULTS}/logs/report/{{study}}.log",
    localrule: True
    conda:
        "../envs/fedloom.yaml"
    params:
        fl=FL,
        config=CONFIG,
    message:
        "report of {wildcards.study}"
    shell:
        "{params.fl:q} report {wildcards.study:q} --planned --config {params.config:q} > {log:q} 2>&1"
