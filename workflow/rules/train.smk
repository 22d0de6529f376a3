rule train:
    input:
        ingredients,
    output:
        touch(f"{RESULTS}/markers/{{bundle}}"),
    log:
        f"{RESULTS}/logs/train/{{bundle}}.log",
    threads: lambda wildcards: bundle(wildcards)["execution"]["threads"]
    resources:
        gpu=lambda wildcards: graph.gpus(bundle(wildcards)["execution"]["device"]),
        mem_mb=lambda wildcards: bundle(wildcards)["execution"]["memory_mb"],
        runtime=lambda wildcards: bundle(wildcards)["execution"]["minutes"],
    params:
        title=lambda wildcards: bundle(wildcards)["title"],
    message:
        "train {params.title}, log {log}, gpu={resources.gpu}"
    shell:
        f"{FL} train {RESULTS}/plan/bundles/{{wildcards.bundle}}.json --store {STORE} > {{log}} 2>&1"
