"""A run that begins with the weights of another."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from tests.interop.folders import counted
from tests.training.kill_storm import ignore
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForPreTraining,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

import qkv
from qkv.interop.save import save_published
from qkv.models.build import build
from qkv.runs.run import Run
from qkv.runs.start import with_start
from qkv.system.errors import UserError
from qkv.training.loop import train
from qkv.training.watch.events import Event, Notice

MODEL = {
    "width": 16,
    "num_layers": 2,
    "context_length": 24,
    "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward(32)"]}],
}
TRAINING = {"steps": 3, "batch_size": 2, "validation": {"every": 3, "batches": 1}}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("pretrained")
    (folder / "text.txt").write_text("the film is good and the day is bad\n" * 60)
    data = {"source": str(folder / "text.txt"), "tokenizer": "words(64)"}
    recipe = qkv.Recipe.parse({"data": data, "model": MODEL, "task": "masked_tokens", "training": TRAINING})
    return train(recipe, folder / "run", on_event=ignore)


def classifier(folder: Path, start: Path, **model: object) -> qkv.Recipe:
    table = folder / "rows.tsv"
    table.write_text("text\tlabel\n" + "".join(f"the {word} day\t{word}\n" for word in ("good", "bad") * 20))
    described = {**MODEL, "head": "classification", **model}
    return qkv.Recipe.parse(
        {
            "data": str(table),
            "model": described,
            "task": "classification",
            "start": str(start),
            "training": {**TRAINING, "steps": 1},
        }
    )


def begun(recipe: qkv.Recipe, folder: Path) -> tuple[Run, list[str]]:
    """The run after one step without a learning rate to speak of, and what was said."""
    events: list[Event] = []
    still = qkv.override(recipe, ["training.optimizer.lr=1e-30", "training.optimizer.weight_decay=0.0"])
    return train(still, folder, on_event=events.append), [event.text for event in events if isinstance(event, Notice)]


def test_the_stack_begins_with_the_weights_of_the_run_and_the_head_does_not(pretrained: Run, tmp_path: Path) -> None:
    run, said = begun(classifier(tmp_path, pretrained.folder), tmp_path / "run")
    mine, theirs = run.model.state_dict(), pretrained.model.state_dict()
    stack = [name for name in mine if not name.startswith("head.")]
    assert stack
    for name in stack:
        torch.testing.assert_close(mine[name][: len(theirs[name])], theirs[name], rtol=0, atol=1e-20)
    assert run.tokenizer.encode("the good day") == pretrained.tokenizer.encode("the good day")
    assert any("its head is initialised at random" in sentence for sentence in said)


def test_the_same_head_begins_with_its_weights_too(pretrained: Run, tmp_path: Path) -> None:
    recipe = pretrained.recipe.changed(start=str(pretrained.folder), data={"source": pretrained.recipe.data.source})
    run, said = begun(recipe, tmp_path / "run")
    for name, tensor in run.model.state_dict().items():
        torch.testing.assert_close(tensor, pretrained.model.state_dict()[name], rtol=0, atol=1e-20)
    assert any(sentence.endswith(f"the weights of {str(pretrained.folder)!r}") for sentence in said)


def test_it_goes_on_where_the_first_run_is_gone(pretrained: Run, tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        (start / name).write_bytes((pretrained.folder / name).read_bytes())
    recipe = classifier(tmp_path, start)
    train(recipe, tmp_path / "run", on_event=ignore)
    (start / "model.safetensors").unlink()
    longer = qkv.override(recipe, ["training.steps=2"])
    assert [row["step"] for row in train(longer, tmp_path / "run", on_event=ignore).metrics if "loss" in row] == [1, 2]


def test_another_start_is_another_recipe(pretrained: Run, tmp_path: Path) -> None:
    recipe = classifier(tmp_path, pretrained.folder)
    train(recipe, tmp_path / "run", on_event=ignore)
    tokenizer = {"kind": "file", "path": str(pretrained.folder / "tokenizer.json")}
    other = recipe.changed(start=None, data={**recipe.data.to_dict(), "tokenizer": tokenizer})
    with pytest.raises(UserError, match="start"):
        train(other, tmp_path / "run", on_event=ignore)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_layers": 3}, r"start: the model has the tensor 'blocks\.2\..*', but .* does not"),
        ({"num_layers": 1}, r"start: .* has the tensor 'blocks\.1\..*', but the model does not"),
        ({"width": 32}, r"start: '.*' has the shape .* in the model and .* in "),
    ],
    ids=["deeper", "shallower", "wider"],
)
def test_a_model_that_is_built_otherwise_is_refused(
    pretrained: Run, tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        train(classifier(tmp_path, pretrained.folder, **changes), tmp_path / "run", on_event=ignore)
    assert not (tmp_path / "run" / "spec.yaml").exists()


def test_a_folder_without_a_run_is_refused(pretrained: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"start: .* holds no model\.safetensors"):
        train(classifier(tmp_path, tmp_path / "nothing"), tmp_path / "run", on_event=ignore)


def test_another_tokenizer_is_refused(pretrained: Run, tmp_path: Path) -> None:
    recipe = qkv.override(classifier(tmp_path, pretrained.folder), ["data.tokenizer=words"])
    with pytest.raises(UserError, match=r"data\.tokenizer: 'words' differs from the tokenizer of"):
        train(recipe, tmp_path / "run", on_event=ignore)


def published_bert(
    folder: Path, words: tuple[str, ...] = ("good", "bad", "the", "film", "day"), positions: int = 32
) -> Path:
    """A random BERT that hides words, as its makers would publish it, with a pooler that its own head does not read."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (folder / "vocab.txt").write_text("\n".join(names) + "\n")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = BertConfig(vocab_size=len(names), max_position_embeddings=positions, **sizes)
    BertForPreTraining(config).save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')
    return folder


