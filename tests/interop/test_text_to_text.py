"""Published models of text to text: languages, settings of tasks and long texts, beside loops by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tests.interop.cases import bart, t5
from tests.interop.folders import edit
from tests.interop.test_encoder_decoders import WORDS, written
from tokenizers import decoders, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    MBartConfig,
    MBartForConditionalGeneration,
    T5ForConditionalGeneration,
)

import qkv
from qkv.cli.main import main
from qkv.system.errors import UserError
from qkv.tasks.pairs.windows import split_text

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
TEXT = "w3 w1 w4 w1 w5"
NLLB = ("eng_Latn", "deu_Latn", "zho_Hans", "zho_Hant")
MBART = ("en_XX", "de_DE")


def words(languages: Sequence[str], template: str) -> tokenizers.Tokenizer:
    """One id a word; the languages are the last special tokens, as in published folders."""
    pieces = [*SPECIALS, *WORDS[: 57 - len(languages)], *languages]
    core = tokenizers.Tokenizer(WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.WhitespaceSplit(), decoders.Fuse()
    core.decoder = decoders.Metaspace()
    core.add_special_tokens([*SPECIALS, *languages])
    marks = [(piece, core.token_to_id(piece)) for piece in template.split() if not piece.startswith("$")]
    core.post_processor = processors.TemplateProcessing(single=template, special_tokens=list(dict.fromkeys(marks)))
    return core


def nllb(folder: Path, **more: Any) -> tuple[Any, tokenizers.Tokenizer]:
    core = words(NLLB, "eng_Latn $A </s>")
    config = M2M100Config(**bart.sizes(bos_token_id=0, eos_token_id=2, decoder_start_token_id=2))
    given = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 2, **more}
    return written(M2M100ForConditionalGeneration, config, folder, core, 1.0, max_length=12, **given), core


def mbart(folder: Path, **more: Any) -> tuple[Any, tokenizers.Tokenizer]:
    core = words(MBART, "$A </s> en_XX")
    start = core.token_to_id("en_XX")
    config = MBartConfig(**bart.sizes(bos_token_id=0, eos_token_id=2, decoder_start_token_id=start))
    given = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": start, **more}
    return written(MBartForConditionalGeneration, config, folder, core, 1.0, max_length=12, **given), core


def text_of(model: Any, core: tokenizers.Tokenizer, ids: Sequence[int], **settings: Any) -> str:
    with torch.no_grad():
        found = model.generate(torch.tensor([list(ids)]), attention_mask=torch.ones(1, len(ids)), **settings)
    return core.decode(found[0].tolist(), skip_special_tokens=True).strip()


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize(("source", "target"), [("deu", "eng"), ("eng_Latn", "zho_Hant"), (None, "deu_Latn")])
def test_nllb_reads_its_source_and_begins_with_its_target(
    tmp_path: Path, source: str | None, target: str, beams: int
) -> None:
    model, core = nllb(tmp_path, num_beams=beams, **({"length_penalty": 0.7} if beams > 1 else {}))
    full = {"deu": "deu_Latn", "eng": "eng_Latn", None: "eng_Latn"}
    first, forced = (core.token_to_id(full.get(name, name)) for name in (source, target))  # type: ignore[arg-type]
    ids = [first, *core.encode(TEXT, add_special_tokens=False).ids, 2]
    wanted = text_of(model, core, ids, forced_bos_token_id=forced)
    (answer,) = qkv.predict(str(tmp_path), TEXT, source_language=source, target_language=target)
    assert answer["answer"] == wanted
    assert wanted


@pytest.mark.parametrize(("source", "target"), [("de", "en"), ("en_XX", "de_DE")])
def test_mbart_starts_with_its_target(
    tmp_path: Path, source: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model, core = mbart(tmp_path, num_beams=2)
    full = {"de": "de_DE", "en": "en_XX"}
    last, start = (core.token_to_id(full.get(name, name)) for name in (source, target))
    ids = [*core.encode(TEXT, add_special_tokens=False).ids, 2, last]
    wanted = text_of(model, core, ids, decoder_start_token_id=start)
    assert main(["predict", str(tmp_path), TEXT, "--from", source, "--to", target]) == 0
    assert capsys.readouterr().out.strip() == wanted


def test_the_commands_of_a_folder_name_its_languages_and_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nllb(tmp_path / "nllb")
    core = words((), "$A </s>")
    config = t5.config(eos_token_id=2, pad_token_id=1, decoder_start_token_id=1)
    written(T5ForConditionalGeneration, config, tmp_path / "t5", core, max_length=20)
    edit(tmp_path / "t5" / "config.json", lambda config: config.update(task_specific_params=TASKS))
    for folder, command in (("nllb", "--from eng_Latn --to deu_Latn"), ("t5", "--task translation_en_to_de")):
        assert main(["load", str(tmp_path / folder)]) == 0
        assert command in " ".join(capsys.readouterr().out.split())


def test_a_translator_of_many_languages_needs_one(tmp_path: Path) -> None:
    nllb(tmp_path)
    for languages, sentence in (
        ({}, r"writes in 4 languages; name one, such as 'eng_Latn', with --to"),
        ({"target_language": "zho"}, r"'zho' is one of zho_Hans, zho_Hant"),
        ({"target_language": "fra_Latn"}, r"no language 'fra_Latn'"),
        ({"target_language": "eng", "task": "summarization"}, r"no settings for the task 'summarization'; it has none"),
        ({"target_language": "eng", "labels": ["a"]}, r"either labels, or languages"),
    ):
        with pytest.raises(UserError, match=sentence):
            qkv.predict(str(tmp_path), TEXT, **languages)  # type: ignore[arg-type]


def test_the_language_before_the_source(tmp_path: Path) -> None:
    """The form of Marian and MADLAD: the source begins with the language of the target."""
    core = words((">>deu<<", ">>nld<<"), "$A </s>")
    config = M2M100Config(**bart.sizes(bos_token_id=0, eos_token_id=2, decoder_start_token_id=2))
    given = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 2, "max_length": 12}
    model = written(M2M100ForConditionalGeneration, config, tmp_path, core, 1.0, **given)
    ids = [core.token_to_id(">>nld<<"), *core.encode(TEXT, add_special_tokens=False).ids, 2]
    (answer,) = qkv.predict(str(tmp_path), TEXT, target_language="nld")
    assert answer["answer"] == text_of(model, core, ids)
    with pytest.raises(UserError, match="needs only that of the translation"):
        qkv.predict(str(tmp_path), TEXT, source_language="deu", target_language="nld")


TASKS = {
    "summarization": {"prefix": "w7 w8 ", "num_beams": 3, "max_length": 9, "min_length": 4, "length_penalty": 2.0},
    "translation_en_to_de": {"prefix": "w9 w9 w2 ", "num_beams": 2, "max_length": 7, "early_stopping": True},
}


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("summarization", {"task": "summarization"}),
        ("translation_en_to_de", {"source_language": "en", "target_language": "de"}),
    ],
)
def test_t5_has_a_prefix_and_settings_per_task(tmp_path: Path, name: str, asked: dict[str, str]) -> None:
    core = words((), "$A </s>")
    config = t5.config(eos_token_id=2, pad_token_id=1, decoder_start_token_id=1)
    model = written(T5ForConditionalGeneration, config, tmp_path, core, max_length=20)
    edit(tmp_path / "config.json", lambda config: config.update(task_specific_params=TASKS))
    settings = dict(TASKS[name])
    wanted = text_of(model, core, core.encode(f"{settings.pop('prefix')}{TEXT}").ids, **settings)
    assert [answer["answer"] for answer in qkv.predict(str(tmp_path), TEXT, **asked)] == [wanted]
    with pytest.raises(UserError, match="no settings for the task 'translation_en_to_nl'; did you mean"):
        qkv.predict(str(tmp_path), TEXT, source_language="en", target_language="nl")


def test_a_long_text_is_read_in_parts(tmp_path: Path) -> None:
    model, core = mbart(tmp_path)
    sentences = [" ".join(WORDS[i : i + 5 + i % 4]) + "." for i in range(0, 36, 3)]
    edit(tmp_path / "tokenizer.json", lambda file: file["pre_tokenizer"].update(BREAKS))
    core = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    room = model.config.max_position_embeddings - 2  # of the two special tokens of mBART
    parts, part = list[str](), ""
    for sentence in sentences:
        longer = f"{part} {sentence}".strip()
        if len(core.encode(longer, add_special_tokens=False).ids) > room:
            parts, longer = [*parts, part], sentence
        part = longer
    wanted = [text_of(model, core, core.encode(part).ids) for part in [*parts, part]]
    (answer,) = qkv.predict(str(tmp_path), " ".join(sentences), target_language="en")
    assert len(wanted) > 1
    assert answer["answer"] == " ".join(wanted)
    assert f"split at ends of sentences into {len(wanted)} parts" in answer["note"]


BREAKS = {"type": "Whitespace"}


def test_windows_end_with_sentences_else_words_else_characters() -> None:
    text = 'He said "no." Then\nhe left!  Dr who?\n\nA word: abcdefghijkl, and 好。不好。'
    for most in (4, 9, 14, 30, 200):
        windows = split_text(text, lambda part, most=most: len(part) <= most)
        assert all(len(window) <= most for window in windows)
        assert "".join("".join(windows).split()) == "".join(text.split())
    assert split_text(text, lambda part: len(part) <= 14)[:4] == [
        'He said "no."',
        "Then\nhe left!",
        "Dr who?",
        "A word:",
    ]
    assert split_text(" ", lambda part: True) == [""]


def test_a_table_of_sources_is_resumable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nllb(tmp_path)
    rows = [{"source": f"w{i} w{i + 1}"} for i in range(3)]
    table, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    table.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert main(["predict", str(tmp_path), "--data", str(table), "--out", str(out), "--to", "deu"]) == 0
    answers = [json.loads(line)["answer"] for line in out.read_text().splitlines()]
    wanted = qkv.predict(str(tmp_path), *(row["source"] for row in rows), target_language="deu")
    assert answers == [answer["answer"] for answer in wanted]
