"""From config files to runs: what the user writes, checked and with every default filled in.

`plan.make` goes this way; every step refuses what it does not understand (`ConfigError`):

1. `config` reads ``config.yaml`` and a study's file (by `yaml_text`) into `Settings` and `Study`;
   `overrides` sets keys that a command gives.
2. `components` makes a `Choice` of each data set, partition, model and analysis, with the content
   of the user's own files.
3. `method_entries` makes an object of each method entry, with the points of its grid (`grids`):
   from the study's, the method's and the entry's keys, with numbers of `published_tables`.
4. `expand` combines all of these with the seeds: a `Run` (`bundle`) each. A `scenario` is a data
   set, a partition and a model that go together. `expand` says what a study means, `checks` what is
   wrong with it; a `rehearsal` tries what is to be trained. `run_spec` leads from a spec back to
   objects.
5. `plan` puts runs into a `bundle` each; `study_planning` makes the `study_plan` of each study,
   with `study_settings`, `analyses` and `published_cells` for the report; `plan_files` writes all
   of them, under the fingerprint of what they follow from. Runs that are stored under earlier names
   are found by `adoption`.
"""
