# An analysis of weights runs models, so it can be a cluster's job, like training.
rule analyse:
    input:
        analysis_inputs,
    output:
        f"{RESULTS}/analyses/{{analysis}}/analysis.json",
    log:
        f"{RESULTS}/logs/analyse/{{analysis}}.log",
    conda:
        "../envs/fedloom.yaml"
    threads: lambda wildcards: analysis_execution(wildcards).threads
    resources:
        **slurm_resources(analysis_execution),
        gpu=lambda wildcards: jobs.gpus(analysis_execution(wildcards)),
        mem_mb=lambda wildcards, attempt: attempt
        * analysis_execution(wildcards).memory_mb,
        runtime=lambda wildcards: SESSION.minutes(analysis_execution(wildcards)),
    params:
        fl=FL,
        config=CONFIG,
    message:
        "analyse {wildcards.analysis}, log {log}, gpu={resources.gpu}"
    shell:
        "{params.fl:q} analyse {wildcards.analysis:q} --config {params.config:q} > {log:q} 2>&1"
