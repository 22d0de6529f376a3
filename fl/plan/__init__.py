"""From config files to runs: what the user wrote, checked and with every default filled in.

`plan.make` goes this way; every step refuses what it does not understand (`ConfigError`):

1. `config` reads ``config.yaml`` and a study's file (by `yaml_text`) into `Settings` and `Study`.
2. `components` makes a `Choice` of each data set, partition, model and analysis; `own_files` adds
   what the user's own files hold. A list in place of a value is a grid (`grids`).
3. `method_entries` makes an object of each method entry, with the `points` of its grid: from the
   study's, the method's and the entry's keys, with numbers of ``published``.
4. `expand` combines all of these with the seeds: a `Run` each. A `site` is where entries run;
   it, `partition_fit` and `analysis_check` refuse what does not go together, `rehearsal` what
   cannot be trained. `specs` goes back: from a run's spec to its objects.
5. `plan` puts runs into a `bundle` each, with `analyses`, `captions` and `published_cells` for the
   report; `plan_files` writes them, under the `fingerprint` of what they follow from.
6. `jobs` merges bundles whose runs the store lacks, by what they cost (`estimate`).
"""
