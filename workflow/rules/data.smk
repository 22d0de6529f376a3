rule download:
    output:
        f"{DATA}/raw/{{raw}}/sources.json",
    log:
        f"{RESULTS}/logs/download/{{raw}}.log",
    params:
        dataset=lambda wildcards: next(
            name for name in DATASETS if raw(name) == wildcards.raw
        ),
    message:
        "download {wildcards.raw}"
    shell:
        f"{FL} download {{params.dataset}} --config {CONFIG} > {{log}} 2>&1"


rule prepare:
    input:
        lambda wildcards: unless_there(
            [f"{DATA}/prepared/{wildcards.dataset}/dataset.json"],
            [f"{DATA}/raw/{raw(wildcards.dataset)}/sources.json"],
        ),
    output:
        f"{DATA}/prepared/{{dataset}}/dataset.json",
    log:
        f"{RESULTS}/logs/prepare/{{dataset}}.log",
    message:
        "prepare {wildcards.dataset}"
    shell:
        f"{FL} prepare {{wildcards.dataset}} --config {CONFIG} > {{log}} 2>&1"


rule partition:
    input:
        lambda wildcards: unless_there(
            [f"{RESULTS}/partitions/{wildcards.partition}/partition.json"],
            [
                f"{DATA}/prepared/{planned('partitions', wildcards.partition)['dataset']}/dataset.json"
            ],
        ),
    output:
        f"{RESULTS}/partitions/{{partition}}/partition.json",
    log:
        f"{RESULTS}/logs/partition/{{partition}}.log",
    message:
        "partition {wildcards.partition}"
    shell:
        f"{FL} partition {{wildcards.partition}} --config {CONFIG} > {{log}} 2>&1"
