"""What stands round texts, and their types: the answers of a published checkpoint are those of the transformers
library, which reads the same text by its own tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from tests.interop.cases import bert, deberta, longformer, modernbert, mpnet, roberta, xlnet
from tests.interop.test_encoders import written
from tests.interop.word_pieces import word_pieces
from transformers import PreTrainedTokenizerFast

import qkv
from qkv.cli.main import main
from qkv.system.errors import UserError

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:transformers"
)

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "dog",
    "ran",
    "far",
    "away",
    "from",
    "it",
    "who",
    "?",
    "##s",
    "##ing",
    "walk",
]
PAIRS = [("the cat sat on a mat", "dogs walking"), ("it ran", "the dog ran far away from it"), ("the the", "")]
QUESTION, CONTEXT = "who ran ?", "the cat sat on a mat and the dogs ran far away from it"
SENTENCE = "the cats walking on a mat"
GAPS = "the {} ran far away from the {}"


class Style(NamedTuple):
    """Special tokens of a family, in order of ids from 0, and what it puts round texts; {0} and {1} are the texts."""

    pad: str
    unknown: str
    cls: str
    sep: str
    mask: str
    one: str = "{cls} $A {sep}"
    two: str = "{cls} $A {sep} $B:1 {sep}:1"

    def tokenizer(self, folder: Path) -> Any:
        """Written into ``folder`` as that library writes it."""
        specials = [self.pad, self.unknown, self.cls, self.sep, self.mask]
        core = word_pieces(specials, WORDS, self.one, self.two)
        roles = {
            "cls_token": self.cls,
            "sep_token": self.sep,
            "mask_token": self.mask,
            "pad_token": self.pad,
            "unk_token": self.unknown,
        }
        made = PreTrainedTokenizerFast(
            tokenizer_object=core, **roles, model_input_names=["input_ids", "token_type_ids", "attention_mask"]
        )
        made.save_pretrained(folder)
        return made


BERT = Style("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA = Style("<pad>", "<unk>", "<s>", "</s>", "<mask>", two="{cls} $A {sep} {sep} $B {sep}")
XLNET = Style("<pad>", "<unk>", "<cls>", "<sep>", "<mask>", "$A:0 {sep}:0 {cls}:2", "$A:0 {sep}:0 $B:1 {sep}:1 {cls}:2")
SIZES: dict[str, Any] = {"max_position_embeddings": 96, "pad_token_id": 0, "sep_token_id": 3}


class Kind(NamedTuple):
    """A family by the name that its classes begin with; ``types``: whether it tells the types of tokens apart."""

    name: str
    config: Callable[..., Any]
    style: Style
    types: bool = False
    sizes: dict[str, Any] = SIZES

    def made(self, head: str, folder: Path, **said: Any) -> tuple[Any, Any, qkv.Run]:
        """A random model of that library, its tokenizer, and what qkv makes of the folder."""
        model = written(getattr(transformers, f"{self.name}For{head}"), self.config(**self.sizes, **said), folder)
        return model, self.style.tokenizer(folder), qkv.load(folder)

    def told(self, tokenizer: Any, *texts: Any, **options: Any) -> dict[str, Any]:
        read = tokenizer(*texts, return_tensors="pt", **options)
        return {name: value for name, value in read.items() if self.types or name != "token_type_ids"}


KINDS = {
    "bert": Kind("Bert", bert.config, BERT, types=True),
    "roberta": Kind("Roberta", roberta.config, ROBERTA),
    "deberta": Kind("DebertaV2", deberta.config, BERT, types=True),
    "mpnet": Kind("MPNet", mpnet.config, ROBERTA),
    "modernbert": Kind("ModernBert", modernbert.config, BERT),
    "longformer": Kind("Longformer", longformer.config, ROBERTA),
    "xlnet": Kind("XLNet", xlnet.config, XLNET, types=True, sizes={"pad_token_id": 0}),
}
each = pytest.mark.parametrize("kind", [pytest.param(kind, id=name) for name, kind in KINDS.items()])


def near(ours: Sequence[float], theirs: torch.Tensor) -> bool:
    return float((torch.tensor(ours) - theirs).abs().max()) < 1e-4 * max(1.0, float(theirs.abs().max()))


@each
def test_classes_of_texts_and_of_pairs(kind: Kind, tmp_path: Path) -> None:
    model, tokenizer, run = kind.made("SequenceClassification", tmp_path, num_labels=3)
    single = qkv.predict(run, *(first for first, _ in PAIRS))
    both = qkv.predict(run, *({"text": first, "pair": second} for first, second in PAIRS))
    for (first, second), one, two in zip(PAIRS, single, both, strict=True):
        with torch.no_grad():
            wanted_one = model(**kind.told(tokenizer, first)).logits[0].softmax(-1)
            wanted_two = model(**kind.told(tokenizer, [first], [second])).logits[0].softmax(-1)
        assert near(list(one["probabilities"].values()), wanted_one)
        assert near(list(two["probabilities"].values()), wanted_two)
        assert not near(list(one["probabilities"].values()), wanted_two)


@each
def test_tags(kind: Kind, tmp_path: Path) -> None:
    head = "TokenClassification"
    model, tokenizer, run = kind.made(head, tmp_path, num_labels=9)
    read = tokenizer(SENTENCE.split(), is_split_into_words=True)
    with torch.no_grad():
        logits = model(**kind.told(tokenizer, [SENTENCE.split()], is_split_into_words=True)).logits[0]
    heads = [read.word_ids().index(i) for i in range(len(SENTENCE.split()))]
    (answer,) = qkv.predict(run, SENTENCE)
    assert answer["tags"] == [model.config.id2label[int(logits[i].argmax())] for i in heads]
    assert len(set(answer["tags"])) > 1


@pytest.mark.parametrize("kind", [pytest.param(KINDS[name], id=name) for name in KINDS if name != "xlnet"])
def test_answers_to_questions(kind: Kind, tmp_path: Path) -> None:
    model, tokenizer, run = kind.made("QuestionAnswering", tmp_path)
    encoding = tokenizer(QUESTION, CONTEXT)
    with torch.no_grad():
        found = model(**kind.told(tokenizer, QUESTION, CONTEXT))
    inside = torch.tensor([owner == 1 for owner in encoding.sequence_ids()])
    first, last = (logits[0].masked_fill(~inside, -torch.inf) for logits in (found.start_logits, found.end_logits))
    ordered = torch.ones(len(inside), len(inside), dtype=torch.bool).triu()
    scores = (first[:, None] + last).masked_fill(~ordered, -torch.inf)
    begin, end = divmod(int(scores.argmax()), len(inside))
    (answer,) = qkv.predict(run, {"question": QUESTION, "context": CONTEXT})
    assert (answer["start"], answer["end"]) == (encoding.token_to_chars(begin).start, encoding.token_to_chars(end).end)
    assert near([answer["probability"]], scores.flatten().softmax(-1).max()[None])


@pytest.mark.parametrize("kind", [pytest.param(KINDS[name], id=name) for name in KINDS if name != "xlnet"])
def test_gaps(kind: Kind, tmp_path: Path) -> None:
    model, tokenizer, run = kind.made("MaskedLM", tmp_path)
    read = kind.told(tokenizer, GAPS.format(kind.style.mask, kind.style.mask))
    places = (read["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0]
    with torch.no_grad():
        logits = model(**read).logits[0, places][:, : len(tokenizer)]
    logits[:, tokenizer.mask_token_id] = -torch.inf
    (answer,) = qkv.predict(run, GAPS.format("<mask>", "<mask>"))
    for best, row in zip(answer["best"], logits, strict=True):
        ids = row.topk(3).indices.tolist()
        assert [found["word"] for found in best[:3]] == [tokenizer.decode([index]) for index in ids]
        assert near([found["probability"] for found in best[:3]], row.softmax(-1)[ids])


@each
def test_vectors_of_texts(kind: Kind, tmp_path: Path) -> None:
    model, tokenizer, run = kind.made("SequenceClassification", tmp_path)
    body = getattr(model, model.base_model_prefix)
    texts = [first for first, _ in PAIRS]
    ours = qkv.embed(run, texts)
    for text, vector in zip(texts, ours, strict=True):
        with torch.no_grad():
            read = kind.told(tokenizer, text)
            if kind.name == "Longformer":  # its head looks at the first position from everywhere
                read["global_attention_mask"] = torch.eye(read["input_ids"].shape[1])[:1].long()
            assert near(vector.tolist(), body(**read).last_hidden_state[0].mean(0))


def test_pairs_are_cut_together_as_the_library_cuts_them(tmp_path: Path) -> None:
    kind = KINDS["bert"]._replace(sizes={"max_position_embeddings": 12, "pad_token_id": 0})
    model, tokenizer, run = kind.made("SequenceClassification", tmp_path, num_labels=3)
    first, second = "the cat sat on a mat and the dog", "it ran away from the dog"
    (answer,) = qkv.predict(run, {"text": first, "pair": second})
    with torch.no_grad():
        wanted = model(**kind.told(tokenizer, first, second, truncation=True, max_length=12)).logits[0].softmax(-1)
    assert near(list(answer["probabilities"].values()), wanted)
    assert answer["note"] == "the input has 15 tokens and the model reads 9; the rest was not read"


def test_a_pair_is_learned_from_a_table_and_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind = KINDS["bert"]
    kind.made("SequenceClassification", tmp_path / "there", num_labels=3)
    rows = [f"{a},{b},{'same' if a == b else 'other'}" for a in WORDS[:8] for b in (a, WORDS[WORDS.index(a) + 1])]
    (tmp_path / "pairs.csv").write_text("premise,hypothesis,label\n" + "\n".join(rows) + "\n")
    run = qkv.train(
        str(tmp_path / "pairs.csv"),
        tmp_path / "run",
        task="classification",
        start=str(tmp_path / "there"),
        columns={"text": "premise", "pair": "hypothesis", "label": "label"},
        overrides=["training.steps=2"],
    )
    assert run.tokenizer.pair_frame.size == 3
    (answer,) = qkv.predict(run, {"text": "the cat", "pair": "a dog"})
    assert answer["answer"] in ("same", "other")
    assert main(["predict", str(run.folder), "the cat", "--set", "pair=a dog", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["probabilities"] == answer["probabilities"]
    assert main(["predict", str(run.folder), "--data", str(tmp_path / "pairs.csv")]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "premise,hypothesis,label,answer,probability"
    with pytest.raises(UserError, match="was trained on pairs of texts, but the second text, 'pair', is missing"):
        qkv.predict(run, "the cat")
