"""DeBERTa, Longformer, XLNet beside the battery: what is refused, a head's other names, arguments beside the tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.interop.cases import deberta, longformer, xlnet
from tests.interop.folders import edit

from qkv.costs.cost import cost
from qkv.interop.load import load_published
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.spec.model import Block, Model, Text
from qkv.system.errors import UserError

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:transformers"
)
LENGTHS = torch.tensor([11, 6, 2])
REAL = torch.arange(11) < LENGTHS[:, None]


def written(kind: type[Any], config: Any, folder: Path) -> Any:
    """A random model of that library in ``folder``."""
    torch.manual_seed(5)
    config._attn_implementation = "eager"
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return model


def apart(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


def test_the_other_form_of_debertas_head_is_read_too(tmp_path: Path) -> None:
    """As the third version's files hold it, unsaid in their configs, with the head of the other half of pretraining."""
    theirs = written(transformers.DebertaV2ForMaskedLM, deberta.config(legacy=False), tmp_path)
    ids = torch.randint(4, 61, (3, 11))
    with torch.no_grad():
        wanted = theirs(ids, attention_mask=REAL.long()).logits[REAL]
        edit(tmp_path / "config.json", lambda tree: [tree.pop(key) for key in ("legacy", "architectures")])
        published = load_published(tmp_path)
        assert published.architecture == "DebertaV2ForMaskedLM"
        assert apart(published.model(Signal(ids, lengths=LENGTHS))[0][REAL], wanted) < 1e-5


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {"conv_kernel_size": 3},
            "conv_kernel_size is 3, but qkv supports only 0 here; it changes a convolution beside the first layer",
        ),
        ({"pos_att_type": "c2p|p2p"}, "pos_att_type holds 'p2p'"),
        ({"pos_att_type": []}, "pos_att_type lists no term"),
        ({"relative_attention": False, "norm_rel_ebd": "none"}, "relative_attention is false"),
        ({"embedding_size": 12}, "embedding_size is 12, but qkv supports only 30"),
        ({"norm_rel_ebd": "batch_norm"}, "norm_rel_ebd is 'batch_norm', which qkv does not support"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_what_deberta_could_be_and_qkv_is_not_is_refused(tmp_path: Path, keys: dict[str, Any], sentence: str) -> None:
    written(transformers.DebertaV2Model, deberta.config(), tmp_path)
    edit(tmp_path / "config.json", lambda tree: tree.update(keys))
    with pytest.raises(UserError, match=sentence):
        load_published(tmp_path)


def test_a_question_is_global_as_it_is_in_longformer(tmp_path: Path) -> None:
    """Theirs looks for the first of three separators; ours is told how long the question is."""
    separator, few = 60, torch.tensor([3, 1, 5])
    theirs = written(transformers.LongformerForQuestionAnswering, longformer.config(sep_token_id=separator), tmp_path)
    ids, lengths = torch.randint(4, separator, (3, 19)), torch.tensor([19, 13, 9])
    for i, (first, last) in enumerate(zip(few.tolist(), lengths.tolist(), strict=True)):
        ids[i, [first, first + 1, last - 1]] = separator
    real = torch.arange(19) < lengths[:, None]
    with torch.no_grad():
        found = theirs(ids, attention_mask=real.long())
        wanted = torch.stack((found.start_logits, found.end_logits), -1)[real]
        model = load_published(tmp_path).model
        assert apart(model(Signal(ids, lengths=lengths, prefix=few))[0][real], wanted) < 1e-5
        assert apart(model(Signal(ids, lengths=lengths))[0][real], wanted) > 1e-3


@pytest.mark.parametrize(
    ("window", "sentence"),
    [
        (5, "attention_window holds 5"),
        (0, "attention_window holds 0"),
        ([4, 4], "names 2 layers, but num_hidden_layers is 3"),
    ],
    ids=["odd", "none", "too few"],
)
def test_windows_of_longformer_that_cannot_be_are_refused(tmp_path: Path, window: Any, sentence: str) -> None:
    written(transformers.LongformerModel, longformer.config(), tmp_path)
    edit(tmp_path / "config.json", lambda tree: tree.update(attention_window=window))
    with pytest.raises(UserError, match=sentence):
        load_published(tmp_path)


def test_the_types_of_xlnet_are_read_by_its_attention(tmp_path: Path) -> None:
    theirs = written(transformers.XLNetForTokenClassification, xlnet.config(num_labels=3), tmp_path)
    ids, types = torch.randint(4, 61, (3, 11)), torch.randint(0, 3, (3, 11))
    with torch.no_grad():
        wanted = theirs(ids, attention_mask=REAL.float(), token_type_ids=types).logits[REAL]
        model = load_published(tmp_path).model
        assert apart(model(Signal(ids, lengths=LENGTHS, types=types))[0][REAL], wanted) < 1e-5
        assert apart(model(Signal(ids, lengths=LENGTHS))[0][REAL], wanted) > 1e-3


def test_a_text_that_xlnet_pads_on_the_left_has_the_same_classes(tmp_path: Path) -> None:
    theirs = written(
        transformers.XLNetForSequenceClassification, xlnet.config(num_labels=3, summary_activation="linear"), tmp_path
    )
    edit(tmp_path / "config.json", lambda tree: tree.update(summary_activation=None))  # as older files say it
    ids = torch.randint(4, 61, (3, 11))
    left = torch.stack([row.roll(11 - length) for row, length in zip(ids, LENGTHS.tolist(), strict=True)])
    with torch.no_grad():
        wanted = theirs(left, attention_mask=REAL.flip(1).float()).logits
        assert apart(load_published(tmp_path).model(Signal(ids, lengths=LENGTHS))[0], wanted) < 1e-5


def test_xlnets_query_stream_is_the_sequence_behind_the_text(tmp_path: Path) -> None:
    """Two targets of each row, under an order of their own, with types."""
    theirs = written(transformers.XLNetLMHeadModel, xlnet.config(), tmp_path)
    model = load_published(tmp_path).model
    ids, types, rank = torch.randint(4, 61, (3, 9)), torch.randint(0, 2, (3, 9)), torch.rand(3, 9).argsort(1)
    hidden = rank[:, None, :] >= rank[:, :, None]  # i does not see j, itself included
    places = rank.topk(2).indices
    mapping = torch.nn.functional.one_hot(places, 9).float()
    positions = torch.cat((torch.arange(9).expand(3, -1), places), 1)
    visible = torch.zeros(3, 11, 11, dtype=torch.bool)
    visible[:, :9, :9] = ~hidden | torch.eye(9, dtype=torch.bool)
    visible[:, 9:, :9] = ~hidden.gather(1, places[..., None].expand(-1, -1, 9))
    both = torch.cat((ids, torch.full((3, 2), -1)), 1)
    given = {"positions": positions, "visible": visible, "types": torch.cat((types, types.gather(1, places)), 1)}
    ours = model(Signal(both, **given))[0][:, 9:]
    wanted = theirs(ids, perm_mask=hidden.float(), target_mapping=mapping, token_type_ids=types).logits
    assert apart(ours.detach(), wanted.detach()) < 1e-5
    ours.pow(2).sum().backward()
    wanted.pow(2).sum().backward()
    assert model.frontend.query is not None
    assert model.frontend.query.grad is not None
    assert apart(model.frontend.query.grad, theirs.transformer.mask_emb.grad) < 1e-5


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"attn_type": "uni"}, "attn_type is 'uni', but qkv supports only 'bi' here"),
        ({"untie_r": False}, "untie_r is False"),
        ({"summary_type": "cls_index"}, "summary_type is 'cls_index', which qkv does not support"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_what_xlnet_could_be_and_qkv_is_not_is_refused(tmp_path: Path, keys: dict[str, Any], sentence: str) -> None:
    written(transformers.XLNetForSequenceClassification, xlnet.config(), tmp_path)
    edit(tmp_path / "config.json", lambda tree: tree.update(keys))
    with pytest.raises(UserError, match=sentence):
        load_published(tmp_path)


def test_the_query_vector_is_counted() -> None:
    spec = Model(width=12, blocks=(Block(),), frontend=Text(vocab_size=9, query=True))
    assert cost(spec).parameters == sum(parameter.numel() for parameter in build(spec).parameters())
