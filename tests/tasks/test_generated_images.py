"""Autoencoders of images, and models that generate images as codes or as patches."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from PIL import Image
from torch.distributions import Normal

import qkv
from qkv.cli.main import main
from qkv.data.processors import coders as coders_module
from qkv.data.processors import image_codes as codes_module
from qkv.data.processors.coders import CodesProcessor
from qkv.data.processors.image_codes import Autoencoder, ImageCodesProcessor, order_of
from qkv.data.processors.image_patches import ImagePatchesProcessor
from qkv.data.processors.processor import build_processor
from qkv.data.records.values import Unusable
from qkv.spec.errors import SpecError
from qkv.spec.recipe import Recipe
from qkv.spec.signals.image_sequences import ImageCodes, ImagePatches
from qkv.spec.signals.images import Images
from qkv.system.errors import UserError
from qkv.tasks.images.next_patch import noisy
from qkv.tasks.registry import task_of_recipe

SHORT = {
    "steps": 6,
    "batch_size": 4,
    "schedule": {"kind": "constant", "warmup": 1},
    "validation": {"every": 3, "batches": 1},
    "checkpoints": {"every": 3},
}
AUTOENCODER: dict[str, Any] = {
    "data": {"source": "images", "processor": {"kind": "images", "height": 8, "width": 12}},
    "task": "autoencoding",
    "model": {
        "width": 8,
        "frontend": {"kind": "patches", "patch": 2, "stem": [4], "positions": "none"},
        "blocks": [{"branches": ["attention(2, mask=full, relative=rope_2d)"]}],
        "head": {"kind": "codebook", "codes": 6, "code_width": 4, "upsampling": [4]},
    },
    "training": SHORT,
}
DECODER: dict[str, Any] = {
    "width": 8,
    "context_length": 6,
    "blocks": [{"branches": ["attention(2)", "feed_forward(8)"]}],
}


def quiet(_: object) -> None:
    """Show nothing of a training."""


def images(count: int = 40) -> dict[str, list[Any]]:
    """Bright images with a dark half: the left or the right one, by label."""
    rng = np.random.default_rng(0)
    made = rng.integers(150, 256, (count, 8, 12), dtype=np.uint8)
    labels = ["left" if i % 2 else "right" for i in range(count)]
    for image, label in zip(made, labels, strict=True):
        image[:, slice(0, 6) if label == "left" else slice(6, 12)] //= 8
    return {"image": list(made), "label": labels}


def trained(recipe: dict[str, Any], out: Path, **training: Any) -> Any:
    changed = {**recipe, "training": {**recipe["training"], **training}}
    return qkv.train(Recipe.parse(changed), out, data=images(), on_event=quiet)


@pytest.fixture(scope="module")
def autoencoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("autoencoder") / "run"
    trained(AUTOENCODER, folder)
    return folder


def of_codes(run: Path, **processor: Any) -> dict[str, Any]:
    return {
        "data": {"source": "images", "processor": {"kind": "image_codes", "run": str(run), **processor}},
        "task": "next_token",
        "model": {**DECODER, "frontend": "image_codes"},
        "training": SHORT,
    }


@pytest.fixture(scope="module")
def codes_run(autoencoder: Path) -> Path:
    folder = autoencoder.parent / "codes"
    trained(of_codes(autoencoder, labelled=True), folder)
    return folder


def test_an_autoencoder_resumes_bit_for_bit_with_its_codebook(autoencoder: Path) -> None:
    folder = autoencoder.parent / "parts"
    trained(AUTOENCODER, folder, steps=3)
    resumed, whole = trained(AUTOENCODER, folder).model.state_dict(), qkv.load(autoencoder).model.state_dict()
    assert any(name.endswith("codebook.counts") for name in whole)
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name


def test_an_autoencoder_measures_errors_and_use_of_codes(autoencoder: Path) -> None:
    run = qkv.load(autoencoder)
    figures = run.evaluation["splits"]["validation"]["figures"]
    assert figures["psnr"] == pytest.approx(-10 * np.log10(figures["mse"]))
    assert 1 <= figures["code_perplexity"] <= 6
    assert figures["mse_of_mean_image"] > 0.01
    found = qkv.predict(run, images(2)["image"])
    for answer, image in zip(found, images(2)["image"], strict=True):
        (decoded,) = Autoencoder.read(str(autoencoder)).decoded(np.array([answer["codes"]], np.int32))
        error = np.square((decoded.astype(float) - image) / 255).mean()
        assert answer["mse"] == pytest.approx(error, abs=0.01)


def test_codes_decode_to_the_autoencoder_s_own_reconstruction(autoencoder: Path) -> None:
    coder = Autoencoder.read(str(autoencoder))
    encoded = [coder.processor.encode(image) for image in images(3)["image"]]
    with torch.inference_mode():
        expected = coder.processor.restored(coder.model(coder.processor.signal(encoded))[0])
    for order in ("rows", "columns"):
        processor = ImageCodesProcessor(ImageCodesProcessor(ImageCodes(run=str(autoencoder), order=order)).fitted([]))
        codes = np.stack([processor.encode(image) for image in images(3)["image"]])
        np.testing.assert_array_equal(processor.images(codes), expected)
        some = [images(3)["image"][0], "missing.png", *images(3)["image"][1:]]
        first, missing, *others = processor.encode_all(some)
        np.testing.assert_array_equal([first, *others], codes)
        assert isinstance(missing, Unusable)


def test_codes_of_many_images_are_stored_under_their_digest(
    autoencoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    for module in (codes_module, coders_module):
        monkeypatch.setattr(module, "AT_ONCE", 2)
    values = [*images(5)["image"], "missing.png"]
    spec = ImageCodesProcessor(ImageCodes(run=str(autoencoder))).fitted([])
    first = list(ImageCodesProcessor(spec).encode_all(values))
    encoded = [ImageCodesProcessor(spec).encode(image) for image in values[:5]]
    np.testing.assert_array_equal(first[:5], encoded)
    monkeypatch.setattr(CodesProcessor, "encode_all", lambda *_: pytest.fail("the images are encoded again"))
    again = list(ImageCodesProcessor(spec).encode_all(values))
    np.testing.assert_array_equal(again[:5], encoded)
    assert "missing.png" in str(first[5]) == str(again[5])
    for other in (spec.changed(order="columns"), spec.changed(digest="0" * 64)):
        with pytest.raises(pytest.fail.Exception, match="encoded again"):
            list(ImageCodesProcessor(other).encode_all(values))
    values[0] = 255 - values[0]
    with pytest.raises(pytest.fail.Exception, match="encoded again"):
        list(ImageCodesProcessor(spec).encode_all(values))


def test_the_orders_are_permutations_of_one_another() -> None:
    rows, columns = (order_of(ImageCodes(run="r", order=order, grid=(2, 3))) for order in ("rows", "columns"))
    assert rows.tolist() == [0, 1, 2, 3, 4, 5]
    assert columns.tolist() == [0, 3, 1, 4, 2, 5]


def test_a_model_of_codes_is_a_causal_language_model(codes_run: Path) -> None:
    run = qkv.load(codes_run)
    assert run.model.vocab_size == 6 + 2
    ids = torch.randint(6, (1, 6), generator=torch.Generator().manual_seed(0))
    changed = ids.clone()
    changed[0, 3] = (ids[0, 3] + 1) % 6
    one, other = (run.model(each)[0] for each in (ids, changed))
    torch.testing.assert_close(one[:, :3], other[:, :3], rtol=0, atol=0)
    assert not torch.equal(one[:, 3:], other[:, 3:])
    figures = run.evaluation["splits"]["validation"]["figures"]
    assert figures["perplexity"] == pytest.approx(np.exp(figures["loss"]))
    assert figures["targets"] == 4 * 6
    (section,) = run.evaluation["splits"]["validation"]["sections"]
    assert "64 samples" in section["pictures"][0]["caption"]


def test_images_are_generated_by_label_and_written(codes_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, file = qkv.load(codes_run), codes_run.parent / "images.png"
    found = qkv.generate_images(run, 3, "left", seed=1)
    assert [image.shape for image in found] == [(8, 12)] * 3
    typed = ["generate", str(codes_run), "--image", str(file), "--num-samples", "3", "--label", "left", "--seed", "1"]
    assert main(typed) == 0
    with Image.open(file) as sheet:
        pixels = np.asarray(sheet)
    zoom = (pixels.shape[0] - 2) // 8
    for i, image in enumerate(found):
        left = 1 + i * (12 * zoom + 1)
        np.testing.assert_array_equal(pixels[1 : 1 + 8 * zoom : zoom, left : left + 12 * zoom : zoom], image)
    capsys.readouterr()
    with pytest.raises(UserError, match="generate images with 'qkv generate RUN --image FILE'"):
        qkv.predict(run, found[0])
    refused = {("--label", "up"): "no label 'up'", ("--stop", "x"): "--stop applies to text"}
    for options, named in refused.items():
        assert main(["generate", str(codes_run), "--image", str(file), *options]) == 2
        assert named in capsys.readouterr().err


def test_a_run_of_codes_is_moved_without_its_autoencoder(autoencoder: Path, tmp_path: Path) -> None:
    coder, first = tmp_path / "coder", tmp_path / "run"
    shutil.copytree(autoencoder, coder)
    trained(of_codes(coder), first, steps=3)
    before = qkv.generate_images(first, 2, seed=1)
    moved = tmp_path / "elsewhere" / "run"
    moved.parent.mkdir()
    first.rename(moved)
    shutil.rmtree(coder)
    np.testing.assert_array_equal(qkv.generate_images(moved, 2, seed=1), before)
    resumed = trained(of_codes(coder), moved, steps=6)
    assert resumed.metrics[-1]["step"] == 6


def test_a_missing_or_other_autoencoder_is_one_sentence(autoencoder: Path, codes_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no trained run; train it first: qkv train fashion_mnist_vq --out"):
        trained(of_codes(tmp_path / "fashion_mnist_vq"), tmp_path / "run")
    with pytest.raises(UserError, match=r"has the task 'next_token' with the head .*; name an autoencoder of images"):
        trained(of_codes(codes_run), tmp_path / "run")
    processor: Any = qkv.load(codes_run).vocabulary.processors["input"]
    with pytest.raises(UserError, match="differs from the one that the model was trained with"):
        ImageCodesProcessor(processor.changed(digest="0" * 64)).encode(images(1)["image"][0])
    assert not (tmp_path / "run" / "spec.yaml").exists()


def test_a_context_that_is_too_short_says_which_one_fits(autoencoder: Path, tmp_path: Path) -> None:
    recipe = of_codes(autoencoder)
    recipe["model"] = {**recipe["model"], "context_length": 5}
    with pytest.raises(UserError, match=r"give model\.context_length=6"):
        trained(recipe, tmp_path / "run")


@pytest.mark.parametrize(
    ("frontend", "named"),
    [("text", "use one of patches"), ({"kind": "patches", "class_token": True}, "leave class_token")],
)
def test_an_autoencoder_reads_patches_only(frontend: Any, named: str) -> None:
    model = {**AUTOENCODER["model"], "frontend": frontend, "blocks": []}
    with pytest.raises(SpecError, match=named):
        Recipe.parse({**AUTOENCODER, "model": model})


def of_patches(**processor: Any) -> dict[str, Any]:
    sizes = {"height": 8, "width": 12}
    return {
        "data": {
            "source": "images",
            "processor": {"kind": "image_patches", "patch": 4, "images": sizes, **processor},
        },
        "task": "next_patch",
        "model": {**DECODER, "frontend": "image_patches", "head": "mixture(2)"},
        "training": SHORT,
    }


@pytest.fixture(scope="module")
def patches_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("patches") / "run"
    trained(of_patches(labelled=True, order="columns"), folder)
    return folder


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("order", ["rows", "columns"])
def test_patches_are_blocks_of_pixels_in_their_order(order: Any, channels: int) -> None:
    image = np.random.default_rng(1).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    image = image[..., 0] if channels == 1 else image
    given = ImagePatches(patch=4, order=order, images=Images(height=8, width=12, channels=channels))
    processor = ImagePatchesProcessor(ImagePatchesProcessor(given).fitted([image]))
    found = processor.encode(image)
    places = [(0, 0), (0, 4), (0, 8), (4, 0), (4, 4), (4, 8)]
    for place, (top, left) in enumerate(places if order == "rows" else sorted(places, key=lambda each: each[::-1])):
        block = image.reshape(8, 12, channels)[top : top + 4, left : left + 4].transpose(2, 0, 1)
        np.testing.assert_array_equal(found[place], block.flatten())
    (back,) = processor.images(processor.signal([found]).values)
    np.testing.assert_array_equal(back, image)


def test_the_loss_is_in_nats_of_noisy_levels(patches_run: Path) -> None:
    run = qkv.load(patches_run)
    task: Any = task_of_recipe(run.recipe)
    processor: Any = build_processor(run.vocabulary.processors["input"])
    levels = torch.from_numpy(np.stack([processor.encode(image) for image in images(3)["image"]]))
    noise = torch.rand(levels.shape, generator=torch.Generator().manual_seed(0))
    batch = noisy(processor, levels, noise, torch.tensor([0, 1, 0]))
    loss, outputs = task.summed_loss(run.model, batch), run.model(batch.input)[0]
    head: Any = run.model.head
    found = head.mixture(outputs)
    unit = 256 * processor.spec.images.deviation[0]
    offset = processor.spec.images.mean[0] * 256
    by_component = Normal(offset + unit * found.means, unit * found.deviations).log_prob((levels + noise)[:, :, None])
    expected = -(found.weights + by_component.sum(-1)).logsumexp(-1).sum()
    torch.testing.assert_close(loss, expected)


def test_a_patch_is_predicted_from_its_start_and_the_patches_before(patches_run: Path) -> None:
    run = qkv.load(patches_run)
    processor: Any = build_processor(run.vocabulary.processors["input"])
    levels = torch.from_numpy(processor.encode(images(1)["image"][0]))[None]
    read = noisy(processor, levels, torch.zeros(levels.shape), torch.tensor([1])).input.values
    assert read[0, 0].tolist() == [0.0] * 16 + [0.0, 1.0]
    assert not read[0, 1:, 16:].any()
    changed = read.clone()
    changed[0, 3] += 1
    one, other = (run.model(each)[0] for each in (read, changed))
    torch.testing.assert_close(one[:, :3], other[:, :3], rtol=0, atol=0)
    assert not torch.equal(one[:, 3:], other[:, 3:])
    state, steps = run.model.init_state(1, 6), []
    for place in range(6):
        out, state = run.model(read[:, place : place + 1], state)
        steps.append(out)
    torch.testing.assert_close(torch.cat(steps, 1), one, rtol=1e-4, atol=1e-5)


def test_a_model_of_patches_resumes_and_generates(patches_run: Path) -> None:
    folder = patches_run.parent / "parts"
    trained(of_patches(labelled=True, order="columns"), folder, steps=3)
    resumed = trained(of_patches(labelled=True, order="columns"), folder)
    run = qkv.load(patches_run)
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    found, again = qkv.generate_images(run, 3, seed=4), qkv.generate_images(run, 2, "right", seed=5)
    assert [image.shape for image in found] == [(8, 12)] * 3
    np.testing.assert_array_equal(found[1], again[0])  # label 1, seed 5
    with pytest.raises(UserError, match="top_k: patches are sampled from densities"):
        qkv.generate_images(run, 1, top_k=3)
    figures = run.evaluation["splits"]["validation"]["figures"]
    assert figures["bits_per_value"] == pytest.approx(figures["loss"] / np.log(2))
    levels = np.stack([each.fields.value for each in opened(run).examples["train"]]).astype(float)
    seen = np.stack([each.fields.value for each in opened(run).examples["validation"]]).astype(float)
    rng = np.random.default_rng(0)
    density = scipy.stats.norm(levels.mean(0) + 0.5, np.sqrt(levels.var(0) + 1 / 12))
    expected = np.mean([-density.logpdf(seen + rng.random(seen.shape)).mean() for _ in range(200)])
    assert figures["loss_of_pixel_gaussians"] == pytest.approx(expected, rel=0.01)


def opened(run: Any) -> Any:
    return task_of_recipe(run.recipe).open(run.recipe, run.vocabulary)


@pytest.mark.parametrize(
    ("processor", "named"),
    [({"patch": 5}, "patches of 5 pixels do not divide 8"), ({"images": {"augment": ["flip"]}}, "leave it out")],
)
def test_patches_that_do_not_fit_are_refused(processor: dict[str, Any], named: str) -> None:
    with pytest.raises(SpecError, match=named):
        Recipe.parse(of_patches(**processor))
