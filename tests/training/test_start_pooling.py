"""Pooling of the new head of a model that starts from a published encoder: by hand, in float64."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.interop.test_sentence import BY_HAND, MODES, TEXTS, body, normed, rows, sentence_folder, vectors, write
from tests.training.test_start import alone, begun, published_bert, published_gpt2
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, RobertaConfig, RobertaForMaskedLM

import qkv
from qkv.models.heads.head import build_head
from qkv.runs.start import find_start, with_start
from qkv.spec.heads import ClassificationHead, Head, Hidden, RegressionHead
from qkv.system.errors import UserError

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:transformers"
)
SIZES = {
    "vocab_size": 11,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}


def by_hand(x: list[list[float]], modes: tuple[str, ...], normalise: bool) -> list[float]:
    found = [value for mode in modes for value in BY_HAND[mode](x)]
    # An RMS norm without weight: the vector of length 1 times √D.
    return [value * math.sqrt(len(found)) for value in normed(found)] if normalise else found


def logits(head: nn.Module, vector: list[float]) -> list[float]:
    weight, bias = head.output.weight.double().tolist(), head.output.bias.double().tolist()
    return [sum(w * v for w, v in zip(row, vector, strict=True)) + b for row, b in zip(weight, bias, strict=True)]


@pytest.mark.parametrize("normalise", [False, True], ids=["raw", "normed"])
@pytest.mark.parametrize("modes", [*((mode,) for mode in MODES), ("max_tokens", "mean_tokens")], ids="+".join)
def test_the_new_head_pools_as_the_folder_says(modes: tuple[str, ...], normalise: bool, tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path, body(), modes, normalise)
    heads = find_start(str(folder)).heads
    part = heads["classification"]
    assert isinstance(part, ClassificationHead)
    assert (part.hidden, part.dropout) == (None, 0.1)
    head = build_head(part.sized(3), 12, None).eval()
    texts = [vectors(body(), row) for row in rows(TEXTS)]
    lengths = torch.tensor([len(text) for text in texts])
    x = nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True, padding_value=7.0)
    wanted = torch.tensor([logits(head, by_hand(text, modes, normalise)) for text in texts])
    torch.testing.assert_close(head(x, lengths).detach(), wanted, rtol=2e-5, atol=2e-5)
    assert isinstance(heads["regression"], RegressionHead)
    assert heads["regression"].poolings == part.poolings


def test_training_reads_the_vectors_that_the_folder_embeds(tmp_path: Path) -> None:
    """The body may be in a folder inside; the vectors of the trained head are those of ``qkv.embed`` times √D."""
    folder = sentence_folder(tmp_path / "sentences", body(), ("mean_tokens",), True, "0_Transformer")
    run, said = begun(alone(tmp_path / "rows.tsv", folder), tmp_path / "run")
    assert any(
        sentence == f"the head reads the pooling mean, scaled to one length, as {folder}/modules.json says"
        for sentence in said
    )
    seen: list[Tensor] = []
    run.model.head.output.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    ids = torch.tensor([rows(TEXTS[:1])[0]])
    with torch.no_grad():
        run.model(ids)
    wanted = torch.tensor(qkv.embed(str(folder), TEXTS[:1])) * 12**0.5
    torch.testing.assert_close(seen[0], wanted, rtol=1e-5, atol=1e-5)


def test_modules_after_the_pooling_are_named_and_the_recipe_s_own_head_counts(tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path / "sentences", body(), ("cls_token",), True)
    modules = json.loads((folder / "modules.json").read_text())
    write(folder / "modules.json", [*modules[:2], {**modules[2], "type": "sentence_transformers.models.Dense"}])
    recipe = alone(tmp_path / "rows.tsv", folder, model={"head": "classification(pooling=max)"})
    run, said = begun(recipe, tmp_path / "run")
    assert run.recipe.model.head == ClassificationHead(pooling="max", num_classes=2)
    assert f"the head does not pool as {folder}/modules.json says, but as the recipe does; its modules Dense are" in (
        " ".join(said)
    )


def test_a_damaged_pooling_is_refused_before_training(tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path / "sentences", body())
    write(folder / "1_Pooling" / "config.json", {"pooling_mode": "meen"})
    with pytest.raises(UserError, match="there is no pooling 'meen'; did you mean 'mean'"):
        with_start(alone(tmp_path / "rows.tsv", folder))


def head_of(folder: Path) -> Head:
    return with_start(alone(folder / "rows.tsv", folder)).model.head


def test_without_such_files_a_pooler_that_is_there_is_read(tmp_path: Path) -> None:
    kept = head_of(published_bert(tmp_path / "bert"))
    assert isinstance(kept, ClassificationHead)
    assert (kept.pooling, kept.hidden, kept.dropout) == ("first", 16, 0.1)


def test_an_encoder_without_a_pooler_takes_the_mean_and_a_decoder_the_last(tmp_path: Path) -> None:
    published_bert(tmp_path / "bert")
    for name, model in {
        "masked": BertForMaskedLM(BertConfig(**SIZES)),
        "roberta": RobertaForMaskedLM(RobertaConfig(**SIZES, max_position_embeddings=30)),
    }.items():
        model.save_pretrained(tmp_path / name)
        for file in ("vocab.txt", "tokenizer_config.json"):
            shutil.copy(tmp_path / "bert" / file, tmp_path / name)
        head = head_of(tmp_path / name)
        assert isinstance(head, ClassificationHead)
        assert (head.pooling, head.hidden) == ("mean", None)
    decoder = head_of(published_gpt2(tmp_path / "gpt2"))
    assert isinstance(decoder, ClassificationHead)
    assert decoder.pooling == "last"


def test_a_pooler_with_old_names_or_without_the_prefix_is_found(tmp_path: Path) -> None:
    folder = published_bert(tmp_path / "bert")
    tensors = {name.removeprefix("bert."): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    kept = head_of(folder)
    assert isinstance(kept, Hidden)
    assert kept.hidden == 16
