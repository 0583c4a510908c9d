"""``qkv show``: what is learned from conversations, in the terminal, on a page, in a notebook; refusals."""

from __future__ import annotations

import io
import json
import os
import re
from contextlib import suppress
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call

import qkv as package
from qkv.data.records.values import Unusable
from qkv.report.tokens import ShownToken, TokenText, bracketed, print_tokens, token_markup
from qkv.runs.chats.pieces import pieces
from qkv.spec import tokenizers as spec
from qkv.spec.model import Text
from qkv.spec.recipes.chat_tasks import Chat
from qkv.tasks.chats.audit import ChatTally
from qkv.tasks.chats.chat import ChatText, ConversationReader
from qkv.tokenizers.chat_targets import encode_chat
from qkv.tokenizers.chat_template import find_template
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FORGETFUL = TEMPLATE.replace("m.content +", "(m.content if loop.last or m.role != 'assistant' else '') +")
"""Template that drops earlier answers."""


def row(*turns: str) -> dict[str, Any]:
    """A conversation whose messages are the user's and the assistant's in turn."""
    return {"messages": [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]}


ROWS = [
    row("how many legs?", "eight\nlegs 😀", "and a fly?", "six"),
    row("who?", "the <|im_end|> cat"),
    row("no answer"),
    row("long", "the cat sat on the mat " * 12),
]


class Spans(HTMLParser):
    """Class, title and text of each token of the first text on a page, and all addresses that the page names."""

    def __init__(self, page: str):
        super().__init__()
        self.tokens, self.addresses, self._depth, self._texts = list[list[str]](), list[str](), 0, 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.addresses += [values[name] for name in ("src", "href", "action", "srcset") if name in values]
        if tag == "div":
            self._texts += values.get("class") == "tokens"
            self._depth = 1 if values.get("class") == "tokens" else 0
        elif tag == "span" and self._depth and self._texts == 1 and "title" in values:
            self.tokens.append([values["class"], values["title"], ""])

    def handle_endtag(self, tag: str) -> None:
        if tag == "div":
            self._depth = 0

    def handle_data(self, data: str) -> None:
        if self._depth and self._texts == 1:
            self.tokens[-1][2] += data


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = ["the cat sat on the mat. how many legs? eight and six. user assistant " * 20]
    trained = train(spec.BPE(vocab_size=300), texts).with_specials((), ("<|im_start|>", "<|im_end|>"))
    return Tokenizer(trained.core, {"eos": "<|im_end|>", "bos": "<|im_start|>"}, TEMPLATE)


