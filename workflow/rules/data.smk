rule download:
    output:
        f"{DATA}/raw/{{raw}}/sources.json",
    log:
        f"{RESULTS}/logs/download/{{raw}}.log",
    localrule: True
    conda:
        "../envs/fedloom.yaml"
    params:
        fl=FL,
        config=CONFIG,
        dataset=lambda wildcards: next(
            name for name in DATASETS if raw(name) == wildcards.raw
        ),
    message:
        "download {wildcards.raw}"
    shell:
        "{params.fl:q} download {params.dataset:q} --config {params.config:q} > {log:q} 2>&1"


rule prepare:
    input:
        prepare_inputs,
    output:
        f"{DATA}/prepared/{{dataset}}/dataset.json",
    log:
        f"{RESULTS}/logs/prepare/{{dataset}}.log",
    localrule: True
    conda:
        "../envs/fedloom.yaml"
    params:
        fl=FL,
        config=CONFIG,
    message:
        "prepare {wildcards.dataset}"
    shell:
        "{params.fl:q} prepare {wildcards.dataset:q} --config {params.config:q} > {log:q} 2>&1"


rule partition:
    input:
        partition_inputs,
    output:
        f"{RESULTS}/partitions/{{partition}}/partition.json",
    log:
        f"{RESULTS}/logs/partition/{{partition}}.log",
    localrule: True
    conda:
        "../envs/fedloom.yaml"
    params:
        fl=FL,
        config=CONFIG,
    message:
        "partition {wildcards.partition}"
    shell:
        "{params.fl:q} partition {wildcards.partition:q} --config {params.config:q} > {log:q} 2>&1"
