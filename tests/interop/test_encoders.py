"""BERT and its kin beside the battery: text pairs, what old files hold, answers with their labels, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.interop.battery import answered, made, our_answer, stored, their_answer
from tests.interop.cases import bert, gpt2, llama, modernbert, roberta
from tests.interop.cases.case import Case
from tests.interop.folders import edit
from tests.interop.test_sentence import rows, tokenizer
from transformers import (
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    GPT2ForSequenceClassification,
    LlamaForSequenceClassification,
    ModernBertForMaskedLM,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
)

import qkv
from qkv.cli.main import main
from qkv.interop.load import load_published
from qkv.interop.mapping.normal import normal
from qkv.interop.save import save_published
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.spec.heads import TokenHead
from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:transformers"
)
WEIGHTS = "model.safetensors"


def written(kind: type[Any], config: Any, folder: Path, words: bool = False) -> Any:
    """A random model of that library in ``folder``, with a tokenizer if ``words`` are to be read."""
    torch.manual_seed(5)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    if words:
        tokenizer().save(str(folder / "tokenizer.json"))
    return model


def apart(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


def test_the_two_texts_of_a_pair_have_their_types(tmp_path: Path) -> None:
    theirs = written(BertForSequenceClassification, bert.config(num_labels=3), tmp_path)
    ids, lengths = torch.randint(4, 61, (3, 11)), torch.tensor([11, 6, 2])
    real = torch.arange(11) < lengths[:, None]
    types = (torch.arange(11) >= torch.tensor([4, 3, 1])[:, None]).long()
    with torch.no_grad():
        wanted = theirs(ids, attention_mask=real.long(), token_type_ids=types).logits
        model = load_published(tmp_path).model
        assert apart(model(Signal(ids, lengths=lengths, types=types))[0], wanted) < 1e-5
        assert apart(model(Signal(ids, lengths=lengths))[0], wanted) > 1e-3


def test_pretraining_has_one_head_more_which_is_ignored_for_a_reason(tmp_path: Path) -> None:
    theirs = written(BertForPreTraining, bert.config(), tmp_path)
    found = load_published(tmp_path)
    ids = torch.randint(4, 61, (2, 9))
    with torch.no_grad():
        assert apart(found.model(ids)[0], theirs(ids).prediction_logits) < 1e-5
    reasons = dict(found.ignored)
    assert reasons.keys() == {
        f"{layer}.{leaf}" for layer in ("bert.pooler.dense", "cls.seq_relationship") for leaf in ("weight", "bias")
    }
    assert "pooler" in reasons["bert.pooler.dense.weight"]


def test_a_body_with_its_pooler(tmp_path: Path) -> None:
    theirs = written(BertModel, bert.config(), tmp_path)
    found = load_published(tmp_path)
    ids = torch.randint(4, 61, (2, 9))
    with torch.no_grad():
        assert apart(found.model.features(ids)[0], theirs(ids).last_hidden_state) < 1e-5
    assert {name for name, _ in found.ignored} == {"pooler.dense.weight", "pooler.dense.bias"} == found.kept.keys()
    assert all(reason.endswith("written back by an export") for _, reason in found.ignored)


def test_a_pooler_of_other_names_and_in_another_precision_is_written_again(tmp_path: Path) -> None:
    """As in the files of the first release, which name the body's tensors as those of a model with a head do."""
    theirs = written(BertModel, bert.config(), tmp_path / "a")
    prefixed = {f"bert.{name}": tensor for name, tensor in load_file(tmp_path / "a" / WEIGHTS).items()}
    save_file(prefixed, tmp_path / "a" / WEIGHTS)
    assert main(["export", str(tmp_path / "a"), "--out", str(tmp_path / "b"), "--dtype", "bf16"]) == 0
    again = BertModel.from_pretrained(tmp_path / "b", dtype=torch.bfloat16).state_dict()
    assert all(torch.equal(tensor.bfloat16(), again[name]) for name, tensor in theirs.state_dict().items())


