"""Pictures in chats over HTTP: hostile ones, files of a folder, prefixes that texts share, and the page."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tests.interop.test_pairs import pictures
from tests.interop.test_vision_chats import llava
from tests.serving import models
from tests.serving.browser import until
from tests.serving.conftest import Running, serving
from tests.serving.test_page import BROWSER

from qkv.cli.inference.serve import _LimitOptions
from qkv.data.records.images.image_files import opened_image
from qkv.runs.chats.pictures import picture_uri
from qkv.runs.storage.load import load
from qkv.serving.limits import KEPT, PICTURE_BYTES, Limits
from qkv.system.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


class Client(NamedTuple):
    """Server of a folder of LLaVA's form, with the library's model. folder: its pictures."""

    server: Running
    model: Any
    folder: Path

    def post(self, *contents: Any, **settings: Any) -> httpx.Response:
        """Ask with messages of a user that have these contents."""
        messages = [{"role": "user", "content": content} for content in contents]
        body = {"model": "llava", "messages": messages, "temperature": 0, "max_tokens": 3, "logprobs": True, **settings}
        return httpx.post(f"{self.server.url}/v1/chat/completions", json=body, timeout=60)

    def scores(self, *contents: Any) -> list[float]:
        """Log-probabilities of the tokens of an answer."""
        answer = self.post(*contents).raise_for_status().json()
        return [each["logprob"] for each in answer["choices"][0]["logprobs"]["content"]]

    def expected(self, path: Path, text: str, before: str = "") -> list[float]:
        """Log-probabilities of the greedy answer of the library."""
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder / "llava")
        processor = transformers.CLIPImageProcessorPil.from_pretrained(self.folder / "llava")
        whole = f"<s>{f'user {before} ' if before else ''}user {'<image>' * 16}{text} dog "
        inputs = tokenizer(whole, return_tensors="pt", add_special_tokens=False)
        pixels = processor([Image.open(path)], return_tensors="pt")["pixel_values"]
        options = {"max_new_tokens": 3, "output_logits": True, "return_dict_in_generate": True, "do_sample": False}
        with torch.no_grad():
            found = self.model.generate(**inputs, pixel_values=pixels, **options)
        scores = torch.stack(found.logits, 1)[0].log_softmax(-1).max(-1).values
        return scores.tolist()[: len(scores) - int(found.sequences[0, -1] == 3)]  # without an end token


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("pictures")
    model = llava(folder / "llava")
    photos = folder / "photos"
    (photos / "more").mkdir(parents=True)
    pictures(folder)
    (photos / "a.png").write_bytes((folder / "0.png").read_bytes())
    (photos / "more" / "b.png").write_bytes((folder / "1.png").read_bytes())
    (photos / "link.png").symlink_to(folder / "0.png")
    (photos / "inside.png").symlink_to(photos / "a.png")
    (photos / "text.png").write_text("no picture")
    (photos / "long.png").write_bytes(bytes(PICTURE_BYTES + 1))
    with serving({"llava": load(folder / "llava")}, Limits(pictures=photos)) as server:
        yield Client(server, model, folder)


def asked(picture: Any, text: str = "red cat") -> list[dict[str, Any]]:
    """Content of a picture, by its address, and a text."""
    return [{"type": "image_url", "image_url": {"url": str(picture)}}, {"type": "text", "text": text}]


def png(width: int, height: int) -> bytes:
    """PNG file of one colour: 1 bit a pixel, compressed."""
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "PNG")
    return file.getvalue()


def claimed(width: int, height: int) -> bytes:
    """PNG file that says it has so many pixels, and has none."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + header
        + struct.pack(">II", zlib.crc32(header), 8)
        + b"IDAT"
        + bytes(8)
    )


def uri_of(content: bytes) -> str:
    """Data URI of a file's content."""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
