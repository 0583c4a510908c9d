"""``qkv train VERB --help`` shows the options of the verb alone."""

from __future__ import annotations

import re

import pytest
from tests.cli.conftest import Call

from qkv.choosing.signals.chats import adapters_for_chats
from qkv.choosing.verbs import VERBS

GENERAL = {"--out", "--minutes", "--quick", "--tensorboard", "--fresh", "--help"}
OF_VERBS = {"--data", "--validation", "--test", "--bad-rows", "--from", "--adapt"}
COLUMNS = {f"--{name}" for verb in VERBS.values() for name in verb.columns}


def options(qkv: Call, *line: str) -> set[str]:
    return set(re.findall(r"^ +(?:-\w, )?(--[\w-]+)", qkv("train", *line, "--help").out, re.MULTILINE))


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_shows_its_options_alone(qkv: Call, verb: str) -> None:
    shown = options(qkv, verb)
    assert shown >= GENERAL | OF_VERBS
    assert shown & (COLUMNS | {"--task"}) == {f"--{name}" for name in VERBS[verb].columns}
    told = qkv("train", verb, "--help").out
    assert told.startswith(f"Usage: qkv train {verb} [OPTIONS]")
    assert set(re.findall(r"qkv train (\w+)", told)) == {verb}
    assert options(qkv, "--minutes", "2", verb, "model.width=8") == shown


def test_finetune_shows_the_columns_of_all_tasks(qkv: Call) -> None:
    assert options(qkv, "finetune") >= GENERAL | OF_VERBS | COLUMNS | {"--task"}


def test_without_a_verb_no_option_of_tables_is_shown(qkv: Call) -> None:
    shown = options(qkv)
    assert shown >= GENERAL
    assert not shown & (OF_VERBS | COLUMNS | {"--task"})
    assert all(verb in qkv("train", "--help").out for verb in VERBS)


def test_an_option_that_is_not_shown_is_still_refused_by_name(qkv: Call) -> None:
    said = qkv("train", "classify", "--data", "x.csv", "--value", "x").err
    assert "'value' is not an argument of the task 'classify'" in said


@pytest.mark.parametrize("verb", ["chat", "prefer"])
def test_the_default_adapters_of_chats_are_those_of_their_recipes(qkv: Call, verb: str) -> None:
    said = " ".join(qkv("train", verb, "--help").out.split())
    assert f"of chat and prefer: lora({adapters_for_chats().rank})" in said
    assert "GGUF file" in said
