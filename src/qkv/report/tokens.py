"""Texts with every token marked as context, target, or mark of a template: on a page, and in a terminal.

Colour is never the only difference, so that both read the same in monochrome: a target is underlined, a mark dotted or
faint, a special token boxed. Plain text has brackets instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import IO, Literal, NamedTuple

from qkv.report.figures import counted
from qkv.report.markup import Markup, tag, visible

TokenKind = Literal["context", "target", "mark"]
MEANINGS: dict[TokenKind, str] = {
    "context": "context: read, not learned",
    "target": "target: learned",
    "mark": "mark: special token that the template writes, not learned",
}
"""Sentence for the legend on each kind of token."""
LONGEST = 20_000
"""Maximum number of tokens of a text that are shown."""
_BRACKETS = {"context": ("", ""), "target": ("⟦", "⟧"), "mark": ("‹", "›")}
_ASCII = {"context": ("", ""), "target": ("[[", "]]"), "mark": ("<<", ">>")}
_STYLES = {"context": "", "target": "bold underline magenta", "mark": "dim"}


class ShownToken(NamedTuple):
    """Token of a text: its text, kind and id. ``special``: True for a special token, such as the end of an answer."""

    text: str
    kind: TokenKind
    id: int
    special: bool = False

    @property
    def visible(self) -> str:
        """Text with line ends and control characters made visible; line breaks are kept."""
        return visible(self.text).replace("\r", "␍").replace("\n", "↵\n").replace("\t", "⇥\t")


class TokenText(NamedTuple):
    """Text of tokens with a title. ``limit``: number of tokens that truncation keeps; None for all."""

    title: str
    tokens: Sequence[ShownToken]
    limit: int | None = None

    @property
    def cut(self) -> int | None:
        """Index of the first token that truncation removes; None if it removes none."""
        return self.limit if self.limit is not None and len(self.tokens) > self.limit else None

    @property
    def caption(self) -> str:
        """Numbers of tokens and targets, as text for people."""
        targets = sum(token.kind == "target" for token in self.tokens)
        cut = "" if self.cut is None else f"; truncation keeps {self.cut:,}"
        return f"{counted(len(self.tokens), 'token')}, {counted(targets, 'target')}{cut}"


def legend() -> Markup:
    """Build the legend of texts that are shown token by token."""
    kinds = [tag("span", tag("span", kind, class_=kind), meaning.removeprefix(kind)) for kind, meaning in _meanings()]
    special = tag("span", tag("span", "boxed", class_="context special"), ": special token")
    return tag("p", *kinds, special, class_="tokens-legend")


def _meanings() -> list[tuple[str, str]]:
    return [(str(kind), meaning) for kind, meaning in MEANINGS.items()]


def token_markup(text: TokenText) -> Markup:
    """Build the markup of a text: one element per token, of the class ``context``, ``target`` or ``mark``, and
    ``special``; a rule before the first token that truncation removes.
    """
    tokens = text.tokens[:LONGEST]
    spans = [_span(token) for token in tokens]
    if text.cut is not None and text.cut <= len(tokens):
        spans.insert(text.cut, tag("span", "truncation removes the rest", class_="cut", role="separator"))
    rest = len(text.tokens) - len(tokens)
    more = tag("span", f"… and {counted(rest, 'token')} more", class_="more") if rest else None
    return tag("div", *spans, more, class_="tokens")


def _span(token: ShownToken) -> Markup:
    about = f"{token.kind}, id {token.id}"
    return tag("span", token.visible, class_=f"{token.kind} special" if token.special else token.kind, title=about)


def print_tokens(text: TokenText, stream: IO[str]) -> None:
    """Print a text of tokens: coloured and underlined on a terminal, with brackets elsewhere."""
    if stream.isatty():
        _print_rich(text, stream)
    else:
        stream.write(bracketed(text, getattr(stream, "encoding", None) or "utf-8"))


def bracketed(text: TokenText, encoding: str = "utf-8") -> str:
    """Format a text as plain text with brackets around targets and marks, and a legend.

    ``encoding``: encoding of the output; without the brackets ⟦ ⟧ ‹ › in it, they are [[ ]] << >>.
    """
    brackets = _BRACKETS if _encodes("".join(map("".join, _BRACKETS.values())), encoding) else _ASCII
    parts = [f"{brackets[kind][0]}{words}{brackets[kind][1]}" for kind, words in _runs(text)]
    names = ", ".join(f"{brackets[kind][0]}{kind}{brackets[kind][1]}" for kind in MEANINGS)
    lines = f"{text.title}: {text.caption} ({names})\n\n{''.join(parts).rstrip()}\n"
    return lines.encode(encoding, "replace").decode(encoding)


def _encodes(text: str, encoding: str) -> bool:
    try:
        return bool(text.encode(encoding))
    except UnicodeEncodeError:
        return False


def _runs(text: TokenText) -> Iterator[tuple[TokenKind, str]]:
    """Yield (kind, text) of each run of tokens of one kind."""
    tokens = text.tokens[:LONGEST]
    for _, group in groupby(tokens, key=lambda token: token.kind):
        run = list(group)
        yield run[0].kind, "".join(token.visible for token in run)
    if len(text.tokens) > len(tokens):
        yield "context", f"\n… and {counted(len(text.tokens) - len(tokens), 'token')} more"


def _print_rich(text: TokenText, stream: IO[str]) -> None:
    from rich.console import Console
    from rich.text import Text

    line = Text.assemble((text.title, "bold"), f": {text.caption} (", end="")
    for kind in MEANINGS:
        line.append(kind, _STYLES[kind])
        line.append(")\n\n" if kind == "mark" else ", ")
    for kind, words in _runs(text):
        line.append(words, _STYLES[kind])
    plain = "NO_COLOR" in os.environ
    Console(file=stream, force_terminal=True, no_color=plain, highlight=False).print(line, soft_wrap=True, end="\n")
