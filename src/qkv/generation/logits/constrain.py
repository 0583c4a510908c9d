"""Constrained generation: the text matches a regular expression, or is JSON that a schema allows.

Before each token the library llguidance (the extra ``constrain``) computes which tokens can continue the text. The
logits of all other tokens become -inf, before the filters. Once the text matches, all tokens may be sampled: a token
that cannot continue it, such as an end token, ends the text and is dropped. So a model without an end token can stop.
A constraint belongs to a row of ``qkv.generation.decode.sample.Sampling``.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.generation.logits.json_schema import rewrite
from qkv.generation.logits.sequence import sequence_grammar
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation
from qkv.system.errors import UserError
from qkv.tokenizers.special import special_ids
from qkv.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

LONGEST = 1 << 20
"""Maximum number of characters of an expression or a schema."""
_FORM = {"whitespace_flexible": True, "whitespace_pattern": r" |\n[ ]{0,32}", "coerce_one_of": True}
"""Options of llguidance for JSON. Between two JSON tokens there may be nothing, a space, or a line break with
indentation. More white space is forbidden, because a model might generate it without end. Less is worse, because models
were trained on JSON with such white space and make more mistakes without it.
"""


class Constraint:
    """Regular expression, JSON schema or sequence of parts, compiled for the tokens of a tokenizer.

    Regular expressions have the syntax of Rust's crate ``regex`` and must match the whole text. Schemas are those of
    JSON Schema (draft 2020-12), see ``qkv.generation.logits.json_schema``. Properties are generated in the order of the
    schema.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        regex: str | None = None,
        json_schema: str | None = None,
        open_objects: bool = False,
        sequence: str | None = None,
    ):
        """Compile ``regex``, ``json_schema`` or ``sequence`` (all strings); exactly one of them must be given.
        sequence: JSON of alternatives of parts, see ``qkv.generation.logits.sequence``.

        open_objects: allow properties that the schema does not name, even if ``additionalProperties`` is absent.
        Raises ``UserError`` without llguidance; for a tokenizer whose tokens depend on their neighbours or cannot begin
        a matching text; and for an expression or a schema that is invalid, not supported or too complex (``_limits``).
        """
        texts = [text for text in (regex, json_schema, sequence) if text is not None]
        if len(texts) != 1:
            which = "both" if texts else "neither"
            raise UserError(f"a constraint is either a regular expression or a JSON schema; {which} given")
        self.name = "JSON schema" if regex is None else "regular expression"
        text = texts[0]
        if len(text) > LONGEST:
            raise UserError(f"the {self.name} has {len(text):,} characters; allowed: at most {LONGEST:,}")
        library = _library()
        core = _tokens(library, tokenizer)
        self.dropped: tuple[str, ...] = ()
        """Keywords of the schema that are not enforced, with their JSON pointers."""
        if regex is not None:
            grammar = library.LLMatcher.grammar_from_regex(text)
        elif json_schema is not None:
            grammar, self.dropped = _of_schema(library, text, open_objects)
        else:
            grammar, self.dropped = _of_sequence(library, text, special_ids(tokenizer.core))
        self._matcher: LLMatcher = library.LLMatcher(core, grammar, log_level=0, limits=_limits(library))
        if self._matcher.is_error():
            raise UserError(f"the {self.name} cannot be used: {_sentence(self._matcher.get_error())}")
        if any(warning.startswith("oneOf") for warning in self._matcher.get_grammar_warnings()):
            self.dropped += ("oneOf, which is read as anyOf",)
        self.size = tokenizer.vocab_size
        Guide(self._matcher, self.size, self.name).allowed((), self.size)  # fills the cache that all texts share
        start, opening = self.guide(), core.tokenize_str("{")
        start.accepted(opening[: start.possible(opening)])  # an object with too many properties is refused here

    @property
    def note(self) -> str:
        """Sentence that names the keywords that are not enforced."""
        return f"parts of the {self.name} cannot be enforced and are ignored: {'; '.join(self.dropped)}"

    def guide(self) -> Guide:
        """Return a ``Guide`` for a new text, which is empty."""
        return Guide(self._matcher.deep_copy(), self.size, self.name)

    def check(self, model: Transformer, generation: Generation) -> None:
        """Raise ``UserError`` for beam search, stop strings, and a vocabulary other than that of ``model``."""
        if generation.num_beams > 1:
            raise UserError(
                f"num_beams is {generation.num_beams}, but beam search does not support constraints; leave it at 1"
            )
        if generation.stop:
            raise UserError(
                f"stop: {generation.stop[0]!r} could end a text before the constraint is met; leave stop strings out"
            )
        if self.size > (model.vocab_size or 0):
            raise UserError(
                f"the constraint's tokenizer has {self.size} tokens, but the model has only {model.vocab_size or 0}"
            )