HOSTILE = {
    "pixels that are not there": (uri_of(claimed(60_000, 60_000)), "has more than 100,000,000 pixels"),
    "many pixels": (uri_of(png(8_000, 6_000)), "has 8,000 × 6,000 pixels, more than 40,000,000"),
    "another type": (uri_of(EPS), "is not an image"),
    "a text": (uri_of(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "is not an image"),
    "nothing": (uri_of(b""), "is not an image"),
    "a truncated file": (uri_of(png(400, 400)[:60]), "cannot be decoded"),
    "a path behind a bar": ("data:image/png;base64,|/", "cannot be read"),
    "no base64": ("data:image/png;base64,%%%", "cannot be read"),
    "another kind": ("data:text/html;base64,AAAA", "allowed: an image as data:image/"),
    "an address": ("http://127.0.0.1:9/a.png", "no address is fetched"),
    "above": ("../0.png", "is no file below the folder of pictures"),
    "above, as an address": ("file://more/../../0.png", "is no file below"),
    "above, in characters": ("file://..%2f0.png", "is no file below"),
    "a link": ("link.png", "is no file below"),
    "a file of the system": ("file:///etc/hostname", "is no file below"),
    "a device": ("/dev/zero", "is no file below"),
    "a folder": ("more", "is no file below"),
    "no file": ("c.png", "is no file below"),
    "a null character": ("a\0.png", "is no file below"),
    "a long name": ("a" * 5000, "is no file below"),
    "a file of text": ("text.png", "is not an image"),
    "a large file": ("long.png", "has more than 33,554,432 bytes"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_pictures_are_refused(client: Client, what: str) -> None:
    picture, sentence = HOSTILE[what]
    answer = client.post(asked(picture))
    assert answer.status_code == 400, answer.text
    assert sentence in answer.json()["error"]["message"]
    assert str(client.folder) not in answer.text


def test_pictures_of_the_folder_are_read(client: Client) -> None:
    first, second = (picture_uri(client.folder / name) for name in ("0.png", "1.png"))
    photos = client.folder / "photos"
    wanted, other = client.scores(asked(first)), client.scores(asked(second))
    for name in ("a.png", "file://a.png", f"file://{photos}/a.png", "inside.png", "more/../a.png"):
        assert client.scores(asked(name)) == pytest.approx(wanted, abs=1e-5)
    assert client.scores(asked("more/b.png")) == pytest.approx(other, abs=1e-5)
    many = client.post([part for _ in range(5) for part in asked("a.png")]).json()["error"]["message"]
    assert "5 pictures of 80 positions given, but the context has room for 64" in many
    most = client.post([asked("a.png")[0]] * 65).json()["error"]["message"]
    assert "65 pictures given; allowed: at most 64" in most
    with serving({"llava": client.server.service.models["llava"].run}) as server:
        refused = Client(server, None, photos).post(asked("a.png"))
    assert refused.status_code == 400
    assert "'a.png' given; allowed: an image as data:image/" in refused.json()["error"]["message"]
    with pytest.raises(UserError, match="--pictures: there is no folder 'nowhere'"):
        _LimitOptions(pictures=Path("nowhere")).limits()


def test_equal_pictures_share_their_state_and_others_do_not(client: Client) -> None:
    paths, text, before = [client.folder / f"{i}.png" for i in range(3)], "blue square", "photo of red cat " * 5
    first, second, _ = (picture_uri(path) for path in paths)
    requests = client.server.service.models["llava"].worker.requests
    assert requests is not None
    prefixes, reused = requests.prefixes, list[int]()
    prefixes.shrink(0)
    found = list[list[float]]()
    for contents in ((first,), (first,), (second,), (before, first), (before, second), (before, second)):
        count = prefixes.tokens
        found.append(client.scores(*contents[:-1], asked(contents[-1], text)))
        reused.append(prefixes.tokens - count)
    alone = [client.expected(path, text) for path in paths[:2]]
    after = [client.expected(path, text, before) for path in paths[:2]]
    for scores, wanted in zip(found, [alone[0], alone[0], alone[1], after[0], after[1], after[1]], strict=True):
        assert scores == pytest.approx(wanted, abs=1e-4)
    assert abs(found[0][0] - found[2][0]) > 1e-3
    prompt = 2 + 16 + 2 + 1
    # A text whose picture is not among the shared tokens is read from its beginning, in one pass.
    assert reused == [0, prompt - 1, 0, 0, 0, 1 + 20 + prompt - 1]
    count = prefixes.tokens
    client.scores(asked(first, text), "dog")
    assert prefixes.tokens - count == prompt - 1


def test_sixteen_clients_get_the_answers_of_their_pictures(client: Client) -> None:
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)) for _ in range(4)]
    for number, image in enumerate(images):
        image.save(client.folder / f"many{number}.png")
    paths = [client.folder / f"many{number}.png" for number in range(4)]
    pairs = [(path, text) for path in paths for text in ("red cat", "dog")]
    wanted = {pair: client.expected(*pair) for pair in pairs}
    rounds = [pairs[i % len(pairs)] for i in range(64)]
    with ThreadPoolExecutor(16) as pool:
        scores = list(pool.map(lambda pair: client.scores(asked(picture_uri(pair[0]), pair[1])), rounds))
    for pair, found in zip(rounds, scores, strict=True):
        assert found == pytest.approx(wanted[pair], abs=1e-4)
    requests = client.server.service.models["llava"].worker.requests
    assert requests is not None
    assert requests.prefixes.nbytes <= KEPT
    assert (requests.running, requests.waiting) == (0, 0)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
def test_a_picture_in_a_browser(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    llava(tmp_path / "llava")
    large = tmp_path / "large.bmp"
    Image.fromarray(np.full((900, 1300, 3), 200, np.uint8)).save(large)
    (path, *_), text = pictures(tmp_path), tmp_path / "text.txt"
    text.write_text("no picture")
    runs = {"rope": models.text_run(tmp_path / "rope"), "llava": load(tmp_path / "llava")}
    with serving(runs) as server, playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page()
        tab.goto(server.url)
        until(tab, "document.querySelector('#model').value === 'rope'")
        assert not tab.is_visible("#picture")
        tab.select_option("#model", "llava")
        assert tab.is_visible("#picture")
        tab.set_input_files("#image", [str(path), str(text), str(large)])
        until(tab, "document.querySelectorAll('#pictures img').length === 2")
        assert tab.text_content("#note") == "text.txt is no picture that this browser reads."
        urls = tab.evaluate("[...document.querySelectorAll('#pictures img')].map((image) => image.src)")
        assert urls[0] == picture_uri(path)
        assert opened_image(urls[1]).size == (1024, 709)
        tab.click("#pictures button >> nth=1")
        tab.fill("#prompt", "red cat")
        tab.press("#prompt", "Enter")
        tab.wait_for_selector(".retry")
        assert tab.locator(".error").count() == 0
        assert tab.locator("#pictures img").count() == 0
        assert tab.locator(".turn.user img").count() == 1
        assert tab.evaluate("turns[0].content.map((part) => part.type)") == ["image_url", "text"]
        browser.close()
