# Like training it may be a cluster's job: an analysis of weights runs models.
rule analyse:
    input:
        studied,
    output:
        f"{RESULTS}/analyses/{{analysis}}/analysis.json",
    log:
        f"{RESULTS}/logs/analyse/{{analysis}}.log",
    conda:
        "../envs/fedloom.yaml"
    threads: lambda wildcards: analysing(wildcards)["threads"]
    resources:
        **slurm_resources(analysing),
        gpu=lambda wildcards: markers.gpus(analysing(wildcards)),
        mem_mb=lambda wildcards, attempt: attempt * analysing(wildcards)["memory_mb"],
        runtime=lambda wildcards: analysing(wildcards)["minutes"],
    params:
        fl=FL,
        config=CONFIG,
    message:
        "analyse {wildcards.analysis}, log {log}, gpu={resources.gpu}"
    shell:
        "{params.fl:q} analyse {wildcards.analysis:q} --config {params.config:q} > {log:q} 2>&1"