@pytest.fixture(scope="module")
def start(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a chat template."""
    sizes = Text(vocab_size=tokenizer.vocab_size)
    model = package.build(package.Model(num_layers=1, width=32, context_length=64, frontend=sizes))
    return package.save(model, tmp_path_factory.mktemp("start") / "run", tokenizer)


@pytest.fixture
def chats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return written(tmp_path / "chat.jsonl", ROWS)


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def test_counts_are_those_of_the_encoded_conversations(
    qkv: Call, chats: Path, start: Path, tokenizer: Tokenizer
) -> None:
    template, ends = find_template(tokenizer), [tokenizer.specials["eos"]]
    texts = [encode_chat(template, ROWS[i]["messages"], end_ids=ends)[0] for i in (0, 1, 3)]
    tokens, targets = sum(len(text.ids) for text in texts), sum(sum(text.targets) for text in texts)
    said = qkv("show", chats, "--from", start, "--no-page")
    assert said.code == 0
    assert f"{targets:,} of {tokens:,} tokens are targets; the end is a target in all" in said.out
    assert re.search(r"^answers that are learned +4$", said.out, re.MULTILINE)
    assert re.search(r"^row 3 +it has no answer of the assistant$", said.out, re.MULTILINE)
    assert re.search(rf"^maximum +{len(texts[2].ids)}$", said.out, re.MULTILINE)
    assert re.search(rf"^tokens that truncation removes +{len(texts[2].ids)}$", said.out, re.MULTILINE)
    assert not Path("chat.html").exists()


def test_targets_stand_in_brackets_where_colour_is_missing(qkv: Call, chats: Path, start: Path) -> None:
    said = qkv("show", chats, "--from", start, "--no-page")
    assert "⟦eight↵\nlegs " in said.out
    assert "😀<|im_end|>⟧↵\n‹<|im_start|>›user↵\nand a fly?‹<|im_end|>›↵\n" in said.out
    assert "⟦six<|im_end|>⟧" in said.out


def test_rows_are_chosen(qkv: Call, chats: Path, start: Path) -> None:
    said = qkv("show", chats, "--from", start, "--no-page", "--row", "4", "--row", "2")
    assert said.out.index("row 4: ") < said.out.index("row 2: ")
    assert "row 1: " not in said.out
    for wrong in ("3", "5", "0"):
        said = qkv("show", chats, "--from", start, "--no-page", "--row", wrong)
        assert said.code == 2
        assert f"row: {wrong} given" in said.err


def test_every_token_is_on_the_page_once(qkv: Call, chats: Path, start: Path, tokenizer: Tokenizer) -> None:
    assert qkv("show", chats, "--from", start, "--out", "page.html").code == 0
    source = Path("page.html").read_text()
    page = Spans(source)
    (text,) = encode_chat(find_template(tokenizer), ROWS[0]["messages"], end_ids=[tokenizer.specials["eos"]])
    assert [int(title.rpartition(" ")[2]) for _, title, _ in page.tokens] == list(text.ids)
    assert tuple("target" in classes.split() for classes, _, _ in page.tokens) == text.targets
    assert tuple("special" in classes.split() for classes, _, _ in page.tokens) == text.marks
    assert "".join(unescape(words) for _, _, words in page.tokens).count("<|im_end|>") == 4
    assert not [address for address in page.addresses if not address.startswith("data:")]
    assert "default-src 'none'" in unescape(source)


def test_the_page_is_named_after_the_data(qkv: Call, chats: Path, start: Path) -> None:
    assert qkv("show", chats, "--from", start).out.endswith("page: chat.html\n")
    page = Path("chat.html").read_text()
    for words in ("Every token", "Lengths", "Counts", "Rows that cannot be used", "Template", "it has no answer"):
        assert words in page
    assert qkv("show", chats, "--from", start, "--out", chats).code == 2


def test_a_page_has_the_name_of_a_page(qkv: Call, chats: Path, start: Path, tmp_path: Path) -> None:
    words = "--out: 'page.png' given, but an HTML page is written; name a file that ends in .html"
    lines = [("show", chats, "--from", start), ("inspect", start, "a"), ("explain", start, "a"), ("particles",)]
    for line in (*lines, ("subleq", "add")):
        said = qkv(*line, "--out", "page.png")
        assert (said.code, words in said.err) == (2, True), line
    assert not (tmp_path / "page.png").exists()
    said = qkv("evaluate", start, "--report", "page.txt")
    assert (said.code, "--report: 'page.txt' given" in said.err) == (2, True)
    assert qkv("show", chats, "--from", start, "--out", "Page.HTM").code == 0
    assert (tmp_path / "Page.HTM").exists()


def test_tools_that_the_template_does_not_read_are_told(qkv: Call, start: Path, chats: Path) -> None:
    written(chats, [{**ROWS[0], "tools": [{"name": "look"}]}, ROWS[1], {**ROWS[3], "tools": []}])
    said = qkv("show", chats, "--from", start, "--no-page")
    assert "1 of 3 rows has tools, which the chat template does not read, so they are left out" in said.err


def test_the_last_answer_alone_can_be_learned(qkv: Call, chats: Path, start: Path) -> None:
    said = qkv("show", chats, "--from", start, "--no-page", "--learn", "last")
    assert "⟦six<|im_end|>⟧" in said.out
    assert "⟦eight" not in said.out
    said = qkv("show", chats, "--from", start, "--no-page", "--learn", "first")
    assert said.code == 2
    assert "learn: 'first'" in said.err


def test_texts_of_a_template_that_changes_earlier_turns_are_counted(qkv: Call, chats: Path, start: Path) -> None:
    file = Path("forgetful.jinja")
    file.write_text(FORGETFUL)
    said = qkv("show", chats, "--from", start, "--no-page", "--chat-template", file)
    assert re.search(r"^texts +4$", said.out, re.MULTILINE)
    assert "1 conversation of 3 is trained as several texts" in said.err
    assert said.out.index("row 1, text 1: ") < said.out.index("row 1, text 2: ")


def test_two_start_tokens_are_counted(qkv: Call, chats: Path, start: Path) -> None:
    file = Path("double.jinja")
    file.write_text("{{ bos_token }}" + TEMPLATE)
    said = qkv("show", chats, "--from", start, "--no-page", "--chat-template", file)
    assert "3 texts of 3 begin with two start tokens" in said.err


def test_preferences_have_two_texts(qkv: Call, tmp_path: Path, chats: Path, start: Path) -> None:
    pair = {"prompt": "how many legs?", "chosen": "eight", "rejected": "six"}
    file = written(tmp_path / "pairs.jsonl", [pair, pair])
    said = qkv("show", file, "--from", start, "--no-page")
    assert said.code == 0
    assert "row 1, chosen: " in said.out
    assert "⟦six<|im_end|>⟧" in said.out
    assert re.search(r"^texts +4$", said.out, re.MULTILINE)
    assert qkv("show", file, "--from", start, "--no-page", "--learn", "last").code == 2


def test_judged_answers_and_labels_of_topics_are_told_apart(
    qkv: Call, tmp_path: Path, chats: Path, start: Path
) -> None:
    one = {"prompt": "how many?", "completion": "six"}
    judged = written(tmp_path / "judged.jsonl", [{**one, "label": False}, {**one, "label": True}])
    assert "row 1, bad: " in qkv("show", judged, "--from", start, "--no-page").out
    topics = written(tmp_path / "topics.jsonl", [{**one, "label": "sums"}])
    assert "row 1: " in qkv("show", topics, "--from", start, "--no-page").out


def test_columns_of_a_table_are_named_as_in_training(qkv: Call, tmp_path: Path, chats: Path, start: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("ask,reply\nhow many?,six\nwho?,the cat\n")
    said = qkv("show", file, "--from", start, "--no-page", "--prompt", "ask", "--completion", "reply")
    assert said.code == 0
    assert "⟦six<|im_end|>⟧" in said.out


def test_plain_data_hold_the_same(qkv: Call, chats: Path, start: Path) -> None:
    said = qkv("show", chats, "--from", start, "--no-page", "--json")
    counts = json.loads(said.out)
    assert counts["rows"] == 3
    assert counts["unused"] == [{"place": "row 3", "reason": "it has no answer of the assistant"}]
    assert counts["shown"]["1"][0]["kinds"].count("target") > 0


def test_the_function_takes_data_in_memory(chats: Path, start: Path) -> None:
    shown, memory = package.show(chats, start=start), package.show(ROWS, start=start, rows=[2])
    assert memory.audit.targets == shown.audit.targets
    assert list(memory.texts) == [2]
    html = memory._repr_html_()
    assert shown.audit.headline in html
    assert f">{shown.audit.targets:,}<" in html
    assert "http" not in html


def test_training_reads_the_same_tokens(chats: Path, start: Path, tokenizer: Tokenizer) -> None:
    long = row("how many?", "six", "and a fly?", "the cat sat on the mat " * 12)
    audit = package.show([*ROWS, long], start=start).audit
    reader = ConversationReader(find_template(tokenizer), Chat(), [tokenizer.specials["eos"]], ChatTally(64))
    texts = list[ChatText]()
    for each in (*ROWS, long):
        with suppress(Unusable):
            texts += reader(each)
    assert audit.cut.texts == 2
    assert audit.cut.rows == (4,)
    assert sum(len(text.ids) for text in texts) == audit.tokens - audit.cut.tokens
    assert sum(int(text.targets.sum()) for text in texts) == audit.targets - audit.cut.targets
    assert audit.summary[0] in reader.notes(4)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["chat.jsonl"], "--from is missing"),
        (["gone.jsonl", "--from", "START"], "there is no file 'gone.jsonl'"),
        (["chat.jsonl", "--from", "gone/away/here"], "neither a trained run nor a published checkpoint"),
        (["chat.jsonl", "--from", "START", "--length", "0"], "length: 0 given"),
        (["chat.jsonl", "--from", "START", "--length", "3"], "removes every target"),
        (["chat.jsonl", "--from", "START", "--chat-template", "none.jinja"], "cannot be read"),
        (["chat.jsonl", "--from", "START", "--chat-template", "pipe"], "'pipe' is a pipe; name a regular file"),
        (["none.jsonl", "--from", "START"], "a run on it would learn nothing"),
        (["others.jsonl", "--from", "START"], "say which is which, such as --prompt Frage --completion 'Die Antwort'"),
        (["numbers.jsonl", "--from", "START"], "row 1: its completion is the number 4, not a text"),
        (["chat.jsonl", "--from", "BARE"], "no chat template"),
        (["chat.jsonl", "--from", "BARE"], "--chat-template FILE"),
    ],
)
def test_refusals_are_one_sentence(
    qkv: Call, chats: Path, start: Path, tmp_path: Path, tokenizer: Tokenizer, line: list[str], words: str
) -> None:
    written(tmp_path / "none.jsonl", [row("no answer"), row("none here")])
    written(tmp_path / "others.jsonl", [{"Frage": "a", "Die Antwort": "b"}])
    written(tmp_path / "numbers.jsonl", [{"prompt": "2 + 2", "completion": 4}])
    bare = tmp_path / "bare"
    bare.mkdir()
    os.mkfifo("pipe")
    for file in start.iterdir():
        if file.suffix != ".jinja":
            (bare / file.name).write_bytes(file.read_bytes())
    said = qkv("show", *[each.replace("START", str(start)).replace("BARE", str(bare)) for each in line], "--no-page")
    assert said.code == 2
    assert words in said.err
    assert said.err.count("\n") == 1


def test_a_template_of_ones_own_replaces_a_missing_one(qkv: Call, chats: Path, start: Path, tmp_path: Path) -> None:
    bare, file = tmp_path / "bare", tmp_path / "own.jinja"
    bare.mkdir()
    for each in start.iterdir():
        if each.suffix != ".jinja":
            (bare / each.name).write_bytes(each.read_bytes())
    file.write_text(TEMPLATE)
    assert qkv("show", chats, "--from", bare, "--no-page", "--chat-template", file).code == 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


SHOWN = TokenText(
    "row 1", [ShownToken("a", "context", 1), ShownToken("<e>", "mark", 2), ShownToken("b\n", "target", 3)]
)


def test_a_terminal_without_colour_still_underlines(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, coloured in (("", True), ("1", False)):
        monkeypatch.delenv("NO_COLOR", raising=False)
        if variable:
            monkeypatch.setenv("NO_COLOR", variable)
        stream = Terminal()
        print_tokens(SHOWN, stream)
        codes = [set(code.split(";")) for code in re.findall(r"\x1b\[([\d;]+)m", stream.getvalue())]
        assert any("4" in code for code in codes)
        assert any("35" in code for code in codes) == coloured
    assert bracketed(SHOWN).endswith("\n\na‹<e>›⟦b↵\n⟧\n")
    assert bracketed(SHOWN, "ascii").endswith("\n\na<<<e>>>[[b?\n]]\n")


def test_truncation_is_a_rule_between_tokens() -> None:
    cut = token_markup(SHOWN._replace(limit=2))
    assert cut.index("id 2") < cut.index('class="cut"') < cut.index("id 3")
    assert 'class="cut"' not in token_markup(SHOWN._replace(limit=3))
    assert "&lt;e&gt;" in cut


def test_tokens_of_one_character_are_bytes_and_the_character(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a 😀")
    assert len(ids) > 3
    words = pieces(tokenizer, ids)
    assert words[-1] == "😀"
    assert all(re.fullmatch(r"(\\x[0-9a-f]{2})+", word) for word in words[2:-1])
    assert pieces(tokenizer, [tokenizer.specials["eos"], 10**6]) == ["<|im_end|>", "[id 1000000]"]