def test_a_pooler_goes_where_a_head_reads_it_and_nowhere_else(tmp_path: Path) -> None:
    written(BertModel, bert.config(), tmp_path / "a")
    found = load_published(tmp_path / "a")
    tagged = build(found.spec.changed(head=TokenHead(num_classes=3)), 0)
    save_published(tagged, tmp_path / "b", family="BERT", kept=found.kept)
    assert not any("pooler" in name for name in load_file(tmp_path / "b" / WEIGHTS))


def test_files_of_the_first_release(tmp_path: Path) -> None:
    """They name the numbers of a norm gamma and beta, and hold the positions too."""
    written(bert.BertForMaskedLM, bert.config(), tmp_path)
    wanted = load_published(tmp_path).model.state_dict()
    older = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = {}
    for name, tensor in load_file(tmp_path / WEIGHTS).items():
        stem, leaf = name.rsplit(".", 2)[0], ".".join(name.rsplit(".", 2)[1:])
        tensors[f"{stem}.{older.get(leaf, leaf)}"] = tensor
    assert any(name.endswith("gamma") for name in tensors)
    save_file({**tensors, "bert.embeddings.position_ids": torch.arange(23)[None]}, tmp_path / WEIGHTS)
    found = load_published(tmp_path)
    assert all(torch.equal(tensor, found.model.state_dict()[name]) for name, tensor in wanted.items())
    assert [name for name, _ in found.ignored] == ["bert.embeddings.position_ids"]


TEXTS = ["the cat sat on the mat", "dogs ran"]


CLASSIFIERS = {
    BertForSequenceClassification: bert.config,
    RobertaForSequenceClassification: roberta.config,
    LlamaForSequenceClassification: llama.config,
    GPT2ForSequenceClassification: gpt2.config,
}


@pytest.mark.parametrize("kind", CLASSIFIERS, ids=["bert", "roberta", "llama", "gpt2"])
def test_labels_are_the_answers(kind: type[Any], tmp_path: Path) -> None:
    """For a decoder, of the last token, of rows that are padded to one length."""
    theirs = written(kind, CLASSIFIERS[kind](id2label=bert.LABELS), tmp_path, words=True)
    answers = qkv.predict(tmp_path, *TEXTS)
    for answer, row in zip(answers, rows(TEXTS), strict=True):
        with torch.no_grad():
            chances = theirs(torch.tensor([row])).logits.softmax(-1)[0].tolist()
        assert list(answer["probabilities"]) == ["anger", "joy", "neither"]
        assert list(answer["probabilities"].values()) == pytest.approx(chances, abs=1e-6)
        assert answer["answer"] == bert.LABELS[max(range(3), key=chances.__getitem__)]


def test_classes_without_names_are_numbered(tmp_path: Path) -> None:
    written(BertForSequenceClassification, bert.config(), tmp_path, words=True)
    assert load_published(tmp_path).labels == ("LABEL_0", "LABEL_1")
    assert qkv.predict(tmp_path, "the cat")[0]["answer"] in ("LABEL_0", "LABEL_1")


