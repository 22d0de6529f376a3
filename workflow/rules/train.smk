def bundle(wildcards):
    return planned("bundles", wildcards.bundle)


def ingredients(wildcards):
    """What a bundle needs, never compared by time: its identity already holds all of it."""
    spec = bundle(wildcards)
    return [
        ancient(f"{DATA}/prepared/{spec['dataset']}/dataset.json"),
        ancient(f"{RESULTS}/partitions/{spec['partition']}/partition.json"),
        *(ancient(graph.marker(Path(RESULTS), before)) for before in spec["after"]),
    ]


rule train:
    input:
        ingredients,
    output:
        touch(f"{RESULTS}/markers/{{bundle}}"),
    log:
        f"{RESULTS}/logs/train/{{bundle}}.log",
    threads: lambda wildcards: bundle(wildcards)["execution"]["threads"]
    resources:
        gpu=lambda wildcards: gpus(bundle(wildcards)["execution"]["device"]),
        mem_mb=lambda wildcards: bundle(wildcards)["execution"]["memory_mb"],
        runtime=lambda wildcards: bundle(wildcards)["execution"]["minutes"],
    shell:
        "{FL} train {RESULTS}/plan/bundles/{wildcards.bundle}.json --store {STORE} > {log} 2>&1"
