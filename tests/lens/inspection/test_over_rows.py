"""Views over checkpoints and over a text, against models of the checkpoints and a loop over the text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.interop.folders import tiny
from tests.lens.inspection.forms import decoder, masked_run
from tests.lens.inspection.test_inspection import unpack
from tests.serving.models import translation_run
from tests.training.kill_storm import ignore
from torch.nn import functional as F

import qkv
from qkv.cli.main import main
from qkv.lens.inspection.subject import Subject
from qkv.lens.record import record
from qkv.lens.views.head_roles import repeated_tokens
from qkv.runs.storage.load import load_checkpoints
from qkv.spec.recipe import Recipe
from qkv.training.loop import train

INPUT = "aba"
TEXT = "the lazy dog; the quick brown fox jumps over the lazy dog; " * 3


@pytest.fixture(scope="module")
def folder(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that keeps three checkpoints."""
    place = tmp_path_factory.mktemp("kept") / "run"
    branches = ["attention(2)", "feed_forward(hidden=12)"]
    model = {"width": 8, "num_layers": 2, "context_length": 16, "blocks": [{"branches": branches}]}
    training = {"steps": 6, "batch_size": 2, "checkpoints": {"every": 2, "keep": 9}}
    data = {"source": str(text), "tokenizer": "characters"}
    train(Recipe.parse({"data": data, "model": model, "training": training}), place, on_event=ignore)
    return place


def test_each_checkpoint_has_its_own_numbers(folder: Path) -> None:
    run = qkv.load(folder)
    view = qkv.inspect(run, INPUT).view("checkpoints")
    assert "refused" not in view, view
    data, ids = view["data"], torch.tensor([run.tokenizer.encode(INPUT)])
    assert data["steps"] == [2, 4, 6]
    target = int(run.model(ids)[0][0, -1].argmax())
    assert run.model.vocab_size is not None
    rows = repeated_tokens(run.model.vocab_size, length=8)  # as many as the model reads
    scores = unpack(view, data["scores"])
    assert scores.shape == (len(data["names"]), 4, 3)
    for place, kept in enumerate(load_checkpoints(folder)):
        with torch.no_grad():
            logits, repeated = kept.model(ids)[0][0], kept.model(rows)[0]
            weights = record(kept.model, rows, "weights")["blocks.1.branches.0.weights"][:, 1]
        half = rows.shape[1] // 2
        losses = F.cross_entropy(repeated[:, half - 1 : -1].transpose(1, 2), rows[:, half:])
        wanted = {
            "loss on this input, nats": F.cross_entropy(logits[:-1], ids[0, 1:]),
            "loss on repeated tokens, nats": losses,
            "probability of the answer": logits[-1].softmax(-1)[target],
        }
        assert {name: line[place] for name, line in data["lines"].items()} == pytest.approx(
            {name: float(value) for name, value in wanted.items()}, rel=1e-5
        )
        before = weights.diagonal(-1, 1, 2).mean()
        assert scores[data["names"].index("previous token"), 3, place] == pytest.approx(float(before), rel=1e-4)


def test_a_head_that_is_taken_out_is_out_of_every_checkpoint(folder: Path) -> None:
    whole, without = (
        qkv.inspect(folder, INPUT, ablate=heads).view("checkpoints")["data"]["lines"]["loss on this input, nats"]
        for heads in ((), [("blocks.0.branches.0", 0)])
    )
    assert all(one != other for one, other in zip(whole, without, strict=True))


def test_what_keeps_no_checkpoints_says_so(folder: Path, tmp_path: Path) -> None:
    published = tiny(tmp_path / "published", qkv.load(folder).tokenizer)
    assert "trained here keeps" in qkv.inspect(published, INPUT).view("checkpoints")["refused"]
    assert "give a text" in qkv.inspect(published, INPUT).view("neurons")["refused"]
    for path in sorted((folder / "resume").iterdir())[:2]:
        path.rename(tmp_path / path.name)
    try:
        assert "keeps one checkpoint" in qkv.inspect(folder, INPUT).view("checkpoints")["refused"]
    finally:
        for path in tmp_path.glob("step-*"):
            path.rename(folder / "resume" / path.name)


