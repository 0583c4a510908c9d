"""Languages and tasks of a published model that writes a text from a text.

Translators of many languages have a token for each language. Two forms are known:

    source:  [source language] text eos   or   text eos [source language]     target begins with [target language]
    source:  [target language] text eos

The first is the form of M2M100 ("__de__"), mBART ("de_DE") and NLLB ("deu_Latn"), the second that of Marian (">>deu<<")
and MADLAD ("<2de>"). A T5 has one prefix per task instead, such as "translate English to German: ", in
``task_specific_params`` of its ``config.json`` (Raffel et al. 2020).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from qkv.interop.files.folder import read_json
from qkv.interop.files.places import CONFIG
from qkv.interop.mapping.config import Config
from qkv.interop.writing import answering, settings_of_tasks
from qkv.runs.run import Run, task_of
from qkv.spec.tasks import SequenceToSequence
from qkv.system.errors import UserError, nearest
from qkv.tokenizers.framing import Frame, Mark
from qkv.tokenizers.special import special_ids
from qkv.tokenizers.tokenizer import Tokenizer

_BEGINS_TARGET = re.compile(r"__([a-z]{2,3})__|([a-z]{2,3}_[A-Z]{2}|[a-z]{3}_[A-Z][a-z]{3})")
_BEGINS_SOURCE = re.compile(r">>([^<>]+)<<|<2([A-Za-z_-]+)>")


class LanguageTokens(NamedTuple):
    """Tokens of languages by code, such as "de" -> "__de__". ``begins_target``: whether a target begins with its
    language; else its source does.
    """

    tokens: Mapping[str, str]
    begins_target: bool

    def find(self, code: str) -> str:
        """Return the token of the language ``code``, which may omit the country or the script. Raises ``UserError``."""
        if code in self.tokens.values():
            return code
        longer = [name for name in self.tokens if name == code or name.startswith(f"{code}_")]
        if code in self.tokens or len(longer) == 1:
            return self.tokens[code if code in self.tokens else longer[0]]
        if longer:
            raise UserError(f"the language {code!r} is one of {', '.join(longer)}; name one of them")
        raise UserError(f"the model has no language {code!r}; {nearest(code, self.tokens)}")


@dataclass(frozen=True)
class TextToText:
    """Text that a model writes from a text: its languages, by code, or the name of an entry of the
    ``task_specific_params`` in its ``config.json``; None for what the files of the model say.
    """

    source_language: str | None = None
    target_language: str | None = None
    task: str | None = None

    def predict(self, run: Run, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Write a text for each row; see ``qkv.tasks.task.Task.predict``. Raises ``UserError``."""
        run = self.applied(run)
        return task_of(run).predict(run.model, run.vocabulary, run.recipe, rows)

    def applied(self, run: Run) -> Run:
        """Return the run with the languages and the settings that were asked for. Raises ``UserError`` if it has
        none of them, and for a model of many languages if no target language is given.
        """
        if not task_of(run).writes_from_source:
            sentence = "languages and the settings of a task are for models that write a text from a text"
            raise UserError(f"{sentence}; {run.folder} has the task {run.recipe.task.kind!r}")
        named = (self.source_language, self.target_language)
        languages, name = language_tokens(run.vocabulary.target), self.task
        if any(named) and not languages.tokens:
            name, named = name or "_".join(("translation", named[0] or "?", "to", named[1] or "?")), (None, None)
        if name is not None:
            run = _with_settings(run, name)
        return _with_languages(run, languages, *named) if languages.tokens else run


@lru_cache(maxsize=4)
def language_tokens(tokenizer: Tokenizer) -> LanguageTokens:
    """Return the tokens of languages that ``tokenizer`` has."""
    for pattern, texts in (
        (_BEGINS_TARGET, special_ids(tokenizer.core)),
        (_BEGINS_SOURCE, tokenizer.core.get_vocab(with_added_tokens=True)),
    ):
        matches = [(pattern.fullmatch(text), text) for text in texts]
        tokens = {match[match.lastindex or 0]: text for match, text in matches if match is not None}
        if tokens:
            return LanguageTokens(tokens, pattern is _BEGINS_TARGET)
    return LanguageTokens({}, False)


def _with_settings(run: Run, name: str) -> Run:
    """Return the run with the settings that its ``config.json`` has for the task ``name``. Raises ``UserError``."""
    entries = settings_of_tasks(run.folder)
    if name not in entries:
        hint = nearest(name, entries) if entries else "it has none"
        raise UserError(f"{run.folder / CONFIG} has no settings for the task {name!r}; {hint}")
    config, entry = Config(read_json(run.folder / CONFIG), str(run.folder / CONFIG)), entries[name]
    prefix = Config(entry, config.source).word("prefix") if "prefix" in entry else ""
    task, sample = run.recipe.task.changed(prefix=prefix), answering(run.folder, config, entry)
    return replace(run, recipe=run.recipe.changed(task=task, sample=sample))


def _with_languages(run: Run, languages: LanguageTokens, source: str | None, target: str | None) -> Run:
    task, frame = run.recipe.task, run.vocabulary.tokenizer.frame
    assert isinstance(task, SequenceToSequence)
    tokens, ids = languages.tokens.values(), _ids_of(run.vocabulary.tokenizer, languages)
    if target is None and len(tokens) > 1 and languages.begins_target and not set(task.begin) & set(tokens):
        example = next(iter(languages.tokens))
        raise UserError(
            f"{run.folder} writes in {len(tokens)} languages; name one, such as {example!r}, with --to, "
            "in Python target_language"
        )
    if not languages.begins_target:
        if source is not None:
            raise UserError(f"{run.folder} reads any of its languages and needs only that of the translation")
        source, target = target, None
    if source is not None:
        frame = _with_language(frame, ids, ids[languages.find(source)])
    if target is not None:
        token = languages.find(target)
        first = task.begin[:1] if task.begin and task.begin[0] not in tokens else ()
        begin = (*first, token)
        run = _with_limits(run, len(begin) - len(task.begin))
        task = task.changed(begin=begin)
    vocabulary = replace(run.vocabulary, tokenizer=run.vocabulary.tokenizer.with_frame(frame))
    return replace(run, recipe=run.recipe.changed(task=task), vocabulary=vocabulary)


def _with_limits(run: Run, more: int) -> Run:
    """Return the run with the limits of generated tokens for ``more`` tokens at the beginning, which limits in the
    files of a model count.
    """
    sample = run.recipe.sample
    most, least = max(1, sample.max_new_tokens - more), max(0, sample.min_tokens - more)
    return replace(run, recipe=run.recipe.changed(sample=sample.changed(max_new_tokens=most, min_tokens=least)))


def _ids_of(tokenizer: Tokenizer, languages: LanguageTokens) -> dict[str, int]:
    """Return the id of each language token by its text."""
    ids = {token: tokenizer.core.token_to_id(token) for token in languages.tokens.values()}
    return {token: index for token, index in ids.items() if index is not None}


def _with_language(frame: Frame, ids: Mapping[str, int], language: int) -> Frame:
    """Return ``frame`` with the token ``language`` in place of another one of ``ids``, else before the text."""
    languages = set(ids.values())
    if not any(mark.id in languages for marks in frame.marks for mark in marks):
        return frame._replace(marks=((*frame.marks[0], Mark(language)), *frame.marks[1:]))
    marks = tuple(
        tuple(mark._replace(id=language) if mark.id in languages else mark for mark in marks) for marks in frame.marks
    )
    return frame._replace(marks=marks)