def constraint_of(
    tokenizer: Tokenizer, regex: str | None, json_schema: Any, open_objects: bool = False
) -> Constraint | None:
    """Compile a regular expression or a JSON schema (string or plain data) to a ``Constraint``; None without either.

    Warns of keywords that are not enforced. Raises ``UserError``, see ``Constraint``.
    """
    if regex is None and json_schema is None:
        return None
    if json_schema is not None and not isinstance(json_schema, str):
        try:
            json_schema = json.dumps(json_schema)
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(f"the JSON schema cannot be written as JSON: {_sentence(str(error))}") from None
    constraint = Constraint(tokenizer, regex, json_schema, open_objects)
    if constraint.dropped:
        warnings.warn(constraint.note, stacklevel=2)
    return constraint


class Guide:
    """Matcher of one text against a constraint, which computes the tokens that can continue the text."""

    def __init__(self, matcher: LLMatcher, size: int, name: str):
        self._matcher, self._size, self.name = matcher, size, name
        self._bits = torch.zeros(1, size // 32 + 1, dtype=torch.int32)
        self.done = False
        """True once no token can be added, or a token has ended the text."""

    @property
    def complete(self) -> bool:
        """True if the text matches the constraint without further tokens."""
        return self.done or self._matcher.is_accepting()

    def possible(self, tokens: Sequence[int]) -> int:
        """Return how many of the first ``tokens`` can be added to the text.

        Raises ``UserError`` if that takes more time or memory than ``_limits`` allows.
        """
        valid = list(takewhile(lambda token: token < self._size, tokens))  # a model may have ids beyond the tokenizer's
        count = self._matcher.validate_tokens(valid)
        self._check()
        return count

    def allowed(self, tokens: Sequence[int], width: int) -> Tensor:
        """Return a mask (len(tokens) + 1, width): True for tokens that may be sampled after the text and after each of
        ``tokens``.

        These are the tokens that continue the text, and all tokens where it is complete. ``width``: size of the model's
        vocabulary. Raises ``UserError`` if the text is incomplete and no token continues it, and as ``possible`` does.
        """
        mask, added = torch.ones(len(tokens) + 1, width, dtype=torch.bool), 0
        for token in (*tokens, None):
            if not self.complete:
                mask[added, : self._size] = self._continuing()
                mask[added, self._size :] = False
            if token is None or self.done or not self.possible([token]):
                break
            self.accept(token)
            added += 1
        if added:
            self._matcher.rollback(added)
            self.done = False
        return mask

    def accept(self, token: int) -> bool:
        """Add a token to the text and return True. A token that cannot continue a complete text ends it instead; the
        result is then False.

        Raises ``UserError`` if the token cannot continue an incomplete text, and as ``possible`` does.
        """
        if self.possible([token]):
            self._matcher.consume_token(token)
            self._check()
            self.done = self._matcher.is_stopped()
            return True
        if not self.complete:
            raise UserError(f"token {token} cannot continue the text, because the {self.name} forbids it")
        self.done = True
        return False

    def accepted(self, tokens: Sequence[int]) -> list[int]:
        """Add ``tokens`` to the text up to the first that ends it; return the added tokens."""
        return list(takewhile(lambda token: not self.done and self.accept(token), tokens))

    def _check(self) -> None:
        """Raise ``UserError`` if the library has reported an error, from which it does not recover."""
        if self._matcher.is_error() and not self._stuck:
            raise UserError(f"the {self.name} is too complex: {_sentence(self._matcher.get_error())}")

    @property
    def _stuck(self) -> bool:
        """True if the library has reported that no token continues the text."""
        return self._matcher.get_error().startswith("NoExtension")

    def _continuing(self) -> Tensor:
        """Return a mask (size,) of the tokens that can continue an incomplete text."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.data_ptr(), self._bits.nbytes)
        self._check()
        allowed = (self._bits[0, :, None] >> torch.arange(32)).bitwise_and(1).flatten()[: self._size].bool()
        if self._stuck or not bool(allowed.any()):
            raise UserError(
                f"no token of the tokenizer can continue the text as the {self.name} demands; train a tokenizer on "
                "texts that match it"
            )
        return allowed


class _Vocabulary:
    """Tokens of a tokenizer in the form that llguidance reads, with an end token after the last id."""

    def __init__(self, tokenizer: Tokenizer):
        token_bytes = tokenizer.token_bytes
        if token_bytes is None:
            raise UserError(
                "the tokenizer joins its tokens with spaces or word markers, so the text of a token depends on its "
                "neighbours; constrained text needs a tokenizer of bytes, characters, words or byte-level BPE"
            )
        outside = {*tokenizer.specials.values(), *special_ids(tokenizer.core).values()}
        self.eos_token_id = len(token_bytes)
        self.bos_token_id = None
        self.special_token_ids = [*sorted(outside), len(token_bytes)]
        self.tokens = [b"" if index in outside else token for index, token in enumerate(token_bytes)] + [b""]
        self._tokenizer = tokenizer
        self._ids = {token: index for index, token in enumerate(self.tokens) if token}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: bytes) -> list[int]:
        """Tokenize ``text``; llguidance calls this. Where the constraint forces a text, it allows only the first id.

        The list is empty if the text begins with no token of the vocabulary.
        """
        try:
            ids = self._tokenizer.encode(text.decode())
        except (UnicodeDecodeError, UserError):
            ids = []
        return ids if b"".join(self.tokens[index] for index in ids) == text else self._greedy(text)

    def _greedy(self, text: bytes) -> list[int]:
        """Tokenize by the longest matching token from left to right; stop where no token matches."""
        ids: list[int] = []
        while text:
            ends = range(min(len(text), self._longest), 0, -1)
            length = next((end for end in ends if text[:end] in self._ids), 0)
            if not length:
                break
            ids.append(self._ids[text[:length]])
            text = text[length:]
        return ids


def _library() -> Any:
    try:
        import llguidance
    except ImportError:
        raise UserError("constrained text needs the package llguidance: pip install 'qkv[constrain]'") from None
    return llguidance


@lru_cache(maxsize=8)  # reading a large vocabulary takes a second
def _tokens(library: Any, tokenizer: Tokenizer) -> LLTokenizer:
    return library.LLTokenizer(library.TokenizerWrapper(_Vocabulary(tokenizer)))


def _limits(library: Any) -> LLParserLimits:
    """Return limits of time and memory: about a second for compilation, and tenths of a second for a step.

    An object has four parser items in a row (``max_items_in_row``) for each optional property that may come next.
    """
    return library.LLParserLimits(
        max_items_in_row=10_000,
        initial_lexer_fuel=2_000_000,
        step_lexer_fuel=200_000,
        step_max_items=1_000_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def _of_schema(library: Any, schema: str, open_objects: bool) -> tuple[str, tuple[str, ...]]:
    """Compile a schema; return (grammar, keywords that it leaves out)."""
    try:
        content = json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise UserError(f"the JSON schema is not valid JSON: {_sentence(str(error))}") from None
    if not isinstance(content, dict):
        raise UserError(f"the JSON schema is a {type(content).__name__}; allowed: an object")
    rewriting = rewrite(content, lambda schema: _is_supported(library, schema), open_objects)
    return _grammar(library, rewriting.schema), rewriting.dropped


def _of_sequence(library: Any, sequence: str, specials: Mapping[str, int]) -> tuple[str, tuple[str, ...]]:
    """Compile alternatives of parts; return (grammar, keywords of their schemas that it leaves out)."""
    dropped = list[str]()

    def schema(content: Mapping[str, Any]) -> str:
        rewriting = rewrite(dict(content), lambda each: _is_supported(library, each), False)
        dropped.extend(rewriting.dropped)
        return json.dumps({"x-guidance": _FORM, **rewriting.schema})

    lark = sequence_grammar(json.loads(sequence), specials, schema)
    return library.LLMatcher.grammar_from_lark(lark), tuple(dict.fromkeys(dropped))


def _is_supported(library: Any, schema: dict[str, Any]) -> bool:
    """Return False for a pattern with look-around or backreferences.

    An invalid pattern returns True; it is refused when the whole schema is compiled.
    """
    message = library.LLMatcher.validate_grammar(_grammar(library, schema), limits=_limits(library))
    return not ("regex parse error" in message and "supported" in message)


def _grammar(library: Any, schema: dict[str, Any]) -> str:
    return library.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_FORM)


def _sentence(message: str) -> str:
    """Shorten the library's message to one line, truncated after 200 characters."""
    line = " ".join(message.split())
    return line if len(line) <= 200 else f"{line[:200]} …"
