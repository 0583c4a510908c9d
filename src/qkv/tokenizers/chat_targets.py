"""Targets of conversations: the token ids of a conversation as the model sees it, and which of them it learns.

The model learns its answers. The prompt before answer k is the rendering of the messages before it with the generation
prompt, P_k, and the answer is what follows P_k in the rendering W_k of the messages up to it, through its end token:

    W_k = P_k a_k …        ids(P_k) ids(a_k)        targets: the tokens of a_k

That W_k begins with P_k is checked for each answer. If the ids up to the end of a_k begin the ids of P_{k+1}, one text
holds both answers. Otherwise the template changes earlier turns, for example by dropping their reasoning, and each
answer has a text of its own, in the form that the model sees when it writes it. Targets are positions, not ids, so that
an end token that also pads is learned.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

from qkv.system.errors import UserError, nearest
from qkv.tokenizers.chat_template import ChatTemplate

Learn = Literal["answers", "last", "everything"]
"""Part of a conversation that is learned: all answers of the assistant, the last one, or all tokens after the first."""
_NOTHING_THOUGHT = re.compile(r"\s*<(\w+)>\s*</\1>\s*\Z")
"""Empty reasoning, with which a generation prompt may end to switch reasoning off."""


@dataclass(frozen=True)
class EncodedChat:
    """One training text of a conversation.

    - ``ids``: its token ids
    - ``targets``: for each token, whether it is predicted and enters the loss
    - ``marks``: for each token, whether it is a special token, which only the template writes
    - ``answers``: number of answers that are learned
    - ``ends``: number of those whose end token is a target
    """

    ids: tuple[int, ...]
    targets: tuple[bool, ...]
    marks: tuple[bool, ...]
    ends: int
    answers: int

    @property
    def num_targets(self) -> int:
        """Number of tokens that are learned."""
        return sum(self.targets)


class EncodedAnswer(NamedTuple):
    """Answer within its conversation: ids of the prompt before it, ids of the answer through its end token, and which
    of the latter are targets.
    """

    prompt: list[int]
    ids: list[int]
    targets: list[bool]


def encode_chat(
    template: ChatTemplate,
    messages: Sequence[dict[str, Any]],
    learn: Learn = "answers",
    tools: Sequence[dict[str, Any]] | None = None,
    end_ids: Collection[int] = (),
    pictures: Sequence[Sequence[int]] = (),
    **variables: Any,
) -> list[EncodedChat]:
    """Encode a conversation to training texts: one, or one for each answer if the template changes earlier turns.

    messages: in the form that chat templates read. An answer whose ``weight`` is 0 is context. end_ids: tokens that end
    an answer of the model. pictures: placeholder ids of each picture, which are never targets. variables: further
    variables of the template. A conversation without an answer gives an
    empty list. Raises ``UserError`` for messages that the template refuses, and for a template from which the answers
    cannot be told apart.
    """
    if learn not in get_args(Learn):
        raise UserError(f"learn: {learn!r} is unknown; {nearest(str(learn), get_args(Learn))}")
    variables = {"tools": tools or None, **variables}
    places = [i for i, each in enumerate(messages) if each.get("role") == "assistant" and each.get("weight") != 0]
    learned = places[-1:] if learn == "last" else places
    texts = list[EncodedChat]()
    for place in learned:
        answer = find_answer(template, messages[:place], messages[place : place + 1], end_ids, pictures, **variables)
        before = texts[-1] if texts and answer.prompt[: len(texts[-1].ids)] == list(texts[-1].ids) else None
        if before is None:
            texts.append(_encoded(template, answer, EncodedChat((), (), (), 0, 0)))
        else:
            texts[-1] = _encoded(template, answer, before)
    if learn == "everything":  # the last text holds all messages up to the last answer
        return [replace(text, targets=(False, *(token >= 0 for token in text.ids[1:]))) for text in texts[-1:]]
    return texts


def _encoded(template: ChatTemplate, answer: EncodedAnswer, before: EncodedChat) -> EncodedChat:
    """Return the text that begins with ``before`` and ends with ``answer``."""
    ids = (*answer.prompt, *answer.ids)
    context = [False] * (len(answer.prompt) - len(before.ids))
    return EncodedChat(
        ids,
        (*before.targets, *context, *answer.targets),
        tuple(token in template.special_ids for token in ids),
        before.ends + answer.targets[-1],
        before.answers + 1,
    )


def find_answer(
    template: ChatTemplate,
    prompt: Sequence[dict[str, Any]],
    answer: Sequence[dict[str, Any]],
    end_ids: Collection[int] = (),
    pictures: Sequence[Sequence[int]] = (),
    **variables: Any,
) -> EncodedAnswer:
    """Encode the messages ``answer`` after the messages ``prompt``.

    The ids of the prompt are those that the model continues. The answer ends with its end token: one of ``end_ids``,
    else the special token that the template writes after each answer, else the tokenizer's end token, which is added.
    pictures: placeholder ids that replace the marker of each picture. Raises ``UserError``.
    """
    opening = template.marked_text(prompt, **variables)
    whole = template.marked_text([*prompt, *answer], **variables, add_generation_prompt=False)
    begin = _begin_of_answer(opening, whole)
    _check_calls(answer, whole[begin:])
    text = _through_end(template, whole[begin:], end_ids, **variables)
    spans = template.generation_spans([*prompt, *answer], **variables)
    prompt_ids = template.encode_marked(opening, pictures)
    ids, places = template.encode_places(opening + text, pictures)
    if ids[: len(prompt_ids)] == prompt_ids:
        ids, places, shift = ids[len(prompt_ids) :], places[len(prompt_ids) :], begin - len(opening)
    else:  # the border would be merged, but the model continues the prompt's own ids
        (ids, places), shift = template.encode_places(text), begin
    targets = _within([(first + shift, last + shift) for first, last in places], spans, begin)
    return EncodedAnswer(prompt_ids, ids, targets)


def _check_calls(answer: Sequence[dict[str, Any]], text: str) -> None:
    """Raise ``UserError`` if an answer calls a tool, and the template does not write the name of the tool."""
    calls = [call for message in answer for call in message.get("tool_calls") or ()]
    names = [str((call.get("function") or call).get("name")) for call in calls]
    absent = next((name for name in names if name not in text), None)
    if absent is not None:
        raise UserError(
            f"an answer calls the tool {absent!r}, but the chat template does not write tool calls, so nothing of the "
            "call would be learned; give a template that writes them (--chat-template), or leave the row out"
        )


def _begin_of_answer(opening: str, whole: str) -> int:
    """Return where the answer begins in ``whole``: after ``opening``, which may go on with empty reasoning or white
    space that the template does not write before an answer. Raises ``UserError``.
    """
    if whole.startswith(opening):
        return len(opening)
    for shorter in (_NOTHING_THOUGHT.sub("", opening), opening.rstrip()):
        if shorter != opening and whole.startswith(shorter):
            return len(whole) - len(whole[len(shorter) :].lstrip())
    same = _shared_length(opening, whole)
    raise UserError(
        "the chat template writes an answer in another form than it asks for: its prompt ends in "
        f"{opening[same : same + 40]!r}, and the answer goes on with {whole[same : same + 40]!r}; use a "
        "template whose prompt begins the answer"
    )


def _through_end(template: ChatTemplate, text: str, end_ids: Collection[int], **variables: Any) -> str:
    """Return the answer ``text`` through its end token; the tokenizer's is added if there is none. Raises
    ``UserError``.
    """
    if not text.strip():
        raise UserError("messages: the chat template does not write the answer, so nothing could be learned from it")
    usual = _end_after_answers(template, **variables)
    ends = [*template.texts_of(end_ids), *([usual] if usual else [])]
    closing = _closing_marks(template, text, ends)
    place = next((end for content, end in closing if content in ends), None)
    if place is None and closing and usual:  # another end than usual, such as that of a call
        place = closing[-1][1]
    if place is None:
        place = max((text.rfind(content) + len(content) for content in ends if content in text), default=None)
    if place is not None:
        return text[:place]
    if template.end_token is None:
        raise UserError(
            f"the chat template writes {_written_end(template, **variables)} after an answer, and the tokenizer has no "
            "end token, so the model would never learn to end; use a template that ends answers with a token"
        )
    return text.rstrip() + template.end_token


def _closing_marks(template: ChatTemplate, text: str, ends: Sequence[str]) -> list[tuple[str, int]]:
    """Return (text, end) of each special token behind all other text, in order."""
    contents, marks, rest = (*template.specials, *ends), list[tuple[str, int]](), text.rstrip()
    while content := max((each for each in contents if rest.endswith(each)), key=len, default=""):
        marks.append((content, len(rest)))
        rest = rest.removesuffix(content).rstrip()
    return marks[::-1]


def _end_after_answers(template: ChatTemplate, **variables: Any) -> str | None:
    """Return the text of the special token that the template writes first after a short answer; None if none."""
    try:
        marks = _closing_marks(template, template.after_answer(**variables), ())
    except UserError:  # the template refuses so short a conversation
        return None
    return marks[0][0] if marks else None


def _written_end(template: ChatTemplate, **variables: Any) -> str:
    """Return what the template writes after an answer in place of an end token, in words."""
    try:
        text = template.after_answer(**variables).strip()
    except UserError:  # the template refuses so short a conversation
        return "no end token"
    return f"{text[:40]!r}, which is no special token of the model," if text else "no end token"


def _within(places: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]], begin: int) -> list[bool]:
    """Return which tokens at ``places`` have a character in ``spans``: all if no span ends behind ``begin``. The last
    token, which ends the answer, always has.
    """
    spans = [span for span in spans if span[1] > begin]
    if not spans:
        return [True] * len(places)
    inside = [any(first < end and max(last, first + 1) > start for start, end in spans) for first, last in places]
    return [*inside[:-1], True]


def _shared_length(first: str, second: str) -> int:
    """Return the number of characters with which both begin."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def end_of_answer(template: ChatTemplate, end_ids: Collection[int] = (), **variables: Any) -> int:
    """Return the id of the token that ends an answer, from a rendering of a short one. Raises ``UserError``."""
    question, reply = {"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}
    return find_answer(template, [question], [reply], end_ids, **variables).ids[-1]


def pieces(text: EncodedChat) -> Iterator[tuple[bool, int, int]]:
    """Yield (is target, begin, end) of each run of tokens that are all targets, or all not."""
    begin = 0
    for end in range(1, len(text.ids) + 1):
        if end == len(text.ids) or text.targets[end] != text.targets[begin]:
            yield text.targets[begin], begin, end
            begin = end
