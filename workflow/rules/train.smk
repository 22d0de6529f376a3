rule train:
    input:
        train_inputs,
    output:
        touch(f"{RESULTS}/markers/{{job}}"),
    log:
        f"{RESULTS}/logs/train/{{job}}.log",
    conda:
        "../envs/fedloom.yaml"
    threads: lambda wildcards: jobs.threads(job(wildcards).execution)
    resources:
        **slurm_resources(lambda wildcards: job(wildcards).execution),
        gpu=lambda wildcards: jobs.gpus(job(wildcards).execution),
        mem_mb=lambda wildcards: jobs.memory(job(wildcards)),
        runtime=lambda wildcards: SESSION.minutes(job(wildcards).execution),
    params:
        fl=FL,
        title=lambda wildcards: job(wildcards).title,
        store=lambda wildcards: job(wildcards).store,
        bundles=lambda wildcards: [
            str(plan_files.file_of(RESULTS, "bundles", name))
            for name in job(wildcards).bundles
        ],
        part=lambda wildcards: (
            ["--job", str(plan_files.file_of(RESULTS, "jobs", wildcards.job))]
            if job(wildcards).is_part
            else []
        ),
    message:
        "train {params.title}, log {log}, cores={threads}, gpu={resources.gpu}"
        + (
            # What a scheduler is asked for, so that a dry run shows it.
            ", memory={resources.mem_mb} MiB, time={resources.runtime} min"
            if SESSION.is_for_cluster
            else ""
        )
    # `exec`, so that a signal to the job reaches the process that can save its state.
    shell:
        "exec {params.fl:q} train {params.bundles:q} --store {params.store:q} --log {log:q} {params.part:q} > {log:q} 2>&1"