def published_gpt2(folder: Path) -> Path:
    """A random GPT-2 whose tokenizer has no mark for classes."""
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "good": 2, "bad": 3, "day": 4}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    folder.mkdir(parents=True, exist_ok=True)
    words.save(str(folder / "tokenizer.json"))
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 24}
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(vocab_size=5, bos_token_id=None, eos_token_id=None, **sizes)).save_pretrained(folder)
    return folder


def alone(table: Path, start: Path, **more: object) -> qkv.Recipe:
    """A classifier whose recipe says nothing of the model."""
    table.write_text("text\tlabel\n" + "".join(f"the {word} day\t{word}\n" for word in ("good", "bad") * 20))
    return qkv.Recipe.parse(
        {
            "data": str(table),
            "task": "classification",
            "start": str(start),
            "training": {**TRAINING, "steps": 1},
            **more,
        }
    )


def test_a_published_checkpoint_is_a_start_that_describes_the_model(tmp_path: Path) -> None:
    start = published_bert(tmp_path / "bert")
    run, said = begun(alone(tmp_path / "rows.tsv", start), tmp_path / "run")
    theirs = BertForPreTraining.from_pretrained(start)
    mine = run.model.state_dict()
    assert (run.recipe.model.width, len(run.recipe.model.layers), run.recipe.model.context_length) == (16, 2, 32)
    torch.testing.assert_close(
        mine["frontend.table"], theirs.bert.embeddings.word_embeddings.weight, rtol=0, atol=1e-20
    )
    layer = theirs.bert.encoder.layer[1]
    torch.testing.assert_close(
        mine["blocks.1.branches.1.body.up.weight"], layer.intermediate.dense.weight, rtol=0, atol=1e-20
    )
    torch.testing.assert_close(mine["head.hidden.weight"], theirs.bert.pooler.dense.weight, rtol=0, atol=1e-20)
    assert mine["head.output.weight"].shape == (2, 16)
    assert any(
        "its head is initialised at random, except head.hidden.bias, head.hidden.weight" in sentence
        for sentence in said
    )
    assert run.tokenizer.specials["cls"] == 2


def test_a_published_start_is_described_by_its_config_and_builds_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, (read, built) = published_bert(tmp_path / "bert"), counted(monkeypatch)
    recipe = with_start(alone(tmp_path / "rows.tsv", start))
    assert (read, built) == ([start / "config.json"], [])
    train(recipe, tmp_path / "run", on_event=ignore)
    # The weights of the start and those of the finished run are mapped files, without storage of their own.
    assert sorted(built) == ["cpu", "meta", "meta", "no values"]


def test_what_began_with_a_published_checkpoint_is_handed_back_and_goes_on(tmp_path: Path) -> None:
    start = published_bert(tmp_path / "bert")
    recipe = alone(tmp_path / "rows.tsv", start)
    run = train(recipe, tmp_path / "run", on_event=ignore)
    shutil.rmtree(start)
    longer = train(qkv.override(recipe, ["training.steps=2"]), tmp_path / "run", on_event=ignore)
    assert [row["step"] for row in longer.metrics if "loss" in row] == [1, 2]
    save_published(run.model, tmp_path / "back", run.tokenizer, run.vocabulary.labels)
    theirs = BertForSequenceClassification.from_pretrained(tmp_path / "back").eval()
    ids = torch.tensor([[2, 7, 5, 9, 3]])
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, run.model(ids)[0], rtol=1e-4, atol=1e-5)
    assert theirs.config.id2label == {0: "bad", 1: "good"}


