# Identity is in every name, so a file that is there is the right one, however old its inputs are.


rule download:
    output:
        f"{DATA}/raw/{{raw}}/sources.json",
    log:
        f"{RESULTS}/logs/download/{{raw}}.log",
    shell:
        "{FL} download {wildcards.raw} --config {CONFIG} > {log} 2>&1"


rule prepare:
    input:
        lambda wildcards: ancient(f"{DATA}/raw/{wildcards.dataset[:-17]}/sources.json"),
    output:
        f"{DATA}/prepared/{{dataset}}/dataset.json",
    log:
        f"{RESULTS}/logs/prepare/{{dataset}}.log",
    shell:
        "{FL} prepare {wildcards.dataset} --config {CONFIG} > {log} 2>&1"


rule partition:
    input:
        lambda wildcards: ancient(
            f"{DATA}/prepared/{planned('partitions', wildcards.partition)['dataset']}/dataset.json"
        ),
    output:
        f"{RESULTS}/partitions/{{partition}}/partition.json",
    log:
        f"{RESULTS}/logs/partition/{{partition}}.log",
    shell:
        "{FL} partition {wildcards.partition} --config {CONFIG} > {log} 2>&1"