def test_neurons_show_the_tokens_that_fire_them_most(tmp_path: Path) -> None:
    run = decoder(tmp_path, "rope")
    view = qkv.inspect(run, "the fox", over=TEXT).view("neurons")["data"]
    assert {branch["read"] for branch in view["branches"]} == {len(TEXT)}
    windows = torch.tensor(run.tokenizer.encode(TEXT)).split(64)
    here = torch.tensor([run.tokenizer.encode("the fox")])
    for branch in view["branches"]:
        point = f"{branch['path']}.activation"
        values = [record(run.model, window[None], point)[point][0] for window in windows]
        now = record(run.model, here, point)[point][0, -1]
        for each in branch["neurons"]:
            best = torch.cat(values)[:, each["neuron"]].topk(5).values.tolist()
            assert [place["value"] for place in each["places"]] == pytest.approx(best, rel=1e-4)
            assert each["here"] == pytest.approx(float(now[each["neuron"]]), rel=1e-4)
            for place in each["places"]:
                assert place["before"] + place["token"] + place["after"] in TEXT
        strongest = int(now.argmax())
        assert strongest in [each["neuron"] for each in branch["neurons"]]


def test_lines_are_inputs_of_an_encoder(tmp_path: Path) -> None:
    run = masked_run(tmp_path)
    view = qkv.inspect(run, "the <mask> fox", over="the quick <mask>\n\nthe <mask> dog\n").view("neurons")
    texts = {
        p["before"] + p["token"] + p["after"]
        for b in view["data"]["branches"]
        for e in b["neurons"]
        for p in e["places"]
    }
    assert texts == {"<cls>the quick<mask><sep>", "<cls>the<mask> dog<sep>"}


def test_an_encoder_reads_the_lines_and_the_decoder_what_it_writes(tmp_path: Path) -> None:
    run, lines = translation_run(tmp_path), ["the quick fox", "a dog"]
    view = qkv.inspect(run, "the fox", answer="a b", over="\n".join(lines)).view("neurons")["data"]
    assert [branch["stack"] for branch in view["branches"]] == ["encoder", "model"]
    read = [qkv.inspect(run, line).subject.read for line in lines]
    here = qkv.inspect(run, "the fox", answer="a b").subject.read
    for branch in view["branches"]:
        point = f"{branch['path']}.activation"
        encodes = branch["stack"] == "encoder"
        values = torch.cat([record(run.model, r.signal, point, source=r.source)[point][0] for r in read])
        now = record(run.model, here.signal, point, source=here.source)[point][0]
        assert branch["read"] == len(values)
        for each in branch["neurons"]:
            best = values[:, each["neuron"]].topk(min(5, len(values))).values.tolist()
            assert [place["value"] for place in each["places"]] == pytest.approx(best, rel=1e-4)
            shown = now[:, each["neuron"]]
            assert each["here"] == pytest.approx(float(shown.max() if encodes else shown[-1]), rel=1e-4)
            contexts = [place["before"] + place["token"] + place["after"] for place in each["places"]]
            assert not encodes or all(any(line in context for line in lines) for context in contexts)


def test_delimiters_are_single_tokens(folder: Path, tmp_path: Path) -> None:
    subject: Subject = qkv.inspect(decoder(tmp_path, "rope"), "the fox").subject
    assert sorted(subject.run.tokenizer.decode([i]) for i in subject.delimiters) == ["\n", ",", ":", ";"]


def test_the_command_reads_a_text(folder: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["inspect", str(folder), INPUT, "--views", "neurons,checkpoints", "--out", str(tmp_path / "page.html")]
    assert main([*line, "--over", str(text)]) == 0
    assert main([*line, "--over", str(tmp_path / "none.txt")]) == 2
    assert "--over: " in capsys.readouterr().err
