"""Claims on comparisons, as sentences and as tables."""

from __future__ import annotations

import math

import pandas as pd

from fl.base.schema import SETTING, UNSEEN, StudySetting
from fl.report import claims, summaries
from fl.report.cells import NOTHING, Cell, Row, Table, columns, number, probability, unit
from fl.report.facts import Facts, rows_of_setting
from fl.report.method_tables import Record, Show, by_setting, shown_number


def claims_made(facts: Facts) -> tuple[str, ...]:
    """Return sentences on which methods are ahead and behind, and on the test that says so.

    Before there is a comparison they say nothing, as it is not known yet over how many units.
    """
    frame = facts.claims
    if len(facts.methods) < 2 or frame.empty:
        return ()
    units = sorted({f"{n} {unit}s" for n, unit in zip(frame["n"], frame["unit"], strict=True)})
    units_count, tests = int(frame["n"].max()), int(frame["p"].notna().sum())
    if units_count < 2:
        return ("One draw and one seed cannot tell a difference from noise.",)
    corrected = f"corrected together for {tests} comparisons by step-down maxT"
    sentences = []
    if tests:
        sentences.append(
            f"Differences in {unit(facts.metric)} are tested over {' and '.join(units)} "
            f"({claims.test_rule(frame)}, 5 %{f', {corrected}' * (tests != 1)})."
        )
    if tests and (frame["unit"] == claims.SEED).any():
        sentences.append(
            "A test over training seeds shows what happens if training is repeated; it says "
            "nothing about other data."
        )
    if facts.shares_training_seeds:
        sentences.append(
            "The draws share training seeds: first networks, batches, participants and noise are "
            "the same in all of them, so that they repeat the data and not the training."
        )
    elif (frame["unit"] == claims.DRAW).any():
        sentences.append("Each draw has its own training seed: draws repeat data and training.")
    if tests and claims.smallest_p(units_count) > claims.LEVEL:
        replicates = "seeds" if (frame["unit"] == claims.SEED).any() else "draws"
        sentences.append(
            "None of these differences is statistically significant: with "
            f"{units_count} {replicates}, the smallest possible p-value is "
            f"{claims.smallest_p(units_count):.3g}."
        )
        return tuple(sentences)
    texts: dict[str, list[str]] = {}
    for setting in frame[SETTING].drop_duplicates().itertuples(index=False, name=None):
        texts.setdefault(_verdicts(facts, rows_of_setting(frame, setting)), []).append(
            facts.short_name(setting)
        )
    if len(texts) == 1:
        [text] = texts
        return (*sentences, f"{text[:1].upper()}{text[1:]}.")
    return (*sentences, *(f"{' and '.join(names)}: {text}." for text, names in texts.items()))


def _verdicts(facts: Facts, group: pd.DataFrame) -> str:
    """Return verdicts, ``ahead of FedAvg: A; behind FedAvg: B; uninformative: C (reason)``.

    Of more than `MOST_PAIRS` pairs only the methods are named that no other is ahead of.
    """
    if facts.plan.baseline is None and len(group) > MOST_PAIRS:
        setting = tuple(group[SETTING].iloc[0])
        leaders = claims.leaders(group, rows_of_setting(facts.summary, setting), None)
        names = [title for method, title in facts.methods.items() if (*setting, method) in leaders]
        return f"no other method is ahead of {', '.join(names)}"
    texts: dict[str, list[str]] = {}
    for row in group[group["verdict"] != claims.OPEN].to_dict("records"):
        of = f" {'of ' * (row['verdict'] == claims.AHEAD)}{facts.methods[row['other']]}"
        name = facts.methods[row["method"]]
        if row["reason"]:
            of, name = "", f"{name} ({row['reason']})"
        texts.setdefault(row["verdict"] + of, []).append(name)
    return "; ".join(f"{verdict}: {', '.join(names)}" for verdict, names in texts.items()) or (
        "Nothing is ahead or behind"
    )


