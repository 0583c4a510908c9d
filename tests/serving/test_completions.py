"""Completions through the official client: the same text streamed, whole and alone."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from tests.serving.conftest import Running, serving
from tests.serving.models import text_run

import qkv
from qkv.generation.decode.sample import generate
from qkv.generation.text import generate_text
from qkv.runs.run import Run
from qkv.spec.generation import Generation
from qkv.tasks.pairs.pairs import write_after

PROMPT = "the quick"


def alone(run: Run, prompt: str, **options: object) -> str:
    return generate_text(run.model, run.tokenizer, prompt, Generation.parse(options))


@pytest.mark.parametrize("name", ["rope", "bytes", "linear", "gru"])
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 5, "top_p": 0.9}])
def test_streamed_and_whole_text_are_those_alone(
    server: Running, runs: dict[str, Run], name: str, options: dict[str, float]
) -> None:
    expected = alone(runs[name], PROMPT, max_new_tokens=24, **options)
    asked = {"model": name, "prompt": PROMPT, "max_tokens": 24, "extra_body": {"ignore_eos": True}, **options}
    client = server.client()
    whole = client.completions.create(**asked)
    assert whole.choices[0].text == expected
    assert (whole.object, whole.model, whole.choices[0].finish_reason) == ("text_completion", name, "length")
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 24
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == expected
    assert chunks[-1].usage == whole.usage
    assert chunks[-1].choices == []


def test_separators_of_lines_in_a_text_do_not_end_an_event(server: Running) -> None:
    """httpx, like some other clients, ends a line at every separator that Unicode knows."""
    text = "a\u2028b\u2029c\x85d\x0be\x1cf"
    body = {"model": "bytes", "prompt": text, "max_tokens": 2, "echo": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    found = "".join(choice["text"] for line in lines for choice in json.loads(line)["choices"])
    assert found.startswith(text)


def test_several_texts_of_several_prompts_have_seeds_of_their_own(server: Running, runs: dict[str, Run]) -> None:
    options = {"temperature": 1.0, "max_new_tokens": 8}
    prompts = [PROMPT, "a lazy"]
    asked = {"model": "rope", "max_tokens": 8, "temperature": 1.0, "seed": 7, "n": 3}
    expected = [alone(runs["rope"], prompt, **options, seed=7 + i) for prompt in prompts for i in range(3)]
    client, extra = server.client(), {"ignore_eos": True}
    made = client.completions.create(prompt=prompts, extra_body=extra, **asked)  # type: ignore[call-overload]
    assert [choice.text for choice in made.choices] == expected
    assert [choice.index for choice in made.choices] == list(range(6))
    ids = [runs["rope"].tokenizer.encode(prompt) for prompt in prompts]
    assert made.usage.prompt_tokens == sum(map(len, ids))
    again = client.completions.create(prompt=ids, extra_body=extra, stream=True, **asked)  # type: ignore[call-overload]
    texts = [""] * 6
    for chunk in again:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == expected


def test_a_text_ends_before_a_stop_string_and_at_the_end_token(server: Running, runs: dict[str, Run]) -> None:
    run, client = runs["rope"], server.client()
    text = alone(run, PROMPT, max_new_tokens=24, temperature=0.0)
    stop = text[9:12]
    extra = {"ignore_eos": True}
    made = client.completions.create(
        model="rope", prompt=PROMPT, max_tokens=24, temperature=0, stop=[stop, "never"], extra_body=extra
    )
    assert (made.choices[0].text, made.choices[0].finish_reason) == (text[: text.index(stop)], "stop")
    end = run.tokenizer.special("eos")
    for seed in range(50):  # until one draws the end token
        generation = run.recipe.sample.changed(max_new_tokens=60, seed=seed)
        (ids,) = generate(run.model, [run.tokenizer.encode(PROMPT)], generation)
        if end in ids:
            break
    made = client.completions.create(model="rope", prompt=PROMPT, max_tokens=60, seed=seed)
    assert made.choices[0].text == run.tokenizer.decode(ids[: ids.index(end)])
    assert made.choices[0].finish_reason == "stop"
    assert made.usage is not None
    assert made.usage.completion_tokens == ids.index(end)


def test_log_probabilities_are_those_of_the_model(server: Running, runs: dict[str, Run]) -> None:
    run = runs["bytes"]
    asked = {"model": "bytes", "prompt": PROMPT, "max_tokens": 12, "temperature": 0.5, "seed": 3, "logprobs": 4}
    made = server.client().completions.create(**asked, extra_body={"ignore_eos": True})
    found = made.choices[0].logprobs
    assert found is not None
    before = run.tokenizer.encode(PROMPT)
    (ids,) = generate(run.model, [before], Generation(max_new_tokens=12, temperature=0.5, seed=3))
    with torch.no_grad():
        logits = run.model(qkv.Signal(torch.tensor([before + ids])))[0][0].double()
    expected = logits.log_softmax(-1)[len(before) - 1 : -1]
    drawn = expected.gather(1, torch.tensor(ids)[:, None])[:, 0]
    assert found.token_logprobs == pytest.approx(drawn.tolist(), abs=1e-4)
    for row, best in zip(expected, found.top_logprobs or (), strict=True):
        assert sorted(best.values(), reverse=True) == pytest.approx(row.topk(4).values.tolist(), abs=1e-4)
    assert found.text_offset == list(accumulate(map(len, found.tokens or ()), initial=0))[:-1]
    chunks = server.client().completions.create(**asked, extra_body={"ignore_eos": True}, stream=True)
    scores = [chunk.choices[0].logprobs for chunk in chunks]
    assert [value for each in scores for value in each.token_logprobs] == found.token_logprobs


def test_the_prompt_is_echoed(server: Running, runs: dict[str, Run]) -> None:
    client, ids = server.client(), runs["bytes"].tokenizer.encode(PROMPT)
    asked = {"model": "bytes", "max_tokens": 4, "temperature": 0, "echo": True}
    for prompt in (PROMPT, ids):
        made = client.completions.create(prompt=prompt, **asked)  # type: ignore[call-overload]
        streamed = client.completions.create(prompt=prompt, stream=True, **asked)  # type: ignore[call-overload]
        assert made.choices[0].text.startswith(PROMPT)
        assert len(made.choices[0].text) > len(PROMPT)
        assert "".join(chunk.choices[0].text for chunk in streamed) == made.choices[0].text
    made = client.completions.create(model="bytes", prompt=PROMPT, max_tokens=0, echo=True)
    assert (made.choices[0].text, made.choices[0].finish_reason) == (PROMPT, "length")


def test_a_model_with_an_encoder_writes_from_the_prompt(server: Running, runs: dict[str, Run]) -> None:
    run, vocabulary = runs["translation"], runs["translation"].vocabulary
    sources = ["the quick fox", "a lazy dog jumps"]
    ids = [np.array([*vocabulary.tokenizer.encode(text), vocabulary.tokenizer.special("eos")]) for text in sources]
    expected = [vocabulary.target.decode(best) for best in write_after(run.model, vocabulary, run.recipe.sample, ids)]
    made = server.client().completions.create(model="translation", prompt=sources)
    assert [choice.text for choice in made.choices] == expected
    assert made.usage is not None
    assert made.usage.prompt_tokens == sum(map(len, ids))


def test_values_that_are_not_given_are_those_of_the_run(tmp_path: Path) -> None:
    run = text_run(tmp_path, sample={"temperature": 0.0, "max_new_tokens": 5})
    with serving({"greedy": run}) as server:
        made = server.client().completions.create(model="greedy", prompt=PROMPT, extra_body={"ignore_eos": True})
    assert made.choices[0].text == alone(run, PROMPT, temperature=0.0, max_new_tokens=5)


def test_answers_without_a_seed_differ(server: Running, runs: dict[str, Run]) -> None:
    assert runs["rope"].recipe.sample.seed is not None  # that of the samples in training
    client = server.client()
    asked = {"model": "rope", "prompt": PROMPT, "max_tokens": 20, "temperature": 1, "extra_body": {"ignore_eos": True}}
    texts = {client.completions.create(**asked).choices[0].text for _ in range(3)}  # type: ignore[call-overload]
    assert len(texts) == 3


def test_models_are_listed(server: Running, runs: dict[str, Run]) -> None:
    client = server.client()
    assert [model.id for model in client.models.list()] == list(runs)
    assert client.models.retrieve("gru").id == "gru"


@pytest.mark.parametrize("name", ["rope", "bytes", "gru"])
@pytest.mark.parametrize("tokens", [0, 5])
def test_log_probabilities_of_the_prompt(server: Running, runs: dict[str, Run], name: str, tokens: int) -> None:
    """Those of one forward pass over the whole text; the first token has none, as evaluation programs expect."""
    run, prompts = runs[name], ["the quick brown", "fox"]
    asked = {"model": name, "prompt": prompts, "max_tokens": tokens, "temperature": 0.0, "echo": True, "logprobs": 2}
    made = server.client().completions.create(**asked, extra_body={"ignore_eos": True})
    for prompt, choice in zip(prompts, made.choices, strict=True):
        found, ids = choice.logprobs, run.tokenizer.encode(prompt)
        written = generate(run.model, [ids], Generation(max_new_tokens=tokens, temperature=0.0))[0]
        with torch.no_grad():
            chances = run.model(torch.tensor([ids + written]))[0][0].double().log_softmax(-1)
        own = [float(chances[i, token]) for i, token in enumerate((ids + written)[1:])]
        assert choice.text.startswith(prompt)
        assert (found.token_logprobs[0], found.top_logprobs[0], found.text_offset[0]) == (None, None, 0)
        assert found.token_logprobs[1:] == pytest.approx(own, abs=1e-4)
        assert "".join(found.tokens[: len(ids)]) == prompt
        assert found.text_offset == [0, *accumulate(map(len, found.tokens))][:-1]
        for best, line in zip(found.top_logprobs[1:], chances, strict=False):
            assert sorted(best.values()) == pytest.approx(sorted(line.topk(2).values.tolist()), abs=1e-4)
    chunks = list(server.client().completions.create(**asked, stream=True, extra_body={"ignore_eos": True}))
    for index, choice in enumerate(made.choices):
        own = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert "".join(each.text for each in own) == choice.text
        streamed = [value for each in own if each.logprobs for value in each.logprobs.token_logprobs]
        assert streamed[1:] == pytest.approx(choice.logprobs.token_logprobs[1:], abs=1e-5)
