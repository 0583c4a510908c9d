"""The heads against those of published models, with the same weights on the same vectors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AlbertConfig, BertConfig, BertForSequenceClassification, DebertaV2Config, RobertaConfig
from transformers.models.albert.modeling_albert import AlbertMLMHead
from transformers.models.bert.modeling_bert import BertLMPredictionHead
from transformers.models.deberta_v2.modeling_deberta_v2 import ContextPooler
from transformers.models.modernbert.configuration_modernbert import ModernBertConfig
from transformers.models.modernbert.modeling_modernbert import ModernBertPredictionHead
from transformers.models.roberta.modeling_roberta import RobertaClassificationHead
from transformers.models.ultrabert.configuration_ultrabert import UltrabertConfig
from transformers.models.ultrabert.modeling_ultrabert import UltrabertPredictionHead

from qkv.models.heads.head import build_head
from qkv.spec.errors import SpecError
from qkv.spec.heads import (
    ClassificationHead,
    CRFHead,
    Head,
    LabelsHead,
    LanguageModelHead,
    RegressionHead,
    SpanHead,
    TokenHead,
)
from qkv.spec.parts import LayerNorm, NoNorm, RMSNorm

WIDTH, VOCABULARY = 12, 9
X = torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(0))
SIZES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_attention_heads": 2,
    "vocab_size": VOCABULARY,
    "num_labels": 4,
    "intermediate_size": 8,
}


def scrambled(module: Any, seed: int = 1) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data = 0.5 * torch.randn(parameter.shape, generator=generator)
    return module.eval()


def head(part: Head) -> Any:
    return scrambled(build_head(part, WIDTH, nn.Parameter(torch.zeros(VOCABULARY, WIDTH))), seed=2)


def copied(pairs: list[tuple[Any, Any]]) -> None:
    for ours, theirs in pairs:
        ours.load_state_dict(theirs.state_dict())


def same(seen: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(seen, expected, rtol=1e-5, atol=1e-6)


def test_bert_s_pooler_and_classifier() -> None:
    theirs = scrambled(BertForSequenceClassification(BertConfig(**SIZES, num_hidden_layers=1)))
    ours = head(ClassificationHead(num_classes=4, pooling="first", hidden=WIDTH, dropout=0.1))
    copied([(ours.hidden, theirs.bert.pooler.dense), (ours.output, theirs.classifier)])
    same(ours(X), theirs.classifier(theirs.bert.pooler(X)))


def test_roberta_s_classifier() -> None:
    theirs = scrambled(RobertaClassificationHead(RobertaConfig(**SIZES)))
    ours = head(ClassificationHead(num_classes=4, pooling="first", hidden=WIDTH))
    copied([(ours.hidden, theirs.dense), (ours.output, theirs.out_proj)])
    same(ours(X), theirs(X))


def test_deberta_s_pooler() -> None:
    theirs, last = (
        scrambled(ContextPooler(DebertaV2Config(**SIZES, pooler_hidden_size=WIDTH))),
        scrambled(nn.Linear(WIDTH, 4)),
    )
    ours = head(ClassificationHead(num_classes=4, pooling="first", hidden=WIDTH, activation="gelu"))
    copied([(ours.hidden, theirs.dense), (ours.output, last)])
    same(ours(X), last(theirs(X)))


@pytest.mark.parametrize("kind", [ClassificationHead, TokenHead])
def test_modernbert_s_layer_with_its_norm(kind: Any) -> None:
    """Of the mean of the positions, or of each."""
    theirs = scrambled(ModernBertPredictionHead(ModernBertConfig(**SIZES, norm_eps=1e-3)))
    last = scrambled(nn.Linear(WIDTH, 4))
    ours = head(
        kind(num_classes=4, hidden=WIDTH, activation="gelu", norm=LayerNorm(eps=1e-3, bias=False), hidden_bias=False)
    )
    copied([(ours.hidden, theirs.dense), (ours.norm, theirs.norm), (ours.output, last)])
    same(ours(X), last(theirs(X.mean(1) if kind is ClassificationHead else X)))


@pytest.mark.parametrize("eps", [1e-12, 0.1])
def test_bert_s_masked_words(eps: float) -> None:
    theirs = scrambled(BertLMPredictionHead(BertConfig(**SIZES, layer_norm_eps=eps)))
    ours = head(LanguageModelHead(tied=False, bias=True, transform="gelu", norm=LayerNorm(eps=eps)))
    copied([(ours.transform.dense, theirs.transform.dense), (ours.transform.norm, theirs.transform.LayerNorm)])
    ours.weight.data, ours.bias.data = theirs.decoder.weight.data, theirs.decoder.bias.data
    same(ours(X), theirs(X))


def test_modernbert_s_masked_words() -> None:
    theirs, decoder = (
        scrambled(ModernBertPredictionHead(ModernBertConfig(**SIZES))),
        scrambled(nn.Linear(WIDTH, VOCABULARY)),
    )
    part = LanguageModelHead(tied=False, bias=True, transform="gelu", norm=LayerNorm(bias=False), transform_bias=False)
    ours = head(part)
    copied([(ours.transform.dense, theirs.dense), (ours.transform.norm, theirs.norm)])
    ours.weight.data, ours.bias.data = decoder.weight.data, decoder.bias.data
    same(ours(X), decoder(theirs(X)))


def test_albert_s_masked_words() -> None:
    theirs = scrambled(AlbertMLMHead(AlbertConfig(**SIZES, embedding_size=5, hidden_act="relu")))
    ours = head(
        LanguageModelHead(tied=False, bias=True, transform="relu", transform_width=5, norm=LayerNorm(eps=1e-12))
    )
    copied([(ours.transform.dense, theirs.dense), (ours.transform.norm, theirs.LayerNorm)])
    ours.weight.data, ours.bias.data = theirs.decoder.weight.data, theirs.decoder.bias.data
    same(ours(X), theirs(X))


def test_ultrabert_s_masked_words() -> None:
    theirs = scrambled(UltrabertPredictionHead(UltrabertConfig(**SIZES, prediction_head_size=5)))
    part = LanguageModelHead(tied=False, transform="gelu_tanh", transform_bias=False, transform_hidden=5, norm=NoNorm())
    ours = head(part)
    copied([(ours.transform.first, theirs.linear1), (ours.transform.dense, theirs.linear2)])
    ours.weight.data = theirs.decoder.weight.data
    same(ours(X), theirs(X))


@pytest.mark.parametrize("field", ["transform_width", "transform_hidden"])
def test_a_width_of_the_transform_needs_a_transform(field: str) -> None:
    with pytest.raises(SpecError, match=f"{field}: there is no transform"):
        LanguageModelHead.parse({field: 5})


def test_vectors_are_scaled_before_the_logits_and_the_bias_is_not() -> None:
    plain, scaled = head(LanguageModelHead(bias=True)), head(LanguageModelHead(bias=True, scale=0.25))
    scaled.load_state_dict(plain.state_dict())
    same(scaled(X), (plain(X) - plain.bias) / 4 + plain.bias)


@pytest.mark.parametrize("kind", [ClassificationHead, LabelsHead, RegressionHead, TokenHead, CRFHead, SpanHead])
def test_the_norm_of_a_head_is_not_over_the_batch(kind: type[Head]) -> None:
    with pytest.raises(
        SpecError,
        match="norm: a head normalises each vector separately; use layer_norm, rms_norm or none, not batch_norm",
    ):
        kind.parse({"norm": "batch_norm", "hidden": 4})


def test_a_transform_has_no_batch_norm() -> None:
    with pytest.raises(SpecError, match="norm: a head normalises each vector separately"):
        LanguageModelHead.parse({"norm": "batch_norm"})


def test_without_a_hidden_layer_the_norm_is_of_the_pooled_vector() -> None:
    ours = head(
        ClassificationHead(num_classes=4, pooling=("max", "weighted_mean"), norm=RMSNorm(weight=False, eps=1e-12))
    )
    x = X.double()
    weights = torch.arange(1, x.shape[1] + 1).double()[:, None]
    z = torch.cat([x.amax(1), (x * weights).sum(1) / weights.sum()], -1)
    z = z / z.square().mean(-1, keepdim=True).sqrt()
    same(ours(X), (z @ ours.output.weight.double().T + ours.output.bias.double()).float())


def test_the_mean_of_the_rest_leaves_out_class_token_and_registers() -> None:
    ours = head(ClassificationHead(num_classes=4, pooling=("first", "mean_rest"), leading=3))
    lengths = torch.tensor([5, 4, 5])
    rest = torch.stack([row[3:length].mean(0) for row, length in zip(X, lengths.tolist(), strict=True)])
    same(ours(X, lengths), ours.output(torch.cat((X[:, 0], rest), -1)))
    same(ours(X), ours.output(torch.cat((X[:, 0], X[:, 3:].mean(1)), -1)))


def test_the_chain_runs_over_positions_with_a_target() -> None:
    """Loss and prediction of rows with gaps are those of the same positions without gaps."""
    crf = head(CRFHead(num_classes=4)).double()
    outputs = crf(X.double())
    targets = torch.tensor([[-100, 2, -100, 0, 3], [1, -100, -100, -100, -100], [-100] * 5])
    places = [[1, 3, 4], [0], []]
    parts = [(outputs[row, kept][None], targets[row, kept][None]) for row, kept in enumerate(places[:2])]
    torch.testing.assert_close(crf.loss(outputs, targets), sum(crf.loss(o, t) for o, t in parts))
    found = crf.decode(outputs, targets >= 0)
    for (row, kept), (alone, _) in zip(enumerate(places), parts, strict=False):
        assert found[row, kept].tolist() == crf.decode(alone, torch.ones(1, len(kept), dtype=torch.bool))[0].tolist()


def test_without_transitions_the_chain_is_a_softmax_at_each_position() -> None:
    crf, plain = build_head(CRFHead(num_classes=4), WIDTH, None), build_head(TokenHead(num_classes=4), WIDTH, None)
    crf.load_state_dict(scrambled(plain).state_dict(), strict=False)
    targets = torch.tensor([[1, 2, -100, 0, 3], [0, 1, 2, 3, 0], [2, -100, -100, -100, -100]])
    same(crf.loss(crf(X), targets), plain.loss(plain(X), targets))
    marked = targets >= 0
    assert crf.decode(crf(X), marked)[marked].equal(plain.decode(plain(X), marked)[marked])
