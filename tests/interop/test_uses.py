"""What published folders are used for, beside the transformers library: entities, labels by entailment, reranking."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.interop.folders import edit
from tests.interop.word_pieces import word_pieces

import qkv
from qkv.cli.main import main
from qkv.generation.decode.beam import beam_search
from qkv.interop.load import load_published
from qkv.runs.inference.embed import embed
from qkv.runs.inference.rerank import INSTRUCTION, rerank
from qkv.system.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (
    *("the", "a", "dog", "sat", "on", "mat", "john", "smith", "lives", "in", "paris", "who", "wrote", "it"),
    *(".", ",", "?", "<", ">", ":", "yes", "no", "this", "example", "is", "sport", "film"),
)
LETTERS = [*map(chr, range(ord("a"), ord("z") + 1))]
PIECES = [*dict.fromkeys([*WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)])]
CORE = word_pieces(SPECIALS, PIECES, "{cls} $A {sep}", "{cls} $A {sep} $B:1 {sep}:1")
TEXT = "John Smith  lives in Paris, France. Who wrote it?"
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
CLASSES = ["contradiction", "neutral", "entailment"]
LABELS = ("sport", "film", "paris")
DOCUMENTS = ["John Smith wrote it.", "The dog sat on a mat.", "It lives in Paris"]
TEMPLATE = (
    "{% for m in messages %}[CLS]{{ m['role'] }} {{ m['content'] }}[SEP]{% endfor %}"
    "{% if add_generation_prompt %}[CLS]a{% if not enable_thinking %} no{% endif %}{% endif %}"
)
INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
BART = {"layers": 2, "attention_heads": 2, "ffn_dim": 24}
SIZES: dict[str, Any] = {
    "vocab_size": len(SPECIALS) + len(PIECES),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 512,
}


def tokenizer(**more: Any) -> transformers.PreTrainedTokenizerFast:
    named = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIALS, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=CORE, model_input_names=INPUTS, **named, **more)


def written(folder: Path, kind: Any, config: Any, **more: Any) -> Any:
    """Write a folder with random weights and the tokenizer; return the model of the transformers library."""
    torch.manual_seed(3)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    tokenizer(**more).save_pretrained(folder)
    return model


def bert(labels: list[str]) -> Any:
    named = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    return transformers.BertConfig(**SIZES, **named)


@pytest.fixture(scope="module")
def inference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("inference")
    return folder, written(folder, transformers.BertForSequenceClassification, bert(CLASSES))


def test_entities_have_offsets_and_words_of_the_pipeline(tmp_path: Path) -> None:
    model = written(tmp_path, transformers.BertForTokenClassification, bert(TAGS))
    strategy = {"aggregation_strategy": "first", "ignore_labels": []}
    pipeline = transformers.pipeline(
        "token-classification", model=model, tokenizer=tokenizer(), device="cpu", **strategy
    )
    (answer,) = qkv.predict(str(tmp_path), TEXT)
    theirs = {each["start"]: each for each in pipeline(TEXT)}
    assert answer["words"] == ["John", "Smith", "lives", "in", "Paris", ",", "France", ".", "Who", "wrote", "it", "?"]
    groups = {entity["start"]: entity for entity in answer["entities"]}
    assert groups
    for begin, entity in groups.items():
        assert TEXT[begin : entity["end"]] == entity["text"]
        assert (theirs[begin]["end"], theirs[begin]["entity_group"]) == (entity["end"], entity["type"])
    assert groups.keys() == {begin for begin, each in theirs.items() if each["entity_group"] != "O"}
    rest = answer["answer"]
    for entity in answer["entities"]:
        rest = rest.replace(f"[{entity['text']}]({entity['type']})", entity["text"], 1)
    assert rest == TEXT


@pytest.mark.parametrize("grouping", ["simple", "first", "average", "max"])
def test_entities_are_grouped_as_by_hand(tmp_path: Path, grouping: str) -> None:
    model = written(tmp_path, transformers.BertForTokenClassification, bert(TAGS))
    text = f"{TEXT}  Smithson lives on Johns mat, a dog."
    read = tokenizer()(text, return_tensors="pt", return_offsets_mapping=True)
    spans = read.pop("offset_mapping")[0].tolist()[1:-1]
    with torch.no_grad():
        chances = model(**read).logits[0, 1:-1].double().softmax(-1)
    units = list[list[int]]()
    for i, piece in enumerate(tokenizer().convert_ids_to_tokens(read.input_ids[0, 1:-1].tolist())):
        if grouping != "simple" and piece.startswith("##"):
            units[-1].append(i)
        else:
            units.append([i])
    wanted, before = list[dict[str, Any]](), ""
    for unit in units:
        rows = chances[unit]
        row = {"average": rows.mean(0), "max": rows[rows.max(1).values.argmax()]}.get(grouping, rows[0])
        tag, score = TAGS[int(row.argmax())], float(row.max())
        mark, _, kind = tag.partition("-")
        if mark == "I" and before.endswith(kind):
            wanted[-1]["end"] = spans[unit[-1]][1]
            wanted[-1]["scores"].append(score)
        elif mark != "O":
            wanted.append({"type": kind, "start": spans[unit[0]][0], "end": spans[unit[-1]][1], "scores": [score]})
        before = tag
    (answer,) = qkv.predict(str(tmp_path), text, group=grouping)
    assert len(wanted) > 2
    for found, each in zip(answer["entities"], wanted, strict=True):
        assert (found["type"], found["start"], found["end"]) == (each["type"], each["start"], each["end"])
        assert found["text"] == text[found["start"] : found["end"]]
        assert found["score"] == pytest.approx(sum(each["scores"]) / len(each["scores"]), abs=1e-5)


def test_groupings_of_entities_are_checked(inference: tuple[Path, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no grouping 'frist'; did you mean 'first'"):
        qkv.predict(str(inference[0]), TEXT, group="frist")
    with pytest.raises(UserError, match=r"for models that score the tags of tokens; .* the task 'classification'"):
        qkv.predict(str(inference[0]), TEXT, group="first")
    written(tmp_path, transformers.BertForTokenClassification, bert(TAGS))
    with pytest.raises(UserError, match=r"words: \['John'\] is not a text"):
        qkv.predict(str(tmp_path), {"words": ["John"]}, group="first")


def test_words_of_a_list_have_entities_without_offsets(tmp_path: Path) -> None:
    written(tmp_path, transformers.BertForTokenClassification, bert(TAGS))
    (answer,) = qkv.predict(str(tmp_path), {"words": ["John", "lives", "in", "Paris,"]})
    assert len(answer["tags"]) == 4
    assert all(entity.keys() == {"type", "text"} for entity in answer["entities"])


@pytest.mark.parametrize("multi_label", [False, True])
def test_labels_by_entailment_are_those_of_the_pipeline(inference: tuple[Path, Any], multi_label: bool) -> None:
    folder, model = inference
    pipeline = transformers.pipeline("zero-shot-classification", model=model, tokenizer=tokenizer(), device="cpu")
    hypothesis = "It is {}."
    theirs = pipeline(TEXT, list(LABELS), hypothesis_template=hypothesis, multi_label=multi_label)
    (answer,) = qkv.predict(str(folder), TEXT, labels=LABELS, hypothesis=hypothesis, multi_label=multi_label)
    assert answer["answer"] == theirs["labels"][0]
    assert answer["probabilities"] == pytest.approx(
        dict(zip(theirs["labels"], theirs["scores"], strict=True)), abs=1e-5
    )


@pytest.mark.parametrize("multi_label", [False, True])
def test_labels_by_entailment_of_an_encoder_decoder(tmp_path: Path, multi_label: bool) -> None:
    """The form of BART: the decoder reads the pair one token later."""
    sizes = {"vocab_size": SIZES["vocab_size"], "d_model": 16, "max_position_embeddings": 64}
    layers = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in BART.items()}
    named = {"id2label": dict(enumerate(CLASSES)), "label2id": {label: i for i, label in enumerate(CLASSES)}}
    ids = {"bos_token_id": 2, "pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 3}
    config = transformers.BartConfig(**sizes, **layers, **named, **ids)
    model = written(tmp_path, transformers.BartForSequenceClassification, config, eos_token="[SEP]")
    logits = []
    for label in LABELS:
        pair = tokenizer()(TEXT, f"It is {label}.", return_tensors="pt").input_ids
        with torch.no_grad():
            logits.append(model(pair).logits[0].double())
    table = torch.stack(logits)
    wanted = table[:, [0, 2]].softmax(-1)[:, 1] if multi_label else table[:, 2].softmax(0)
    (answer,) = qkv.predict(str(tmp_path), TEXT, labels=LABELS, hypothesis="It is {}.", multi_label=multi_label)
    assert list(answer["probabilities"].values()) == pytest.approx(wanted.tolist(), abs=1e-5)


def test_the_command_chooses_among_labels(inference: tuple[Path, Any], capsys: pytest.CaptureFixture[str]) -> None:
    options = [word for label in LABELS for word in ("--label", label)]
    assert main(["predict", str(inference[0]), TEXT, "--json", *options]) == 0
    (expected,) = qkv.predict(str(inference[0]), TEXT, labels=LABELS)
    assert json.loads(capsys.readouterr().out)["probabilities"] == pytest.approx(expected["probabilities"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--label", "a", "--label", "a"], "'a' is given twice"),
        (["--label", "a", "--hypothesis", "none"], "it should have {}"),
        (["--multi-label"], "--multi-label needs --label"),
        (["--label", "a", "--why"], "leave --label out"),
    ],
)
def test_wrong_labels_are_refused(
    inference: tuple[Path, Any], options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(inference[0]), TEXT, *options]) == 2
    assert sentence in capsys.readouterr().err


def test_a_classifier_of_other_classes_judges_no_entailment(tmp_path: Path) -> None:
    written(tmp_path, transformers.BertForSequenceClassification, bert(["good", "bad"]))
    with pytest.raises(UserError, match=r"need a model of natural language inference.* has good, bad"):
        qkv.predict(str(tmp_path), TEXT, labels=LABELS)


@pytest.mark.parametrize(
    ("entry", "activation"),
    [
        ({}, torch.sigmoid),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, lambda value: value),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, lambda value: value),
    ],
)
def test_a_cross_encoder_scores_pairs(tmp_path: Path, entry: dict[str, Any], activation: Any) -> None:
    model = written(tmp_path, transformers.BertForSequenceClassification, bert(["LABEL_0"]))
    edit(tmp_path / "config.json", lambda config: config.update(entry))
    pairs = tokenizer()([TEXT] * 3, DOCUMENTS, return_tensors="pt", padding=True)
    wanted = activation(model(**pairs).logits[:, 0]).tolist()
    found = qkv.rerank(str(tmp_path), TEXT, DOCUMENTS)
    assert {each.index: each.score for each in found} == pytest.approx(dict(enumerate(wanted)), abs=1e-5)
    assert all(first.score >= second.score for first, second in pairwise(found))
    assert [each.document for each in qkv.rerank(str(tmp_path), TEXT, DOCUMENTS, top=1)] == [found[0].document]


def test_an_unknown_activation_of_pairs_is_refused(tmp_path: Path) -> None:
    written(tmp_path, transformers.BertForSequenceClassification, bert(["LABEL_0"]))
    edit(tmp_path / "config.json", lambda config: config.update(sbert_ce_default_activation_function="torch.nn.Tanh"))
    with pytest.raises(UserError, match=r"names the activation 'torch.nn.Tanh'"):
        qkv.rerank(str(tmp_path), TEXT, DOCUMENTS)


@pytest.mark.parametrize("instruction", [None, "this is sport"])
def test_a_language_model_judges_documents(tmp_path: Path, instruction: str | None) -> None:
    config = transformers.Qwen3Config(**SIZES, num_key_value_heads=1, head_dim=8)
    model = written(tmp_path, transformers.Qwen3ForCausalLM, config, chat_template=TEMPLATE)
    yes, no = (tokenizer().convert_tokens_to_ids(word) for word in ("yes", "no"))
    wanted = []
    for document in DOCUMENTS:
        asked = f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: {TEXT}\n<Document>: {document}"
        messages = [
            {
                "role": "system",
                "content": "Judge whether the Document meets the requirements based on the Query and the Instruct "
                'provided. Note that the answer can only be "yes" or "no".',
            },
            {"role": "user", "content": asked},
        ]
        text = tokenizer(chat_template=TEMPLATE).apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        ids = tokenizer()(text, add_special_tokens=False, return_tensors="pt").input_ids
        wanted.append(model(ids).logits[0, -1, [yes, no]].softmax(-1)[0].item())
    found = qkv.rerank(str(tmp_path), TEXT, DOCUMENTS, instruction=instruction)
    assert {each.index: each.score for each in found} == pytest.approx(dict(enumerate(wanted)), abs=1e-5)


def test_other_models_compare_embeddings(inference: tuple[Path, Any], capsys: pytest.CaptureFixture[str]) -> None:
    vectors = torch.from_numpy(embed(str(inference[0]), [TEXT, *DOCUMENTS], normalise=True))
    wanted = (vectors[1:] @ vectors[0]).tolist()
    assert main(["rerank", str(inference[0]), TEXT, *DOCUMENTS, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["index"]: row["score"] for row in rows} == pytest.approx(dict(enumerate(wanted)), abs=1e-5)
    with pytest.raises(UserError, match="an instruction is given, but"):
        qkv.rerank(str(inference[0]), TEXT, DOCUMENTS, instruction="a")


def test_the_scores_of_many_documents_are_those_of_few(
    inference: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f"{DOCUMENTS[i % 3]} {WORDS[i % 20]} {WORDS[i % 7]}" for i in range(300)]
    done = list[tuple[int, int]]()
    found = rerank(str(inference[0]), TEXT, texts, on_progress=lambda *progress: done.append(progress))
    assert done == [(256, 300), (300, 300)]
    scores = {each.index: each.score for each in found}
    few = {each.index: each.score for each in qkv.rerank(str(inference[0]), TEXT, texts[250:260])}
    assert [scores[250 + i] for i in range(10)] == pytest.approx([few[i] for i in range(10)], abs=1e-5)
    file = tmp_path / "notes.txt"
    file.write_text("\n".join(texts))
    assert main(["rerank", str(inference[0]), TEXT, "--data", str(file), "--top", "1"]) == 0
    assert "300" in capsys.readouterr().err


QUESTION, CONTEXT = "who wrote it", " ".join(f"john sat on the {word} mat, a dog in paris." for word in WORDS[:14])


@pytest.mark.parametrize("no_answer", [False, True])
def test_answers_of_a_long_context_are_those_by_hand(tmp_path: Path, no_answer: bool) -> None:
    """Windows 64 tokens apart, spans of at most 30 tokens, one softmax over all spans and "no answer"."""
    model = written(tmp_path, transformers.BertForQuestionAnswering, transformers.BertConfig(**{**SIZES, **POSITIONS}))
    question = tokenizer()(QUESTION, add_special_tokens=False).input_ids
    read = tokenizer()(CONTEXT, add_special_tokens=False, return_offsets_mapping=True)
    room, scores, none = POSITIONS["max_position_embeddings"] - 3 - len(question), dict[tuple[int, int], float](), []
    begin, every = 0, list[float]()
    while True:
        part = read.input_ids[begin : begin + room]
        ids = [2, *question, 3, *part, 3]
        types = [0] * (len(question) + 2) + [1] * (len(part) + 1)
        with torch.no_grad():
            found = model(torch.tensor([ids]), token_type_ids=torch.tensor([types]))
        starts, ends = found.start_logits[0].double(), found.end_logits[0].double()
        none.append(float(starts[0] + ends[0]))
        for i in range(len(part)):
            for j in range(i, min(i + 30, len(part))):
                score = float(starts[len(question) + 2 + i] + ends[len(question) + 2 + j])
                every.append(score)
                scores[begin + i, begin + j] = max(score, scores.get((begin + i, begin + j), -torch.inf))
        if begin + room >= len(read.input_ids):
            break
        begin += min(64, room)
    (first, last), best = max(scores.items(), key=lambda item: item[1])
    total = torch.tensor([*every, *([min(none)] if no_answer else [])]).logsumexp(0)
    (answer,) = qkv.predict(str(tmp_path), {"question": QUESTION, "context": CONTEXT}, no_answer=no_answer)
    assert len(none) > 2
    if no_answer and min(none) > best:
        assert answer["answer"] == "no answer"
        assert answer["probability"] == pytest.approx(float((min(none) - total).exp()), abs=1e-5)
    else:
        start, end = read.offset_mapping[first][0], read.offset_mapping[last][1]
        assert (answer["start"], answer["end"], answer["answer"]) == (start, end, CONTEXT[start:end])
        assert answer["probability"] == pytest.approx(float((best - total).exp()), abs=1e-5)


POSITIONS = {"max_position_embeddings": 90}


def test_a_context_may_hold_no_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = written(tmp_path, transformers.BertForQuestionAnswering, transformers.BertConfig(**SIZES))
    context = "john sat on the mat"
    with torch.no_grad():  # scores that rise from other tokens to [CLS]
        vectors = model.bert(**tokenizer()(QUESTION, context, return_tensors="pt")).last_hidden_state[0]
        model.qa_outputs.weight.copy_(20 * (vectors[0] - vectors[1:].mean(0)))
    model.save_pretrained(tmp_path)
    asked = ["predict", str(tmp_path), QUESTION, "--context", context]
    assert main(asked) == 0
    assert "no answer" not in capsys.readouterr().out
    assert main([*asked, "--no-answer"]) == 0
    assert "no answer" in capsys.readouterr().out


def test_only_an_extractive_model_finds_no_answer(inference: tuple[Path, Any]) -> None:
    with pytest.raises(UserError, match="only a model that extracts answers from a context"):
        qkv.predict(str(inference[0]), TEXT, no_answer=True)


def test_documents_of_a_file_and_wrong_requests(
    inference: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("\n".join(DOCUMENTS))
    assert main(["rerank", str(inference[0]), TEXT, "--data", str(file), "--top", "2"]) == 0
    shown = capsys.readouterr().out
    assert sum(document in shown for document in DOCUMENTS) == 2
    for wrong, sentence in (
        ([TEXT], "give documents to order, or a file"),
        ([" ", "a"], "the query is empty"),
        ([TEXT, "a", " "], "document 1 is empty"),
        ([TEXT, "a", "--column", "b"], "--column needs --data"),
    ):
        assert main(["rerank", str(inference[0]), *wrong]) == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("settings", [{"min_length": 9}, {"min_new_tokens": 8}, {}])
def test_answers_have_the_stated_length(tmp_path: Path, beams: int, settings: dict[str, int]) -> None:
    """The end token is the one that the model would generate first."""
    sizes = {"vocab_size": SIZES["vocab_size"], "d_model": 16, "max_position_embeddings": 64}
    layers = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in BART.items()}
    config = transformers.BartConfig(
        **sizes, **layers, bos_token_id=2, pad_token_id=0, eos_token_id=3, decoder_start_token_id=3
    )
    model = written(tmp_path, transformers.BartForConditionalGeneration, config)
    ids = torch.tensor([[2, 5, 6, 7, 8, 9, 3]])
    usual = {"max_length": 14, "num_beams": beams, "pad_token_id": 0, "decoder_start_token_id": 3}
    free = model.generate(ids, **usual, eos_token_id=3)[0].tolist()
    ends = {**usual, **settings, "eos_token_id": free[3], "forced_bos_token_id": 2, "forced_eos_token_id": None}
    (tmp_path / "generation_config.json").write_text(json.dumps(ends))
    found = load_published(tmp_path)
    with torch.no_grad():
        memory = found.model.encode(ids)
        theirs = type(model).from_pretrained(tmp_path).eval().generate(ids)[0].tolist()
    ours = beam_search(found.model, [list(found.begin)], found.sample, memory=memory)[0][0].tokens
    assert [*found.begin, *ours] == theirs
    assert len(theirs) >= settings.get("min_length", settings.get("min_new_tokens", 0))