def differences_table(facts: Facts) -> Table | None:
    """Return each method's difference from the baseline in each setting, with the verdict.

    None for a single setting, for which the table of pairs is short enough.
    """
    baseline, metric = facts.plan.baseline, facts.metric
    frame = facts.claims[facts.claims["other"] == baseline]
    compared_settings = {*frame[SETTING].itertuples(index=False, name=None)}
    settings = [setting for setting in facts.settings if setting in compared_settings]
    if baseline is None or len(settings) < 2:
        return None
    by_key = {(*(row[key] for key in summaries.KEY),): row for row in frame.to_dict("records")}

    def cell(setting: StudySetting, method: str) -> Cell:
        row = by_key.get((*setting, method))
        if row is None:
            return Cell(NOTHING)
        remark = "no test" if row["reason"] else row["verdict"].replace(claims.OPEN, "")
        shown = number(row["difference"], metric, signed=True)
        return Cell(shown, best=row["verdict"] == claims.AHEAD, remark=remark)

    rows = tuple(
        Row(title, tuple(cell(setting, method) for setting in settings))
        for method, title in facts.methods.items()
        if method != baseline
    )
    tests = int(facts.claims["p"].notna().sum())
    caption = (
        f"Difference from {facts.methods[baseline]} in final test {unit(metric)}, mean over "
        f"{facts.replicates}. Bold: ahead; without a word: not told apart, by sign-flip tests, "
        f"corrected for all {tests} comparisons by step-down maxT. No test: uninformative."
    )
    heads = columns("Method", *("\n".join(facts.names.distinct.get(s, s)) for s in settings))
    return Table("differences", caption, heads, rows, crossed="Setting", scope=facts.common_note)


MOST_PAIRS = 30
"""Largest number of pairs in the table of a study without a baseline, which compares all pairs."""


def paired_table(facts: Facts, name: str = "paired", value: str = "final test {}") -> Table | None:
    """Return the table of methods against the baseline and of contrasts, or of all pairs.

    Args:
        facts: The study.
        name: Name of the table.
        value: What is compared, in words, with ``{}`` for the metric.
    """
    return _paired_table(facts, name, facts.claims, value=value)


def unseen_paired_table(facts: Facts) -> Table | None:
    """Return the `paired_table` on clients that were held out of training; None without any."""
    if not (facts.rows["split"] == UNSEEN).any():
        return None
    return _paired_table(facts, "unseen-paired", facts.unseen_claims, "Unseen clients: ")


def _paired_table(
    facts: Facts, name: str, frame: pd.DataFrame, prefix: str = "", value: str = "final test {}"
) -> Table | None:
    """Return a table of comparisons; None if there are none, or too many pairs.

    Args:
        facts: The study.
        name: Name of the table.
        frame: Comparisons, see `fl.report.claims.compare_methods`.
        prefix: Beginning of the caption, which names the clients.
        value: What is compared, see `paired_table`.
    """
    baseline, metric = facts.plan.baseline, facts.metric
    if frame.empty or (baseline is None and len(frame) > MOST_PAIRS):
        return None
    replicates = "draws of data or partition, each by its mean over clients and training seeds"
    if set(frame["unit"]) == {claims.SEED}:
        replicates = "training seeds"
    one_other = bool((frame["other"] == baseline).all())
    against = f"Against {facts.methods[baseline]}" if baseline else "All methods"
    if baseline and not one_other:
        against += " (or another method that the study names)"
    too_few = claims.smallest_p(int(frame["n"].max())) > claims.LEVEL
    interval = ", with 95 % bootstrap interval"
    if too_few:
        interval = "; they are too few for a 95 % bootstrap interval"
    caption = (
        f"{prefix}{against} in pairs: mean difference of {value.format(unit(metric))} over "
        f"{replicates}{interval}."
    )
    near_floor = ""
    if metric in claims.COUNTED:
        near_floor = (
            ", both err on less than one test sample of a draw, or both as often as the majority "
            "predictor"
        )
    note = (
        f"p: {claims.test_rule(frame)}. Corrected: for all comparisons of the "
        "table, by step-down maxT; a method is called ahead or behind only if it is at most "
        f"{claims.LEVEL}. Uninformative: equal to another method in every digit{near_floor}. "
        "Better, worse: share of clients (%)."
    )
    has_margin = math.isfinite(claims.margin(metric))
    if has_margin:
        note = (
            "Equal: the mean is within one point of 0, by two one-sided tests, corrected likewise. "
            f"{note}"
        )

    def bounds(row: Record) -> str:
        low, high = (number(row[key], metric, signed=True) for key in ("low", "high"))
        return NOTHING if NOTHING in (low, high) else f"{low} to {high}"

    extra_columns: dict[str, Show] = (
        {} if one_other else {"from": lambda row: facts.methods[row["other"]]}
    )
    equal_column: dict[str, Show] = {"equal": claims.equality_text} if has_margin else {}
    shown: dict[str, Show] = {
        **extra_columns,
        "difference": lambda row: number(row["difference"], metric, signed=True),
        "95 %": bounds,
        "p": lambda row: probability(row["p"]),
        "corrected\np": lambda row: probability(row["p_corrected"]),
        "verdict": claims.verdict_text,
        **equal_column,
        "better": shown_number("better", "accuracy"),
        "worse": shown_number("worse", "accuracy"),
        "over": lambda row: f"{row['n']} {row['unit']}s",
    }
    return by_setting(facts, name, caption, frame, shown, ("from", "verdict"), note=note)
