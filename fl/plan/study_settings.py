"""The settings of a study, and their draws.

Settings are found from the values of scenarios: those that differ only in seeds of data set and
partition are draws of one setting. Nothing here decides a number.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fl.base.hashes import digest
from fl.plan.components import Choice, keys_text, text_of
from fl.plan.scenario import Scenario
from fl.plan.study_plan import Setting

ScenarioKey = tuple[str, str, str]
"""The ids of data set and partition, and the text of the model."""

DRAWN = ("data set", "partition")
"""The components of a scenario whose seeds make draws; the third is the model."""

INTRODUCTION = re.compile(r"[^\w(){}\[\]]*(?:\b(?:draw|seed)[\s=:]*)?(?:(?<![\w}])\w+)?$")
"""The end of a title before a seed that introduces it: a comma, ``, seed ``, `` v``."""


@dataclass(frozen=True)
class StudySettings:
    """The settings of a study.

    Attributes:
        settings: The settings in the study's order.
        shared: What all of them have in common, in words; empty if there is only one.
        setting_ids: The setting's id by scenario.
        draws: The draw's text by scenario (`fl.plan.bundle.Run.draw`).
    """

    settings: list[Setting]
    shared: str
    setting_ids: dict[ScenarioKey, str]
    draws: dict[ScenarioKey, str]


def scenario_key(scenario: Scenario) -> ScenarioKey:
    """Return what identifies a data set, a partition and a model of a study."""
    return scenario.dataset.id, scenario.scheme.id, scenario.model.text


def study_settings(study_scenarios: Mapping[ScenarioKey, Scenario]) -> StudySettings:
    """Return the settings of a study's scenarios."""
    scenarios = {key: (s.dataset, s.scheme, s.model) for key, s in study_scenarios.items()}
    setting_ids = {key: _setting_id(choices) for key, choices in scenarios.items()}
    draws: dict[ScenarioKey, str] = {}
    described: dict[str, list[Choice]] = {}
    for setting_id in dict.fromkeys(setting_ids.values()):
        keys = [key for key in scenarios if setting_ids[key] == setting_id]
        by_component = [*zip(*(scenarios[key] for key in keys), strict=True)]
        varied = [_varied_seeds(choices) for choices in by_component]
        for key in keys:
            draws[key] = _draw_text(scenarios[key], varied)
        described[setting_id] = list(map(_described, by_component, varied))
    shared, short_titles = _short_titles(list(described.values()))
    settings = [
        Setting(
            setting_id,
            " · ".join(map(_title, descriptions)),
            short_title,
            *(description.text for description in descriptions),
        )
        for (setting_id, descriptions), short_title in zip(
            described.items(), short_titles, strict=True
        )
    ]
    return StudySettings(settings, shared, setting_ids, draws)


def _setting_id(choices: tuple[Choice, Choice, Choice]) -> str:
    """Hash of the values of a data set, a partition and a model without the seeds of draws."""
    *drawn, model = choices
    values = [
        {key: value for key, value in choice.spec.items() if key not in choice.seed_keys}
        for choice in drawn
    ]
    return digest([*values, model.spec])


def _varied_seeds(choices: Sequence[Choice]) -> list[str]:
    """The seed keys in which draws of a component differ."""
    return [
        key for key in choices[0].seed_keys if len({choice.values[key] for choice in choices}) > 1
    ]


def _draw_text(choices: Sequence[Choice], varied: Sequence[Sequence[str]]) -> str:
    """The seeds of a draw in words, ``partition seed 10``."""
    return ", ".join(
        f"{component} {key} {choice.values[key]}"
        for component, choice, keys in zip(DRAWN, choices[:-1], varied[:-1], strict=True)
        for key in keys
    )


def _described(draws: Sequence[Choice], varied: Sequence[str]) -> Choice:
    """Return a component as it is described, without the seeds in which its draws differ."""
    first = draws[0]
    template = first.title_template
    if len({choice.title for choice in draws}) > 1:
        templates = {choice.title_template for choice in draws}
        template = _without_fields(template, varied) if len(templates) == 1 else ""
    written = {key: value for key, value in first.written.items() if key not in varied}
    return replace(first, written=written, title_template=template)


def _title(choice: Choice) -> str:
    return choice.title or choice.text


def _without_fields(title_template: str, keys: Sequence[str]) -> str:
    """Return a title template without the fields of some keys and the words that introduce them.

    ``Dirichlet {alpha}, seed {seed}`` becomes ``Dirichlet {alpha}``.
    """
    template = ""
    for literal, name, form, conversion in string.Formatter().parse(title_template):
        template += literal.replace("{", "{{").replace("}", "}}")
        if name in keys:
            template = INTRODUCTION.sub("", template)
        elif name is not None:
            template += "{" + name + (f"!{conversion}" if conversion else "")
            template += (f":{form}" if form else "") + "}"
    return re.sub(r"\s*\(\s*\)", "", template).strip(" ,;:-")


def _short_titles(settings: Sequence[Sequence[Choice]]) -> tuple[str, list[str]]:
    """Return what settings share, in words, and of each setting the words for what differs."""
    if len(settings) < 2:
        return "", [" · ".join(map(_title, setting)) for setting in settings]
    shared: list[str] = []
    words: list[list[str]] = [[] for _ in settings]
    for choices in zip(*settings, strict=True):
        common, distinct = _compared(choices)
        shared += common
        if distinct:
            for setting_words, text in zip(words, distinct, strict=True):
                setting_words.append(text)
    return " · ".join(shared), [" · ".join(setting_words) for setting_words in words]


def _compared(choices: Sequence[Choice]) -> tuple[list[str], list[str]]:
    """Return what choices of one component share, and a text for each of what differs."""
    texts = [*map(_title, choices)]
    if len(set(texts)) == 1:
        return [texts[0]], []
    first, others = choices[0], choices[1:]
    common = {
        key: value
        for key, value in first.written.items()
        if all(key in other.written and other.written[key] == value for other in others)
    }
    differences = [
        {key: value for key, value in choice.written.items() if key not in common}
        for choice in choices
    ]
    name = first.component.name
    has_one_name = all(choice.component.name == name for choice in others)
    if not has_one_name or any(choice.title for choice in choices) or not all(differences):
        return [], texts
    return [text_of(name, common)], [keys_text(values) for values in differences]