def test_rows_of_added_tokens_are_drawn_as_the_initialisation_does(tmp_path: Path) -> None:
    start = published_gpt2(tmp_path / "gpt2")
    run, said = begun(alone(tmp_path / "rows.tsv", start), tmp_path / "run")
    table, theirs = run.model.frontend.table, GPT2LMHeadModel.from_pretrained(start).transformer.wte.weight
    assert table.shape == (6, 16)
    torch.testing.assert_close(table[:5], theirs, rtol=0, atol=1e-20)
    drawn = build(run.recipe.model, run.recipe.training.seed).frontend.table
    torch.testing.assert_close(table[5], drawn[5], rtol=0, atol=1e-20)
    assert 0.2 * run.recipe.model.init_std < table[5].std() < 5 * run.recipe.model.init_std
    assert any(sentence.startswith("1 rows of frontend.table belong to added tokens") for sentence in said)
    assert run.recipe.model.head.to_dict()["pooling"] == "last"


def test_a_run_is_a_start_that_describes_the_model_and_an_own_word_counts(pretrained: Run, tmp_path: Path) -> None:
    model = {"context_length": 12, "head": "classification(pooling=max)"}
    run, _ = begun(alone(tmp_path / "rows.tsv", pretrained.folder, model=model), tmp_path / "run")
    assert run.recipe.model.blocks == pretrained.recipe.model.blocks
    assert (run.recipe.model.width, run.recipe.model.context_length) == (16, 12)
    assert run.recipe.model.head.to_dict()["pooling"] == "max"
    theirs = pretrained.model.state_dict()["frontend.positions.table"]
    torch.testing.assert_close(run.model.state_dict()["frontend.positions.table"], theirs[:12], rtol=0, atol=1e-20)


def test_a_run_with_adapters_is_a_start_as_what_it_amounts_to(pretrained: Run, tmp_path: Path) -> None:
    training = {**TRAINING, "adapt": "lora(2)", "optimizer": "adamw(lr=0.1)"}
    first = train(
        alone(tmp_path / "rows.tsv", pretrained.folder, training=training), tmp_path / "first", on_event=ignore
    )
    second, said = begun(alone(tmp_path / "rows.tsv", tmp_path / "first"), tmp_path / "second")
    name = "blocks.0.branches.0.body.qkv.weight"
    assert not torch.equal(first.model.state_dict()[name], pretrained.model.state_dict()[name])
    for name, tensor in first.model.state_dict().items():
        torch.testing.assert_close(second.model.state_dict()[name], tensor, rtol=0, atol=1e-20)
    assert not [sentence for sentence in said if "initialised at random" in sentence]


def test_a_task_that_the_start_cannot_do_is_refused(tmp_path: Path) -> None:
    start = published_bert(tmp_path / "bert")
    (tmp_path / "text.txt").write_text("the good day " * 99)
    recipe = qkv.Recipe.parse({"data": str(tmp_path / "text.txt"), "start": str(start), "training": TRAINING})
    with pytest.raises(UserError, match="this branch sees later positions"):
        train(recipe, tmp_path / "run", on_event=ignore)


def test_a_published_encoder_decoder_learns_with_its_own_marks(tmp_path: Path) -> None:
    words = Tokenizer(
        models.WordLevel(
            {piece: i for i, piece in enumerate(["<pad>", "</s>", "<unk>", "eins", "zwei", "one", "two"])},
            unk_token="<unk>",
        )
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.add_special_tokens(["<pad>", "</s>", "<unk>"])
    words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    start = tmp_path / "t5"
    T5ForConditionalGeneration(T5Config(vocab_size=7, decoder_start_token_id=0, **sizes)).save_pretrained(start)
    words.save(str(start / "tokenizer.json"))
    (tmp_path / "pairs.csv").write_text("source,target\n" + "eins zwei,one two\nzwei,two\n" * 20)
    recipe = {"data": str(tmp_path / "pairs.csv"), "task": "translation", "start": str(start), "training": TRAINING}
    recipe["sample"] = {"max_new_tokens": 5, "temperature": 0.0}
    run, said = begun(qkv.Recipe.parse(recipe), tmp_path / "run")
    assert run.recipe.task.to_dict() == {
        "kind": "translation",
        "label_smoothing": 0.1,
        "begin": ["<pad>"],
        "framed": True,
        "prefix": "",
        "windows": 1,
    }
    theirs = T5ForConditionalGeneration.from_pretrained(start)
    torch.testing.assert_close(run.model.state_dict()["frontend.table"], theirs.shared.weight, rtol=0, atol=1e-20)
    assert not [sentence for sentence in said if "initialised at random" in sentence]
    written = theirs.generate(torch.tensor([[3, 4, 1]]), max_new_tokens=5, do_sample=False)[0, 1:].tolist()
    assert qkv.predict(run, "eins zwei")[0]["answer"].split() == words.decode(written).split()
