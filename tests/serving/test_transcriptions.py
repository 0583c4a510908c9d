"""Transcriptions over HTTP, with the official client: those of ``qkv.transcribe``."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI
from tests.runs import speech
from tests.serving.conftest import Running, serving
from tests.serving.models import text_run

import qkv
from qkv.data.records.sounds.sound_files import Sound, sound_bytes
from qkv.runs.run import Run
from qkv.runs.storage.load import load
from qkv.serving.http.reading import divide_form

WAV = sound_bytes(Sound(speech.sound(5.0), speech.RATE))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load(speech.write(tmp_path_factory.mktemp("whisper")))


@pytest.fixture(scope="module")
def server(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving({"whisper": run, "text": text_run(tmp_path_factory.mktemp("text"))}) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def asked(client: OpenAI, **options: Any) -> Any:
    return client.audio.transcriptions.create(model="whisper", file=("talk.wav", io.BytesIO(WAV)), **options)


def test_the_official_client_transcribes(client: OpenAI, run: Run) -> None:
    expected = qkv.transcribe(run, WAV, language="en", seed=0)
    assert expected.segments
    assert asked(client, language="en").text == expected.text
    assert asked(client, language="en", response_format="text").strip() == expected.text
    assert asked(client, language="en", response_format="srt") == expected.srt()
    assert asked(client, language="en", response_format="vtt") == expected.vtt()


def test_segments_and_words_have_times(client: OpenAI, run: Run) -> None:
    answer = asked(
        client,
        language="de",
        response_format="verbose_json",
        timestamp_granularities=["word"],
        prompt="names",
        temperature=0,
    )
    expected = qkv.transcribe(run, WAV, language="de", prompt="names", word_times=True)
    assert (answer.language, answer.duration) == ("de", 5.0)
    assert [each.text for each in answer.segments] == [each.text for each in expected.segments]
    assert [(each.start, each.end) for each in answer.words] == [
        (round(each.start, 3), round(each.end, 3)) for each in expected.words
    ]
    assert asked(client, language="de", response_format="verbose_json").words is None


def test_translations_are_those_of_the_task(server: Running, run: Run) -> None:
    form = {"data": {"model": "whisper", "temperature": "0.0"}, "files": {"file": ("talk.wav", WAV)}}
    answer = httpx.post(f"{server.url}/v1/audio/translations", timeout=60, **form)
    assert answer.json()["text"] == qkv.transcribe(run, WAV, task="translate").text


def test_the_model_is_listed_and_refuses_chats(server: Running, client: OpenAI) -> None:
    listed = httpx.get(f"{server.url}/v1/models/whisper", timeout=60).json()
    assert listed["capabilities"] == ["transcriptions"]
    with pytest.raises(BadRequestError, match="does not generate text; its capabilities: transcriptions"):
        client.chat.completions.create(model="whisper", messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(BadRequestError, match="'text' does not transcribe sounds"):
        client.audio.transcriptions.create(model="text", file=("talk.wav", io.BytesIO(WAV)))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"language": "xx"}, "no language 'xx'"),
        ({"response_format": "mp3"}, "response_format"),
        ({"temperature": -1}, "temperature"),
        ({"stream": True}, "stream"),
    ],
)
def test_wrong_fields_are_one_sentence(client: OpenAI, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequestError, match=sentence):
        asked(client, **options)


def test_wrong_files_and_forms_are_one_sentence(server: Running) -> None:
    url = f"{server.url}/v1/audio/transcriptions"

    def answer(**given: Any) -> tuple[int, str]:
        reply = httpx.post(url, timeout=60, **given)
        return reply.status_code, reply.json()["error"]["message"]

    fields = {"model": "whisper", "language": "en"}
    assert answer(data=fields, files={"file": ("a.wav", b"no sound")})[1].startswith("the sound is no sound file")
    assert answer(data=fields, files={"other": ("a.wav", WAV)}) == (400, "file: the form has no sound file")
    assert answer(json=fields)[0] == 415
    assert answer(content=b"x" * (33 * 2**20), headers={"content-type": "multipart/form-data; boundary=a"})[0] == 413
    assert answer(content=b"x", headers={"content-type": "multipart/form-data; boundary=a"})[0] == 400


def test_forms_are_divided_at_their_boundary() -> None:
    """Line breaks and hyphens of a file stay as they are."""
    content = b"\r\n--ab\n\r\n-- \x00\r\n"
    data = (
        b'--abc\r\nContent-Disposition: form-data; name="file"; filename="a b.wav"\r\nContent-Type: audio/wav\r\n\r\n'
        + content
        + b'\r\n--abc\r\nContent-Disposition: form-data; name="list[]"\r\n\r\none\r\n'
        + b'--abc\r\nContent-Disposition: form-data; name="list[]"\r\n\r\ntwo\r\n'
        + b'--abc\r\nContent-Disposition: form-data; name="text"\r\n\r\n\xc3\xa4\r\n--abc--\r\n'
    )
    assert divide_form(data, b"abc") == ({"list": ["one", "two"], "text": "ä"}, {"file": content})
