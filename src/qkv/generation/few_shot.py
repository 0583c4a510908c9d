"""Few-shot prompting: labelled examples before an input, whose label is then scored or generated.

    prompt(x) = t(x_1, y_1) … t(x_k, y_k) t(x, )        t: template; t(x, ) ends before the label

The label is the option with the largest log p(option | prompt) (Brown et al. 2020). With calibration it is the option
with the largest log p(option | prompt(x)) - log p(option | prompt(N/A)), which removes the bias of model and examples
towards a label (Zhao et al. 2021).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from qkv.generation.decode.score import (
    OptionScore,
    check_measure,
    check_options,
    joined_ids,
    score_by,
    score_prompts,
    softmax,
)
from qkv.generation.text import generate_texts
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation, Measure
from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer

LABEL = "label"
TEMPLATE = "{text}\nLabel: {label}\n\n"
NEUTRAL = "N/A"
"""Content-free input, for calibration."""
AT_ONCE = 16
"""Number of prompts per batch."""
_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Template:
    """Text of an example with its fields in braces; ``{label}`` must occur once, after all other fields."""

    text: str = TEMPLATE

    def __post_init__(self) -> None:
        names = _FIELD.findall(self.text)
        if names.count(LABEL) != 1 or names[-1] != LABEL or len(names) < 2:
            raise UserError(
                f"template: {self.text!r} given; it should have a field such as {{text}}, and after it {{label}} once"
            )

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields, without the label, in order."""
        return tuple(dict.fromkeys(name for name in _FIELD.findall(self.text) if name != LABEL))

    @property
    def before(self) -> str:
        """Template up to the label, without trailing white space, which is scored as part of the label (``gap``)."""
        return self.text[: self.text.index("{label}")].rstrip()

    @property
    def gap(self) -> str:
        """White space before the label."""
        return self.text[len(self.before) : self.text.index("{label}")]

    @property
    def after(self) -> str:
        """Text after the label; a generated label ends where this text begins."""
        return self.text[self.text.index("{label}") + len("{label}") :]

    def example(self, row: Mapping[str, str]) -> str:
        """Return the text of an example with its label."""
        return f"{self.question(row)}{self.gap}{row[LABEL]}{self.after}"

    def question(self, row: Mapping[str, str]) -> str:
        """Return the text of an input, up to its label. Raises ``UserError`` for a missing field."""
        missing = next((name for name in self.fields if name not in row), None)
        if missing is not None:
            raise UserError(
                f"the template has the field {missing!r}, but an input has only the fields {', '.join(row) or 'none'}"
            )
        return _FIELD.sub(lambda match: str(row[match[1]]), self.before)


class FewShotAnswer(NamedTuple):
    """Answer to an input; ``probabilities`` of all options, or None for a generated answer."""

    text: str
    probabilities: dict[str, float] | None


@dataclass(frozen=True)
class FewShot:
    """Few-shot prompt for a language model: a template, and examples with their labels."""

    model: Transformer
    tokenizer: Tokenizer
    examples: Sequence[Mapping[str, str]]
    template: Template = Template()

    @property
    def beginning(self) -> str:
        """Text of all examples."""
        return "".join(map(self.template.example, self.examples))

    def fitted(self, inputs: Sequence[Mapping[str, str]], room: int = 0) -> FewShot:
        """Return a copy without the first examples that do not fit the model's positions together with the longest
        input, the longest label and ``room`` further tokens.
        """
        limit = self.model.limit
        if limit is None or not inputs:
            return self
        lengths = [len(self.tokenizer.encode(self.template.example(row))) for row in self.examples]
        blank = {LABEL: max((row[LABEL] for row in self.examples), key=len, default="")}
        left = limit - room - max(len(self.tokenizer.encode(self.template.example({**row, **blank}))) for row in inputs)
        first = len(lengths)
        while first and lengths[first - 1] <= left:
            first -= 1
            left -= lengths[first]
        return replace(self, examples=self.examples[first:])

    def choose(
        self,
        inputs: Sequence[Mapping[str, str]],
        options: Sequence[Sequence[str]],
        by: Measure = "sum",
        calibrate: bool = False,
    ) -> list[FewShotAnswer]:
        """Choose the option with the largest score for each input.

        by: log probability of the option, in total ("sum") or per "token" or "character". calibrate: subtract the score
        that the option has after the content-free input ``NEUTRAL``. Raises ``UserError`` for an unknown ``by``, and
        as ``scores`` does.
        """
        check_measure(by)
        neutral: dict[tuple[str, ...], list[OptionScore]] = {}
        if calibrate:
            kinds = list(dict.fromkeys(map(tuple, options)))
            blank = dict.fromkeys(self.template.fields, NEUTRAL)
            neutral = dict(zip(kinds, self.scores([blank] * len(kinds), kinds), strict=True))
        answers = []
        for row_options, scores in zip(options, self.scores(inputs, options), strict=True):
            base = neutral.get(tuple(row_options), [OptionScore(0.0, 0.0)] * len(row_options))
            chances = softmax(
                [
                    score_by(by, option, score) - score_by(by, option, less)
                    for option, score, less in zip(row_options, scores, base, strict=True)
                ]
            )
            best = max(range(len(row_options)), key=chances.__getitem__)
            answers.append(FewShotAnswer(row_options[best], dict(zip(row_options, chances, strict=True))))
        return answers

    def write(self, inputs: Sequence[Mapping[str, str]], generation: Generation) -> list[FewShotAnswer]:
        """Generate the label of each input, up to the text that follows a label in the template."""
        ends = self.template.after.strip("\r ") or "\n"
        generation = generation.changed(stop=(*generation.stop, ends))
        prompts = [self.beginning + self.template.question(row) for row in inputs]
        texts = [
            text
            for i in range(0, len(prompts), AT_ONCE)
            for text in generate_texts(self.model, self.tokenizer, prompts[i : i + AT_ONCE], generation)
        ]
        return [FewShotAnswer(text.strip(), None) for text in texts]

    def scores(
        self,
        inputs: Sequence[Mapping[str, str]],
        options: Sequence[Sequence[str]],
        progress: Callable[[int], object] = lambda count: None,
    ) -> list[list[OptionScore]]:
        """Score the options of each input. ``progress``: called after each batch with its number of inputs.

        Raises ``UserError`` for missing fields, repeated or empty options.
        """
        scores: list[list[OptionScore]] = []
        rows = zip(inputs, options, strict=True)
        while some := list(islice(rows, AT_ONCE)):
            prompts, ids = [], []
            for row, row_options in some:
                check_options(row_options)
                before, after = joined_ids(
                    self.tokenizer,
                    self.beginning + self.template.question(row),
                    [self.template.gap + option for option in row_options],
                )
                prompts.append(before)
                ids.append(after)
            scores += score_prompts(self.model, prompts, ids)
            progress(len(some))
        return scores
