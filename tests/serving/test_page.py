"""The page at ``/``: whole in one file, and asking only what the server answers."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import httpx
import pytest
from tests.serving.conftest import Running

from qkv.serving.app import OPEN
from qkv.serving.bodies import CompletionBody
from qkv.serving.chats import ChatBody


class Page(HTMLParser):
    """Ids of a page's elements, and everything that one of them would load."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what an element names."""
        found = dict(attrs)
        self.ids += [found["id"] or ""] if "id" in found else []
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href", "action", "data", "srcset")]


@pytest.fixture(scope="module")
def answer(server: Running) -> httpx.Response:
    return httpx.get(f"{server.url}/")


def test_the_page_is_whole(answer: httpx.Response) -> None:
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    page = Page(answer.text)
    assert page.loaded == ["data:,"]  # an empty icon, so that none is asked for
    assert "http" not in answer.text
    assert "@import" not in answer.text
    assert "innerHTML" not in answer.text  # texts of a model are never read as HTML
    named = set(re.findall(r'\$\("(\w+)"\)', answer.text))
    assert named <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_the_page_asks_what_the_server_answers(answer: httpx.Response, server: Running) -> None:
    paths = set(re.findall(r'"(/[\w/]*)"', answer.text))
    assert paths == {"/v1/models", "/v1/completions", "/v1/chat/completions", "/metrics"}
    for path in paths:
        assert httpx.get(f"{server.url}{path}").status_code in (200, 405)
    assert "/" in OPEN  # it asks for the key itself
    fields = {"stream", "stream_options", "model", "temperature", "top_p", "max_tokens", "seed", "stop", "logprobs"}
    assert fields < CompletionBody.model_fields.keys() & ChatBody.model_fields.keys()
    metrics = httpx.get(f"{server.url}/metrics").text
    for name in re.findall(r'"(qkv_\w+)"', answer.text):
        assert f"# TYPE {name} " in metrics or f"# TYPE {name.removesuffix('_total')}" in metrics
