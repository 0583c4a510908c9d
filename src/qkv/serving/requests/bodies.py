"""Bodies of HTTP requests, in the form of OpenAI's interface.

Parameters that are not supported and would change an answer, such as ``suffix``, are refused, never ignored; their
neutral values are accepted. Parameters without effect on an answer are accepted and reported, see
``qkv.serving.requests.effects``. Parameters that are meant for the records of an operator are accepted without a
report: ``user``, ``metadata``, ``store``, ``service_tier``, ``safety_identifier``, ``prompt_cache_key``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BeforeValidator, Field

from qkv.serving.errors import ApiError
from qkv.serving.limits import MAX_BIASES, MAX_CHOICES, MAX_LOGPROBS, MAX_STOP_LENGTH, MAX_STOP_TOKENS, MAX_STOPS
from qkv.serving.requests import structure as read
from qkv.serving.requests.effects import Lenient, NoEffect
from qkv.serving.requests.structure import Structure
from qkv.spec.base import LARGEST_SEED, Spec
from qkv.spec.errors import Problem, SpecError
from qkv.spec.generation import Generation
from qkv.system.errors import quoted
from qkv.tokenizers.tokenizer import well_formed


def only(*allowed: Any) -> Callable[[Any], Any]:
    """Return a validator of an unsupported parameter: it accepts null and the neutral values ``allowed`` only."""
    named = ", ".join(json.dumps(value) for value in (None, *allowed))

    def check(value: Any) -> Any:
        if not any(type(value) is type(each) and value == each for each in (None, *allowed)):
            raise ValueError(f"{quoted(value)} given, but this server does not support it; allowed: {named}")
        return value

    return check


def _stops(value: Any) -> Any:
    """Normalise stop strings to a tuple: a single string becomes one, and empty strings are dropped. Too many are
    refused before each of them is validated.
    """
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list) and len(value) > MAX_STOPS:
        raise ValueError(f"{len(value):,} stop strings given; allowed: at most {MAX_STOPS}")
    return (tuple(text for text in value if text != "") or None) if isinstance(value, list) else value


def _stop_tokens(value: Any) -> Any:
    """Convert the list of stop token ids to a tuple; refuse too many."""
    if isinstance(value, list) and len(value) > MAX_STOP_TOKENS:
        raise ValueError(f"{len(value):,} ids given; allowed: at most {MAX_STOP_TOKENS}")
    return tuple(value) if isinstance(value, list) else value


def _biases(value: Any) -> Any:
    """Validate biases of logits by token id; see ``Generation``."""
    if isinstance(value, (dict, list)) and len(value) > MAX_BIASES:
        raise ValueError(f"biases of {len(value):,} tokens given; allowed: at most {MAX_BIASES:,}")
    try:
        return value and Generation.parse({"logit_bias": value}).logit_bias
    except SpecError as error:
        raise ValueError(error.problems[0].sentence) from None


def _prompts(value: Any) -> Any:
    """Normalise the prompts of a completion to a tuple of texts and tuples of ids."""
    if value is None or isinstance(value, str):
        return (value or "",)
    if isinstance(value, tuple):  # already converted
        return value
    if not isinstance(value, list) or not value:
        raise ValueError(f"{quoted(value)} given; allowed: a text, a list of ids, or a list of these")
    ids = all(isinstance(each, int) and not isinstance(each, bool) for each in value)
    several = [value] if ids else value
    if len(several) > MAX_CHOICES:
        raise ValueError(f"{len(several):,} prompts given; allowed: at most {MAX_CHOICES}")
    for each in several:
        whole = isinstance(each, list) and each and all(type(index) is int for index in each)
        if not isinstance(each, str) and not whole:
            raise ValueError(f"{quoted(each)} given; allowed: a text or a list of ids")
    return tuple(tuple(each) if isinstance(each, list) else each for each in several)


_SETTINGS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "min_tokens",
    "stop",
)
"""Parameters that are fields of ``Generation`` with the same name and meaning."""
Neutral = Annotated[Any, BeforeValidator(only())]
Unused = Annotated[Any, Field(description="accepted, without effect on an answer")]


class StreamOptions(Lenient):
    """Options of a streamed answer. include_usage: end the stream with the token counts."""

    include_usage: bool | None = None
    include_obfuscation: Unused = None


class GenerationBody(Lenient):
    """Parameters that completions and chats share. A parameter that is missing or null has the value of the run's
    ``sample``.

    Parameters beyond OpenAI's: ``top_k`` (-1 and 0: off); ``min_p``; ``repetition_penalty``, also as
    ``repeat_penalty``; ``stop_token_ids``; ``min_tokens``; ``ignore_eos`` (end tokens do not end a text);
    ``guided_json``, ``guided_regex``, ``guided_choice`` and ``structured_outputs``, see
    ``qkv.serving.requests.structure``. goes_on: if the request sets no maximum, a text may fill the context, instead of
    the run's ``max_new_tokens``.
    """

    goes_on: ClassVar[bool] = True
    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=0)
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, lt=1)
    repetition_penalty: float | None = Field(default=None, gt=0)
    repeat_penalty: float | None = Field(default=None, gt=0)
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[Any, BeforeValidator(_biases)] = None
    min_tokens: int | None = Field(default=None, ge=0)
    stop_token_ids: Annotated[tuple[Annotated[int, Field(ge=0)], ...] | None, BeforeValidator(_stop_tokens)] = None
    stop: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)], ...] | None, BeforeValidator(_stops)
    ] = None
    seed: int | None = Field(default=None, ge=-1, le=LARGEST_SEED)
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: Annotated[Any, BeforeValidator(read.response_format)] = None
    guided_json: Annotated[Any, BeforeValidator(read.guided_json)] = None
    guided_regex: Annotated[Any, BeforeValidator(read.guided_regex)] = None
    guided_choice: Annotated[Any, BeforeValidator(read.guided_choice)] = None
    structured_outputs: Annotated[Any, BeforeValidator(read.structured_outputs)] = None
    user: Unused = None
    metadata: Unused = None
    store: Unused = None
    service_tier: Unused = None
    safety_identifier: Unused = None
    prompt_cache_key: Unused = None
    reasoning_effort: NoEffect = None
    verbosity: NoEffect = None
    prompt_cache_retention: NoEffect = None
    cache_prompt: NoEffect = None
    keep_alive: NoEffect = None
    skip_special_tokens: NoEffect = None

    def problems(self) -> list[Problem]:
        if self.stream_options is not None and not self.stream:
            return [Problem(("stream_options",), "it applies to streamed answers; set stream to true or leave it out")]
        if len(self._structures) > 1:
            names = [each.name for each in self._structures]
            return [Problem((names[1],), f"it cannot be combined with {names[0]}; leave one of them out")]
        if len({self.repetition_penalty, self.repeat_penalty} - {None}) > 1:
            sentence = f"{self.repeat_penalty} given, but repetition_penalty is {self.repetition_penalty}; give one"
            return [Problem(("repeat_penalty",), sentence)]
        return []

    @property
    def settings(self) -> dict[str, Any]:
        """Fields of ``Generation`` that the request sets, without ``max_new_tokens`` and ``stop_token_ids``."""
        penalty = self.repeat_penalty if self.repetition_penalty is None else self.repetition_penalty
        values = {name: getattr(self, name) for name in _SETTINGS} | {"repetition_penalty": penalty}
        settings = {name: value for name, value in values.items() if value is not None}
        if self.top_k is not None:
            settings["top_k"] = self.top_k if self.top_k > 0 else None
        if self.seed is not None:
            settings["seed"] = self.seed if self.seed >= 0 else None
        return settings

    @property
    def _structures(self) -> list[Structure]:
        structures = (
            self.response_format,
            self.guided_json,
            self.guided_regex,
            self.guided_choice,
            self.structured_outputs,
        )
        return [each for each in structures if each is not None]

    @property
    def structure(self) -> Structure | None:
        """Constraint of the answer; None if any text is allowed."""
        return next(iter(self._structures), None)

    @property
    def alternatives(self) -> int | None:
        """Number of most probable tokens to return with each token; None for no log-probabilities."""
        raise NotImplementedError

    @property
    def wants_usage(self) -> bool:
        """True if a streamed answer ends with the token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class CompletionBody(GenerationBody):
    """Body of ``/v1/completions``."""

    goes_on: ClassVar[bool] = False
    prompt: Annotated[tuple[str | tuple[int, ...], ...], BeforeValidator(_prompts)] = ("",)
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    best_of: int | None = None
    suffix: Annotated[Any, BeforeValidator(only(""))] = None

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if self.best_of not in (None, self.n or 1):
            problems.append(Problem(("best_of",), f"{self.best_of} given, but all n texts are returned; leave it out"))
        if len(self.prompt) * (self.n or 1) > MAX_CHOICES:
            sentence = f"{self.n} texts of {len(self.prompt)} prompts given; allowed: at most {MAX_CHOICES} in all"
            problems.append(Problem(("n",), sentence))
        return problems

    @property
    def alternatives(self) -> int | None:
        return self.logprobs


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Escaped UTF-16 surrogate; an unpaired surrogate is read as U+FFFD."""
Body = TypeVar("Body", bound=Spec)


def parsed(data: bytes, kind: type[Body]) -> Body:
    """Parse the bytes of a body. Raises ``ApiError`` (400), which names the wrong parameter, if any."""
    try:
        tree = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
        if _SURROGATE.search(data):
            tree = json.loads(well_formed(json.dumps(tree, ensure_ascii=False)))
        if not isinstance(tree, dict):
            raise ApiError(f'the body is {quoted(tree)}, but an object such as {{"prompt": "a"}} is needed')
        return kind.parse(tree)
    except UnicodeDecodeError as error:
        sentence = f"the body is not UTF-8: byte {data[error.start]:#04x} at position {error.start}"
        raise ApiError(sentence, code="invalid_json") from None
    except RecursionError:
        raise ApiError("the body is nested too deeply", code="invalid_json") from None
    except SpecError as error:
        path = error.problems[0].path
        raise ApiError(str(error), param=str(path[0]) if path else None, code="invalid_value") from None
    except ValueError as error:
        raise ApiError(f"the body is not JSON: {error}", code="invalid_json") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")
