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
"""What is learned of a conversation: all answers of the assistant, the last one, or every token after the first."""
_NOTHING_THOUGHT = re.compile(r"\s*<(\w+)>\s*</\1>\s*")
"""Empty reasoning, which a generation prompt may contain to switch reasoning off."""


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


class Answer(NamedTuple):
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
    **variables: Any,
) -> list[EncodedChat]:
    """Encode a conversation to training texts: one, or one for each answer if the template changes earlier turns.

    messages: in the form that chat templates read. An answer whose ``weight`` is 0 is context. end_ids: tokens that end
    an answer of the model. variables: further variables of the template. A conversation without an answer gives an
    empty list. Raises ``UserError`` for messages that the template refuses, and for a template from which the answers
    cannot be told apart.
    """
    if learn not in get_args(Learn):
        raise UserError(f"learn: {learn!r} is unknown; {nearest(str(learn), get_args(Learn))}")
    variables = {"tools": tools or None, **variables}
    places = [i for i, each in enumerate(messages) if each.get("role") == "assistant" and each.get("weight", 1)]
    learned = places[-1:] if learn != "answers" else places
    texts = list[EncodedChat]()
    for place in learned:
        answer = find_answer(template, messages[:place], messages[place : place + 1], end_ids, **variables)
        before = texts[-1] if texts and answer.prompt[: len(texts[-1].ids)] == list(texts[-1].ids) else None
        if before is None:
            texts.append(_encoded(template, answer, EncodedChat((), (), (), 0, 0)))
        else:
            texts[-1] = _encoded(template, answer, before)
    if learn == "everything":
        return [replace(text, targets=(False, *[True] * (len(text.ids) - 1))) for text in texts]
    return texts


def _encoded(template: ChatTemplate, answer: Answer, before: EncodedChat) -> EncodedChat:
    """Return the text that begins with ``before`` and ends with ``answer``."""
    ids = (*answer.prompt, *answer.ids)
    context = [False] * (len(answer.prompt) - len(before.ids))
    return EncodedChat(
        ids,
        (*before.targets, *context, *answer.targets),
        tuple(token in template.special_ids for token in ids),
        before.ends + (answer.ids[-1] in template.special_ids),
        before.answers + 1,
    )


def find_answer(
    template: ChatTemplate,
    prompt: Sequence[dict[str, Any]],
    answer: Sequence[dict[str, Any]],
    end_ids: Collection[int] = (),
    **variables: Any,
) -> Answer:
    """Encode the messages ``answer`` after the messages ``prompt``.

    The ids of the prompt are those that the model continues. The answer ends with its end token: one of ``end_ids``,
    else the special token that the template writes after each answer, else the tokenizer's end token, which is added.
    Raises ``UserError``.
    """
    opening = template.marked_text(prompt, **variables)
    whole = template.marked_text([*prompt, *answer], **variables, add_generation_prompt=False)
    begin = len(opening) if whole.startswith(opening) else _begin_without_thought(opening, whole)
    text = _through_end(template, whole[begin:], end_ids)
    spans = [
        (max(0, first - begin), last - begin)
        for first, last in template.generation_spans([*prompt, *answer], **variables)
        if last > begin
    ]
    if not text:
        raise UserError("messages: the chat template does not write the answer, so nothing could be learned from it")
    prompt_ids = template.encode_marked(opening)
    joint = template.encode_marked(opening + text)
    ids = joint[len(prompt_ids) :] if joint[: len(prompt_ids)] == prompt_ids else template.encode_marked(text)
    inside = _within(template, len(prompt_ids), opening, text, ids, spans) if spans else [True] * len(ids)
    return Answer(prompt_ids, ids, inside)


def _begin_without_thought(
    template: ChatTemplate, prompt: Sequence[dict[str, Any]], whole: str, **variables: Any
) -> int:
    """Return where the answer begins in ``whole`` if the generation prompt goes on with empty reasoning or white space,
    which the template does not write before an answer.
    """
    opening = template.marked_text(prompt, **variables)
    pairs = zip(opening, whole, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(opening), len(whole)))
    rest = opening[same:]
    if rest.strip() and not _NOTHING_THOUGHT.fullmatch(rest):
        raise UserError(
            f"the chat template writes an answer in another form than it asks for: its prompt ends in {rest[-40:]!r}, "
            f"and the answer goes on with {whole[same : same + 40]!r}; use a template whose prompt begins the answer"
        )
    return same


def _through_end(template: ChatTemplate, text: str, end_ids: Collection[int]) -> str:
    """Return the answer ``text`` through its end token; the tokenizer's is added if there is none."""
    ends = [content for content, index in template.special_ids_by_text.items() if index in end_ids]
    place = max((text.rfind(content) + len(content) for content in ends if content in text), default=0)
    if place:
        return text[:place]
    bare = text.rstrip()
    if not bare or bare.endswith(tuple(template.special_ids_by_text)):
        return bare
    if template.end_token is None:
        raise UserError(
            "the chat template writes no end token after an answer, and the tokenizer has none, so the model would "
            "never learn to end; use a template that ends answers"
        )
    return bare + template.end_token


def _within(
    template: ChatTemplate, before: int, opening: str, text: str, ids: Sequence[int], spans: Sequence[tuple[int, int]]
) -> list[bool]:
    """Return which tokens ``ids`` of an answer ``text`` lie in ``spans`` of its characters; its end token always does.

    ``before``: number of tokens of the prompt ``opening``.
    """
    inside = [False] * len(ids)
    for span in spans:
        parts = (template.encode_marked(opening + text[:place])[before:] for place in span)
        begin, end = (_shared_length(part, ids) for part in parts)
        inside[begin:end] = [True] * (end - begin)
    inside[-1] = True
    return inside


def _shared_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the number of tokens with which both begin."""
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
