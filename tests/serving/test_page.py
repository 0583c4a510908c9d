"""The page at ``/``: whole in one file, asking only what the server answers, and safe with whatever a model writes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serving import models
from tests.serving.browser import set_value
from tests.serving.conftest import Running, serving

import qkv.serving.http.app
from qkv.runs.chats.history import HistoryFile, SavedChat, checked_messages, read_chats
from qkv.serving.http.app import OPEN, Access
from qkv.serving.requests.bodies import CompletionBody
from qkv.serving.requests.chats import ChatBody, ChatMessage

PARTS = Path(qkv.serving.http.app.__file__).parents[1] / "page"
NODE = shutil.which("node")
BROWSER = os.environ.get("QKV_BROWSER") or shutil.which("chromium")
CONTROLS = ("input", "select", "textarea", "button")


class Page(HTMLParser):
    """Ids and controls of a page's elements, and everything that one of them would load."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: list[str] = []
        self.loaded: list[str] = []
        self.unnamed: list[str] = []
        self.tags: dict[str, dict[str, str | None]] = {}
        self.inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what an element names."""
        found = dict(attrs)
        if name := found.get("id"):
            self.ids.append(name)
            self.tags[name] = found
        self.loaded += [value or "" for key, value in attrs if key in ("src", "href", "action", "data", "srcset")]
        if tag in CONTROLS[:3] and "label" not in self.inside and "aria-label" not in found:
            self.unnamed.append(str(found.get("id")))
        if tag not in ("input", "meta", "link", "br", "polyline"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Leave an element."""
        while self.inside and self.inside.pop() != tag:
            pass


@pytest.fixture(scope="module")
def answer(server: Running) -> httpx.Response:
    return httpx.get(f"{server.url}/")


def test_the_page_is_whole(answer: httpx.Response) -> None:
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    page = Page(answer.text)
    assert page.loaded == ["data:,"]  # an empty icon, so that none is asked for
    assert "{{" not in answer.text
    assert not re.search(r"""["'(]https?://\w""", answer.text)
    assert "@import" not in answer.text
    assert "url(" not in answer.text
    named = set(re.findall(r'\$\("(\w+)"\)', answer.text))
    assert named <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_no_text_of_a_model_becomes_html(answer: httpx.Response) -> None:
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"):
        assert way not in answer.text


def test_the_page_asks_what_the_server_answers(answer: httpx.Response, server: Running) -> None:
    paths = set(re.findall(r'"(/[\w/]+)"', answer.text))
    assert paths == {"/v1/models", "/v1/completions", "/v1/chat/completions", "/metrics"}
    for path in paths:
        assert httpx.get(f"{server.url}{path}").status_code in (200, 405)
    assert "/" in OPEN  # it asks for the key itself
    fields = {"stream", "stream_options", "model", "temperature", "top_p", "max_tokens", "seed", "stop", "logprobs"}
    assert fields < CompletionBody.model_fields.keys() & ChatBody.model_fields.keys()
    metrics = httpx.get(f"{server.url}/metrics").text
    for name in re.findall(r'"(qkv_\w+)"', answer.text):
        assert f"# TYPE {name} " in metrics or f"# TYPE {name.removesuffix('_total')}" in metrics


def test_what_is_hidden_stays_hidden(answer: httpx.Response) -> None:
    page = Page(answer.text)
    assert "hidden" in page.tags["keys"]
    assert "hidden" in page.tags["stop"]
    assert "[hidden] { display: none !important; }" in answer.text  # else display of a label or button would show it


def test_screen_readers_find_names_and_are_told_of_answers(answer: httpx.Response) -> None:
    page = Page(answer.text)
    assert page.unnamed == []
    assert page.tags["log"]["aria-live"] == "polite"
    assert page.tags["log"]["tabindex"] == "0"  # scrolled with the keyboard
    assert page.tags["note"]["role"] == "status"
    assert page.tags["toggle"]["aria-controls"] in page.ids
    assert page.tags["prompt"]["aria-describedby"] in page.ids


def test_models_tell_their_defaults_and_whether_they_chat(tmp_path: Path) -> None:
    plain = models.text_run(tmp_path / "plain", sample={"temperature": 0.3, "max_new_tokens": 7, "stop": ["\n\n"]})
    plain.tokenizer.chat_template = None
    chatting = models.text_run(tmp_path / "chatting")
    with serving({"plain": plain, "chatting": chatting}) as server:
        listed = {each["id"]: each for each in httpx.get(f"{server.url}/v1/models").json()["data"]}
        asked = {"model": "plain", "prompt": "the", "seed": 1}
        usual = httpx.post(f"{server.url}/v1/completions", json=asked).json()
        defaults = listed["plain"]["defaults"]
        told = {name: value for name, value in defaults.items() if value not in (None, [])}
        same = httpx.post(f"{server.url}/v1/completions", json={**asked, **told}).json()
    assert (defaults["temperature"], defaults["max_tokens"], defaults["stop"]) == (0.3, 7, ["\n\n"])
    assert usual["choices"] == same["choices"]  # what is told is what happens
    assert "chat" not in listed["plain"]["capabilities"]
    assert "chat" in listed["chatting"]["capabilities"]


