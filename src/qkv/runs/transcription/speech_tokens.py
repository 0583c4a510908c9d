"""Special tokens and settings of a model that transcribes: from ``generation_config.json``, or from its tokenizer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qkv.interop.files.folder import read_json
from qkv.interop.files.places import GENERATION
from qkv.interop.mapping.config import Config
from qkv.runs.run import Run, task_of
from qkv.runs.storage.published import NOT_SAID
from qkv.system.errors import UserError, nearest
from qkv.tokenizers.special import special_ids

_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
_TASKS = ("transcribe", "translate")
WITHOUT_SPACES = ("zh", "ja", "th", "lo", "my", "yue")
"""Codes of languages whose words are not divided by spaces."""


@dataclass(frozen=True)
class SpeechTokens:
    """Ids of the tokens that begin, divide and end transcripts.

    start: begins a transcript. marks: follow it in models that were trained here. end: ends it; all smaller ids are
    text. no_times: stands in place of timestamps, None if the model writes none. first_time: timestamp 0.00. no_speech:
    for silence, or None. previous: begins the text of earlier windows, or None. languages, tasks: by code and name;
    empty if the model has one. suppressed, first_suppressed, latest_start: see ``qkv.generation.logits.speech``. heads:
    (layer, head) of cross-attention whose weights follow the sound; empty if unknown.
    """

    start: int
    end: int
    first_time: int
    no_times: int | None = None
    no_speech: int | None = None
    previous: int | None = None
    languages: Mapping[str, int] | None = None
    tasks: Mapping[str, int] | None = None
    suppressed: tuple[int, ...] = ()
    first_suppressed: tuple[int, ...] = ()
    latest_start: int | None = None
    heads: tuple[tuple[int, int], ...] = ()
    marks: tuple[int, ...] = ()

    def forced(self, language: str | None, task: str, timed: bool) -> tuple[int, ...]:
        """Return the ids that follow ``start`` in every transcript: of the language, the task and the timestamps.

        Raises ``UserError`` for a language or a task that the model lacks.
        """
        ids = list(self.marks)
        if self.languages:
            assert language is not None
            ids.append(self.language_id(language))
            if self.tasks:
                ids.append(self.tasks[task])
        elif task == "translate":
            raise UserError("the model has one language and no task, so it cannot translate; leave the task out")
        if not timed and self.no_times is not None:
            ids.append(self.no_times)
        return tuple(ids)

    def language_id(self, code: str) -> int:
        """Return the id of a language by its code, such as "en". Raises ``UserError``."""
        assert self.languages is not None
        if code not in self.languages:
            raise UserError(f"the model has no language {code!r}; {nearest(code, self.languages)}")
        return self.languages[code]


def speech_tokens(run: Run) -> SpeechTokens:
    """Read the special tokens of the model of ``run``. Raises ``UserError`` if it lacks those of a transcript."""
    if run.tokenizer.absent:
        raise UserError(f"{run.folder} has no tokenizer, so its tokens cannot be written as text; add tokenizer.json")
    special = special_ids(run.tokenizer.core)
    file = run.folder / GENERATION
    values = Config(read_json(file) if file.is_file() else {}, str(file))
    first = task_of(run).first_ids(run.vocabulary)
    end = values.values.get("eos_token_id", run.tokenizer.special("eos"))
    end = end[0] if isinstance(end, list) and end else end
    if not isinstance(end, int):
        raise UserError(f"{run.folder} does not say which token ends a transcript")
    sample, count = run.recipe.sample, run.model.vocab_size or 0
    if run.recipe.data.source != NOT_SAID:  # trained here: it begins as its texts did, which had no timestamps
        suppressed, initially = tuple(sample.suppress_tokens), tuple(sample.begin_suppress_tokens)
        return SpeechTokens(
            first[0], end, count, suppressed=suppressed, first_suppressed=initially, marks=tuple(first[1:])
        )
    no_times = _one(values, "no_timestamps_token_id", special, "<|notimestamps|>")
    languages = _by_name(values, "lang_to_id") or _languages(special)
    return SpeechTokens(
        first[0],
        end,
        count if no_times is None else no_times + 1,
        no_times,
        special.get("<|nospeech|>", special.get("<|nocaptions|>", None if no_times is None else no_times - 1)),
        _one(values, "prev_sot_token_id", special, "<|startofprev|>"),
        languages if values.flag("is_multilingual", len(languages) > 1) else {},
        _by_name(values, "task_to_id") or {name: special[f"<|{name}|>"] for name in _TASKS if f"<|{name}|>" in special},
        tuple(sample.suppress_tokens),
        tuple(sample.begin_suppress_tokens),
        values.integer("max_initial_timestamp_index") if values.has("max_initial_timestamp_index") else None,
        tuple((int(layer), int(head)) for layer, head in values.items("alignment_heads")),
    )


def _one(values: Config, key: str, special: Mapping[str, int], text: str) -> int | None:
    return values.integer(key) if values.has(key) else special.get(text)


def _by_name(values: Config, key: str) -> dict[str, int]:
    """Read the table ``key`` of ids; return them by name. A token such as ``<|en|>`` has the name ``en``."""
    table: Mapping[str, Any] = values.table(key).values
    return {name.strip("<|>"): int(index) for name, index in table.items()}


def _languages(special: Mapping[str, int]) -> dict[str, int]:
    return {match[1]: index for text, index in special.items() if (match := _LANGUAGE.fullmatch(text))}