def test_a_number_is_the_answer(tmp_path: Path) -> None:
    theirs = written(BertForSequenceClassification, bert.config(num_labels=1), tmp_path, words=True)
    with torch.no_grad():
        wanted = [float(theirs(torch.tensor([row])).logits) for row in rows(TEXTS)]
    assert [answer["value"] for answer in qkv.predict(tmp_path, *TEXTS)] == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"problem_type": "multi_label_classification"}, "'multi_label_classification', which qkv does not support"),
        ({"problem_type": "regression"}, "with a num_labels of 3"),
        ({"position_embedding_type": "relative_key"}, "position encoding"),
        ({"is_decoder": True, "add_cross_attention": True}, "add_cross_attention"),
        ({"pruned_heads": {"0": [1]}}, "the number of heads"),
        ({"hidden_act": "gelv"}, "did you mean 'gelu'"),
        ({"architectures": ["BertForQuestionAnswering"]}, "num_labels is 3, but a span head has 2"),
        ({"architectures": ["BertForNextSentencePrediction"]}, "is not supported for BERT"),
    ],
    ids=[
        "multi-label",
        "numbers",
        "relative",
        "decoder",
        "pruned",
        "activation",
        "span",
        "architecture",
    ],
)
def test_what_is_not_known_is_refused(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    written(BertForSequenceClassification, bert.config(num_labels=3), tmp_path)
    edit(tmp_path / "config.json", lambda tree: tree.update(change))
    with pytest.raises(UserError, match=sentence):
        load_published(tmp_path)


def test_a_table_of_positions_without_one(tmp_path: Path) -> None:
    written(RobertaForMaskedLM, roberta.config(), tmp_path)
    edit(tmp_path / "config.json", lambda tree: tree.update(max_position_embeddings=2))
    with pytest.raises(UserError, match="the first 2 rows of that table are reserved"):
        load_published(tmp_path)


def test_padding_of_a_tokenizer_does_not_move_the_positions(tmp_path: Path) -> None:
    """pad_token_id decides where RoBERTa's positions begin, and this tokenizer pads with another id."""
    theirs = written(RobertaForMaskedLM, roberta.config(pad_token_id=3), tmp_path / "a")
    save_published(load_published(tmp_path / "a").model, tmp_path / "b", Tokenizer(tokenizer()))
    again = RobertaForMaskedLM.from_pretrained(tmp_path / "b").eval()
    ids = torch.randint(4, 61, (2, 9))
    with torch.no_grad():
        assert torch.equal(again(ids).logits, theirs(ids).logits)


def test_modernbert_as_first_released(tmp_path: Path) -> None:
    written(ModernBertForMaskedLM, modernbert.config(), tmp_path)
    wanted = load_published(tmp_path).spec

    def older(tree: dict[str, Any]) -> None:
        del tree["layer_types"], tree["rope_parameters"]
        tree.update(
            global_attn_every_n_layers=3, global_rope_theta=160000.0, local_rope_theta=10000.0, layer_norm_eps=1e-5
        )

    edit(tmp_path / "config.json", older)
    assert load_published(tmp_path).spec == wanted
    edit(tmp_path / "config.json", lambda tree: tree.update(global_attn_every_n_layers=2, local_rope_theta=500.0))
    assert load_published(tmp_path).spec != wanted
    edit(tmp_path / "config.json", lambda tree: tree.update(global_attn_every_n_layers=0))
    with pytest.raises(UserError, match="global_attn_every_n_layers is 0"):
        load_published(tmp_path)


KINDS = {
    "words": bert.BertForMaskedLM,
    "classes": BertForSequenceClassification,
    "tags": BertForTokenClassification,
    "answers": BertForQuestionAnswering,
}
CONFIGS = st.fixed_dictionaries({
    "num_attention_heads": st.integers(1, 4), "head_dim": st.integers(1, 6), "num_hidden_layers": st.integers(1, 3),
    "intermediate_size": st.integers(1, 20), "max_position_embeddings": st.integers(9, 20),
    "type_vocab_size": st.integers(1, 4), "vocab_size": st.integers(6, 40),
    "hidden_act": st.sampled_from(["gelu", "relu", "gelu_new", "silu", "tanh"]),
    "layer_norm_eps": st.sampled_from([1e-12, 1e-5, 0.1]), "tie_word_embeddings": st.booleans(),
    "num_labels": st.integers(1, 5), "classifier_dropout": st.sampled_from([None, 0.0, 0.5]),
})  # fmt: skip


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("head", KINDS)
@given(drawn=CONFIGS)
def test_any_bert_has_the_same_answers_and_comes_back(
    head: str, drawn: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    width = drawn["num_attention_heads"] * drawn["head_dim"]
    said = {
        key: value
        for key, value in drawn.items()
        if key != "head_dim" and (key != "num_labels" or head in ("classes", "tags"))
    }
    pair = made(
        Case(f"bert-drawn-{head}", KINDS[head], bert.config(**said, hidden_size=width)),
        tmp_path_factory.mktemp("drawn"),
    )
    with torch.no_grad():
        ours, theirs = answered(pair, our_answer(pair)), answered(pair, their_answer(pair))
    assert apart(ours, theirs) < 1e-4
    folder = tmp_path_factory.mktemp("saved")
    save_published(pair.ours, folder)
    first, second = stored(pair.folder), stored(folder)
    assert second.keys() == first.keys() - {name for name, _ in pair.published.ignored}
    assert all(torch.equal(first[name], tensor) for name, tensor in second.items())
    assert normal(load_published(folder).spec) == normal(pair.published.spec)
