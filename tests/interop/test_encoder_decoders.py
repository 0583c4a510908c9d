"""Encoder–decoders beside the battery: answers with their own first tokens, what old files hold, what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.interop.battery import Pair, answered, every_case, made, our_answer, their_answer
from tests.interop.cases import bart, t5
from tests.interop.cases.case import Case
from tests.interop.folders import edit
from tokenizers import pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BartForQuestionAnswering,
    BartForSequenceClassification,
    BartModel,
    T5ForConditionalGeneration,
    T5Model,
)

import qkv
from qkv.cli.main import main
from qkv.interop.check import compare
from qkv.interop.load import load_published
from qkv.interop.save import save_published
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.spec.heads import LanguageModelHead
from qkv.spec.tasks import Translation
from qkv.system.errors import UserError

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:transformers"
)
WEIGHTS, CONFIG, GENERATION = "model.safetensors", "config.json", "generation_config.json"
WORDS = [f"w{i}" for i in range(57)]
SOURCES = ["w3 w1 w4 w1 w5", "w9 w2", "w6 w5 w3 w5 w8 w9 w7 w9"]


def words(specials: Sequence[str], template: str) -> tokenizers.Tokenizer:
    """One id a word, behind four special tokens."""
    core = tokenizers.Tokenizer(WordLevel({piece: i for i, piece in enumerate([*specials, *WORDS])}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.add_special_tokens(list(specials))
    marks = [(piece, i) for i, piece in enumerate(specials) if piece in template]
    core.post_processor = processors.TemplateProcessing(single=template, special_tokens=marks)
    return core


SEED = 2


def written(
    kind: Any, config: Any, folder: Path, core: tokenizers.Tokenizer, strength: float = 0.3, **generation: Any
) -> Any:
    """A model with random weights, those of its blocks of some ``strength``, saved in ``folder``.

    Beside it: its tokenizer and its makers' settings for generation.
    """
    torch.manual_seed(SEED)
    model = kind(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.1 if any(part in name for part in ("norm", "shared", "embed")) else strength
            parameter += scale * torch.randn_like(parameter)
    model.tie_weights()
    if model.can_generate():
        model.generation_config.update(**generation)
    model.save_pretrained(folder)
    core.save(str(folder / "tokenizer.json"))
    return model


def a_t5(folder: Path, **generation: Any) -> Any:
    core = words(("<pad>", "</s>", "<unk>", "<x>"), "$A </s>")
    return written(T5ForConditionalGeneration, t5.config(eos_token_id=1), folder, core, **generation)


def a_bart(folder: Path, **generation: Any) -> Any:
    core = words(("<s>", "<pad>", "</s>", "<unk>"), "<s> $A </s>")
    said = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "forced_bos_token_id": 0}
    config = BartConfig(**bart.sizes(bos_token_id=0, eos_token_id=2))
    return written(BartForConditionalGeneration, config, folder, core, 1.0, **said, **generation)


def their_texts(model: Any, folder: Path) -> list[str]:
    """What that library's ``generate`` makes of the sources, by the folder's own settings."""
    core = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = []
    for source in SOURCES:
        ids = torch.tensor([core.encode(source).ids])
        texts.append(
            core.decode(model.generate(ids, attention_mask=torch.ones_like(ids))[0].tolist(), skip_special_tokens=True)
        )
    return texts


@pytest.mark.parametrize(("make", "said"), [
    (a_t5, {"max_new_tokens": 14}),
    (a_t5, {"max_new_tokens": 14, "num_beams": 3, "length_penalty": 1.5}),
    (a_t5, {"max_length": 9, "num_beams": 2, "early_stopping": True}),
    (a_bart, {"max_new_tokens": 14}),
    # That library counts the forced token in a text's length, which matters where lengths are weighed.
    (a_bart, {"max_length": 14, "num_beams": 3, "length_penalty": 0.0}),
])  # fmt: skip
def test_it_answers_with_its_own_first_tokens(
    make: Any, said: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = make(tmp_path, do_sample=False, **said)
    wanted = their_texts(theirs, tmp_path)
    run = qkv.load(tmp_path)
    assert [answer["answer"] for answer in qkv.predict(run, *SOURCES)] == wanted
    assert len(set(wanted)) == 3
    capsys.readouterr()
    assert main(["predict", str(tmp_path), SOURCES[0]]) == 0
    assert capsys.readouterr().out.strip() == wanted[0]


@pytest.mark.parametrize(("make", "begin", "sources"), [(a_t5, ("<pad>",), 511), (a_bart, ("</s>", "<s>"), 78)])
def test_the_first_tokens_are_those_that_the_files_say(
    make: Any, begin: tuple[str, ...], sources: int, tmp_path: Path
) -> None:
    make(tmp_path, max_new_tokens=3, do_sample=False)
    run = qkv.load(tmp_path)
    assert run.recipe.task == Translation(begin=begin, framed=True).published()
    (answer,) = qkv.predict(run, " ".join(WORDS * 10))
    assert f"the model reads {sources} at once;" in answer["note"]


def test_exported_it_writes_the_same(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    wanted = their_texts(a_bart(first, max_new_tokens=14, do_sample=False), first)
    assert main(["export", str(first), "--out", str(second)]) == 0
    said = json.loads((second / GENERATION).read_text())
    assert (said["decoder_start_token_id"], said["forced_bos_token_id"]) == (2, 0)
    again = BartForConditionalGeneration.from_pretrained(second).eval()
    again.generation_config.update(max_new_tokens=14, do_sample=False)
    assert their_texts(again, second) == wanted


def test_a_bias_of_the_logits_is_ignored_where_it_is_zero_and_refused_where_not(tmp_path: Path) -> None:
    a_bart(tmp_path)
    assert "final_logits_bias" in dict(load_published(tmp_path).ignored)
    tensors = load_file(tmp_path / WEIGHTS)
    tensors["final_logits_bias"][0, 7] = 0.5
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(UserError, match=r"'final_logits_bias' has values other than 0"):
        load_published(tmp_path)


def test_old_files_hold_the_token_vectors_several_times(tmp_path: Path) -> None:
    a_t5(tmp_path)
    plain, tensors = load_published(tmp_path), load_file(tmp_path / WEIGHTS)
    copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    old = {**tensors, **{name: tensors["shared.weight"].clone() for name in copies}}
    old["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.ones(32, 3)
    save_file(old, tmp_path / WEIGHTS)
    found = load_published(tmp_path)
    assert dict(found.ignored).keys() == {*old} - {*tensors}
    assert all(torch.equal(tensor, plain.model.state_dict()[name]) for name, tensor in found.model.state_dict().items())
    old["decoder.embed_tokens.weight"] = tensors["shared.weight"] + 1
    save_file(old, tmp_path / WEIGHTS)
    with pytest.raises(
        UserError,
        match=r"'decoder.embed_tokens.weight' and 'shared.weight' are one shared tensor .* but their values differ",
    ):
        load_published(tmp_path)


@pytest.mark.parametrize(("tied", "scale", "beside", "head"), [
    (True, None, False, LanguageModelHead(tied=True, scale=30**-0.5)),
    (None, None, False, LanguageModelHead(tied=True, scale=30**-0.5)),
    (False, None, True, LanguageModelHead(tied=False)),
    (True, False, True, LanguageModelHead(tied=False)),
    (True, False, False, LanguageModelHead(tied=True)),
])  # fmt: skip
def test_how_files_of_each_age_say_what_the_head_is(
    tied: bool | None, scale: bool | None, beside: bool, head: LanguageModelHead, tmp_path: Path
) -> None:
    a_t5(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    if beside:
        save_file({**tensors, "lm_head.weight": tensors["shared.weight"] * 2}, tmp_path / WEIGHTS)
    said = {"tie_word_embeddings": tied, "scale_decoder_outputs": scale}
    edit(tmp_path / CONFIG, lambda config: [config.pop(key, None) for key in said])
    edit(
        tmp_path / CONFIG,
        lambda config: config.update({key: value for key, value in said.items() if value is not None}),
    )
    assert load_published(tmp_path).spec.head == head


@pytest.mark.parametrize(
    ("kind", "config"), [(T5Model, t5.config(feed_forward_proj="gelu")), (BartModel, BartConfig(**bart.sizes()))]
)
def test_a_body_alone_gives_its_vectors(kind: Any, config: Any, tmp_path: Path) -> None:
    torch.manual_seed(2)
    theirs = kind(config).eval()
    theirs.save_pretrained(tmp_path)
    assert not any(name.startswith("model.") for name in load_file(tmp_path / WEIGHTS))
    found, ids = load_published(tmp_path), torch.randint(4, 61, (2, 9))
    with torch.no_grad():
        ours = found.model.features(ids[:, :5], memory=found.model.encode(ids))[0]
        wanted = theirs(ids, decoder_input_ids=ids[:, :5]).last_hidden_state
    assert float((ours - wanted).abs().max()) < 1e-5


@pytest.mark.parametrize(("make", "key", "value", "sentence"), [
    (a_t5, "feed_forward_proj", "gated-swoosh", "feed_forward_proj is 'gated-swoosh', which qkv does not support"),
    (a_t5, "dense_act_fn", "tanh", "dense_act_fn is 'tanh', but qkv supports only 'relu' here"),
    (a_t5, "num_heads", 0, "num_heads is 0"),
    (a_bart, "normalize_before", True, "normalize_before is True, but qkv supports only False here"),
    (a_bart, "extra_pos_embeddings", 1, "extra_pos_embeddings is 1, but qkv supports only 2 here"),
    (a_bart, "activation_function", "swoosh", "activation_function is 'swoosh', which qkv does not support"),
])  # fmt: skip
def test_what_would_change_the_numbers_is_refused(
    make: Any, key: str, value: Any, sentence: str, tmp_path: Path
) -> None:
    make(tmp_path)
    edit(tmp_path / CONFIG, lambda config: config.update({key: value}))
    with pytest.raises(UserError, match=sentence):
        load_published(tmp_path)


def test_a_first_token_that_the_tokenizer_lacks_is_named(tmp_path: Path) -> None:
    a_t5(tmp_path)
    edit(tmp_path / GENERATION, lambda said: said.update(decoder_start_token_id=99))
    with pytest.raises(UserError, match="begin with the token id 99, which its tokenizer does not have"):
        qkv.load(tmp_path)


def test_classes_of_a_text_that_the_decoder_reads_one_token_later(tmp_path: Path) -> None:
    """As the library reads a text by itself: the last end mark meets the vector of the token before it."""
    config = BartConfig(**bart.sizes(num_labels=3, eos_token_id=2, pad_token_id=1))
    theirs = written(
        BartForSequenceClassification, config, tmp_path, words(("<s>", "<pad>", "</s>", "<unk>"), "<s> $A </s>")
    )
    ids, lengths = torch.randint(4, 61, (3, 9)), torch.tensor([9, 4, 6])
    ids = ids.masked_fill(torch.arange(9) >= lengths[:, None], 1).scatter(1, lengths[:, None] - 1, 2)
    later = torch.cat((torch.full((3, 1), 2), ids[:, :-1]), 1)
    model = load_published(tmp_path).model
    with torch.no_grad():
        wanted = theirs(ids, attention_mask=(ids != 1).long()).logits
        found = model(Signal(later, lengths=lengths), memory=model.encode(Signal(ids, lengths=lengths)))[0]
    assert torch.allclose(found, wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))
    core = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    with torch.no_grad():
        wanted = [theirs(torch.tensor([core.encode(text).ids])).logits[0].softmax(-1) for text in SOURCES]
    for answer, each in zip(qkv.predict(str(tmp_path), *SOURCES), wanted, strict=True):
        assert list(answer["probabilities"].values()) == pytest.approx(each.tolist(), abs=1e-5)


def test_the_end_of_a_text_that_has_its_language_last_is_refused(tmp_path: Path) -> None:
    core = words(("<s>", "<pad>", "</s>", "<unk>", "en_XX"), "$A </s> en_XX")
    config = BartConfig(**bart.sizes(num_labels=3, eos_token_id=2, pad_token_id=1))
    written(BartForSequenceClassification, config, tmp_path, core)
    with pytest.raises(UserError, match="reads its answer at the end token, which its tokenizer does not put last"):
        qkv.load(tmp_path)


def test_answers_in_a_text_have_no_task_on_an_encoder_decoder(tmp_path: Path) -> None:
    core = words(("<s>", "<pad>", "</s>", "<unk>"), "<s> $A </s>")
    written(BartForQuestionAnswering, BartConfig(**bart.sizes(eos_token_id=2, pad_token_id=1)), tmp_path, core)
    with pytest.raises(UserError, match="'spans' on an encoder–decoder, which no task of qkv uses"):
        qkv.load(tmp_path)


def test_dropouts_are_read(tmp_path: Path) -> None:
    written(
        T5ForConditionalGeneration,
        t5.config(dropout_rate=0.25),
        tmp_path,
        words(("<pad>", "</s>", "<unk>", "<x>"), "$A </s>"),
    )
    spec = load_published(tmp_path).spec
    assert spec.encoder is not None
    stacks = (spec, spec.encoder)
    assert {stack.frontend.dropout for stack in stacks} == {0.25}  # type: ignore[attr-defined]
    assert {part.dropout for stack in stacks for block in stack.blocks for part in (block, *block.branches)} == {0.25}  # type: ignore[attr-defined]


CONFIGS = st.fixed_dictionaries({
    "d_model": st.integers(2, 12), "d_kv": st.integers(1, 6), "d_ff": st.integers(1, 12),
    "num_heads": st.integers(1, 4), "num_layers": st.integers(1, 3), "num_decoder_layers": st.integers(1, 3),
    "feed_forward_proj": st.sampled_from(["relu", "gelu", "gated-gelu", "gated-silu", "gated-relu"]),
    "relative_attention_num_buckets": st.sampled_from([4, 8, 32]),
    "relative_attention_max_distance": st.integers(17, 40),
    "tie_word_embeddings": st.booleans(), "layer_norm_epsilon": st.sampled_from([1e-6, 0.1]),
})  # fmt: skip


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changed=CONFIGS)
def test_any_t5_has_the_same_logits(changed: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    kind = T5ForConditionalGeneration if changed["tie_word_embeddings"] else t5.UntiedT5
    pair: Pair = made(Case("t5-drawn", kind, t5.config(**changed), lengths=(33, 2)), tmp_path_factory.mktemp("drawn"))
    with torch.no_grad():
        ours, theirs = answered(pair, our_answer(pair)), answered(pair, their_answer(pair))
    assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-4


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", ["bart", "mbart"])
def test_an_untied_bart_is_read_whole_by_the_library_itself(name: str, tmp_path: Path) -> None:
    """Its encoder and decoder have token tables of their own there, which are written as copies of the one here."""
    case = next(case for case in every_case() if case.name == name)
    pair = made(case, tmp_path / "a")
    untied = pair.ours.spec.changed(head=LanguageModelHead(tied=False))
    save_published(build(untied), tmp_path / "b", family=pair.published.family)
    assert "differs by" in compare(load_published(tmp_path / "b").model, tmp_path / "b")


def test_token_tables_that_differ_are_refused_for_what_they_are(tmp_path: Path) -> None:
    case = next(case for case in every_case() if case.name == "bart")
    made(case, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.decoder.embed_tokens.weight"] = tensors["model.shared.weight"] + 1
    tensors["lm_head.weight"] = tensors["model.shared.weight"] + 2
    save_file(tensors, tmp_path / "model.safetensors")
    edit(tmp_path / "config.json", lambda tree: tree.update(tie_word_embeddings=False))
    with pytest.raises(UserError) as error:
        load_published(tmp_path)
    assert "one shared tensor in qkv's model of this config, but their values differ" in str(error.value)
    assert "the config says" not in str(error.value)