def markdown(*texts: str) -> list[Any]:
    """Trees of texts, as the page reads them."""
    assert NODE is not None
    program = (
        f"const {{ markdown }} = require({json.dumps(str(PARTS / 'markdown.js'))});"
        "const texts = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
        "console.log(JSON.stringify(texts.map(markdown)));"
    )
    said = subprocess.run(
        [NODE, "-e", program], input=json.dumps(texts), capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(said.stdout)


def nodes(tree: Any) -> Iterator[list[Any]]:
    """All elements of a tree."""
    for node in tree:
        if not isinstance(node, str):
            yield node
            yield from nodes(node[2])


ELEMENTS = {"p", "hr", "pre", "code", "blockquote", "ul", "ol", "li", "a", "span", "strong", "em", "s", "br"} | {
    *("h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td")
}
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")
CODE = ["code", {}, ["x|y"]]
READ = {
    "# A *b*": [["h1", {}, ["A ", ["em", {}, ["b"]]]]],
    "a **b** `c<d>` ~~e~~": [
        ["p", {}, ["a ", ["strong", {}, ["b"]], " ", ["code", {}, ["c<d>"]], " ", ["s", {}, ["e"]]]]
    ],
    "snake_case_name and 2 * 3": [["p", {}, ["snake_case_name and 2 * 3"]]],
    "- a\n- b\n  1. c\n": [
        ["ul", {}, [["li", {}, ["a"]], ["li", {}, ["b", ["ol", {}, [["li", {}, ["c"]]]]]]]],
    ],
    "3. a\n4. b": [["ol", {"start": 3}, [["li", {}, ["a"]], ["li", {}, ["b"]]]]],
    "```py\nx < 1\n": [["pre", {"language": "py"}, ["x < 1\n"]]],  # still being written
    "~~~\n```\n~~~\nend": [["pre", {"language": ""}, ["```"]], ["p", {}, ["end"]]],
    "> a\n> b": [["blockquote", {}, [["p", {}, ["a\nb"]]]]],
    "|a|b|\n|-|-:|\n|1|`x\\|y`|": [
        [
            "table",
            {},
            [
                ["thead", {}, [["tr", {}, [["th", {"align": "left"}, ["a"]], ["th", {"align": "right"}, ["b"]]]]]],
                [
                    "tbody",
                    {},
                    [
                        [
                            "tr",
                            {},
                            [["td", {"align": "left"}, ["1"]], ["td", {"align": "right"}, [["code", {}, ["x|y"]]]]],
                        ]
                    ],
                ],
            ],
        ]
    ],
    "[a](https://b.c/d_(e))": [["p", {}, [["a", {"href": "https://b.c/d_(e)"}, ["a"]]]]],
    "see https://b.c/d.": [["p", {}, ["see ", ["a", {"href": "https://b.c/d"}, ["https://b.c/d"]], "."]]],
    "**unclosed [x](": [["p", {}, ["**unclosed [x]("]]],
    "<script>alert(1)</script>": [["p", {}, ["<script>alert(1)</script>"]]],
}


@needs_node
def test_markdown_is_read() -> None:
    assert dict(zip(READ, markdown(*READ), strict=True)) == READ


@needs_node
def test_links_keep_safe_protocols_only() -> None:
    bad = (
        "javascript:alert(1)",
        "JaVaScRiPt:x",
        "data:text/html,x",
        "vbscript:x",
        "file:///etc",
        "//host",
        "java\tscript:x",
    )
    for tree in markdown(*(f"[text]({link}) <{link}> ![image]({link})" for link in bad)):
        assert not [node for node in nodes(tree) if "href" in node[1]]
        assert "text" in json.dumps(tree)
    good = [
        node[1]["href"] for tree in markdown("[a](http://b.c) [d](mailto:e@f.g)") for node in nodes(tree) if node[1]
    ]
    assert good == ["http://b.c", "mailto:e@f.g"]


@needs_node
def test_markdown_has_a_few_elements_and_takes_any_text() -> None:
    marks = (
        "*",
        "_",
        "`",
        "[",
        "](",
        "<https://",
        "> ",
        "- ",
        "1. ",
        "|",
        "|-",
        "\\[",
        "~~",
        "#",
        "```\n",
        "**a ",
        "\n\n  ",
    )
    for tree in markdown(*(mark * 3000 for mark in marks), "".join(marks) * 20):
        assert {node[0] for node in nodes(tree)} <= ELEMENTS


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_a_chat_in_a_browser(width: int, height: int, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    run = models.text_run(tmp_path / "talk", sample={"max_new_tokens": 5})
    with serving({"talk": run}, access=Access(key="secret")) as server, playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": width, "height": height})
        tab.goto(server.url)
        tab.wait_for_function("document.querySelector('#note').textContent.includes('needs a key')")
        assert tab.is_visible("#key")
        assert not tab.is_visible("#stop")
        tab.fill("#key", "secret")
        tab.press("#key", "Enter")
        tab.wait_for_function("document.querySelector('#model').value === 'talk'")
        assert tab.is_visible("#settings") == (width > 800)
        size = tab.evaluate(
            "[document.documentElement.scrollWidth, document.querySelector('#composer').getBoundingClientRect().bottom]"
        )
        assert size[0] == width
        assert height - 2 <= size[1] <= height  # the page fills the height
        set_value(tab, "max_tokens", "5")
        tab.fill("#prompt", "the fox")
        tab.press("#prompt", "Enter")
        tab.wait_for_selector(".retry")
        assert tab.text_content(".turn.user .text") == "the fox"
        assert "is cut" in tab.text_content(".cut")
        tab.click(".retry")
        tab.wait_for_selector(".retry")
        assert tab.locator(".turn.assistant").count() == 1
        tab.evaluate("draw(Object.assign(turn('assistant', 'x'), { text: '<img src=q onerror=hit=1> **b**' }), true)")
        assert tab.locator("#log img").count() == 0
        assert tab.locator("#log strong").last.text_content() == "b"
        tab.evaluate("append(turn('assistant', 'x'), { delta: { reasoning_content: '<b>hm' } })")
        assert tab.locator(".thought div").last.text_content() == "<b>hm"
        browser.close()


@needs_node
def test_chats_of_the_terminal_are_opened(tmp_path: Path) -> None:
    """And what the page saves is read by ``qkv chat``."""
    assert NODE is not None
    tool = {"type": "function", "function": {"name": "look"}}
    chat = SavedChat([{"role": "user", "content": "é"}, {"role": "assistant", "content": "A"}], [tool], {"id": 3})
    file = tmp_path / "chat.jsonl"
    history = HistoryFile(file)
    history.add(SavedChat([{"role": "user", "content": "earlier"}]))
    history.write(chat)
    program = (
        f"const {{ chatLine, lastChat }} = require({json.dumps(str(PARTS / 'history.js'))});"
        "const chat = lastChat(require('fs').readFileSync(0, 'utf8'));"
        "process.stdout.write(chatLine(chat.messages, chat.columns));"
    )
    run = partial(subprocess.run, [NODE, "-e", program], capture_output=True, text=True, timeout=60)
    file.write_text(run(input=file.read_text(encoding="utf-8"), check=True).stdout, encoding="utf-8")
    assert read_chats(file) == [chat]
    for text in (json.dumps(chat.messages), f"{json.dumps([{'messages': chat.messages}], indent=1)}\n"):
        file.write_text(run(input=text, check=True).stdout, encoding="utf-8")
        assert read_chats(file) == [SavedChat(chat.messages)]
    assert "The file holds no chat" in run(input="no chat\n").stderr


@needs_node
def test_pictures_are_parts_of_a_message() -> None:
    """In the form that the server and ``qkv chat`` read; nothing but data URIs is drawn."""
    assert NODE is not None
    program = (
        f"const page = require({json.dumps(str(PARTS / 'pictures.js'))});"
        "const content = page.contentOf('a b', ['data:image/png;base64,AA', 'data:image/png;base64,BB']);"
        "const odd = [{ image_url: 'data:image/gif;base64,CC' }, { image_url: 'http://a' }, { text: 3 }];"
        "console.log(JSON.stringify([content, page.textOf(content), page.picturesOf(content), page.contentOf('a', []),"
        "page.textOf('a'), page.textOf(null), page.picturesOf('a'), page.picturesOf(odd), page.textOf(odd)]));"
    )
    found = subprocess.run([NODE, "-e", program], capture_output=True, text=True, timeout=60, check=True).stdout
    content, text, pictures, *rest = json.loads(found)
    assert (text, pictures) == ("a b", ["data:image/png;base64,AA", "data:image/png;base64,BB"])
    assert checked_messages([{"role": "user", "content": content}]) == [{"role": "user", "content": content}]
    assert ChatMessage.parse({"role": "user", "content": content}).pictures == pictures
    assert rest == ["a", "a", "", [], ["data:image/gif;base64,CC"], ""]
