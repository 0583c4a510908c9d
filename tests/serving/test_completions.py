"""Completions through the official client: the same text streamed, whole and alone."""

from __future__ import annotations

import pytest
from tests.serving.conftest import Running

from qkv.generation.text import generate_text
from qkv.runs.run import Run
from qkv.spec.generation import Generation

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
