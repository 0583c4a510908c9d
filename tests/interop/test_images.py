"""Folders of image classifiers: pixels, sizes and labels as in the transformers library; what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tests.interop.cases.vit import LABELS, dinov2, vit
from transformers import (
    BeitImageProcessorPil,
    BitImageProcessorPil,
    CLIPConfig,
    ConvNextImageProcessorPil,
    DeiTImageProcessorPil,
    Dinov2ForImageClassification,
    DonutImageProcessorPil,
    PoolFormerImageProcessorPil,
    PvtImageProcessorPil,
    SegformerImageProcessorPil,
    SiglipImageProcessorPil,
    ViTForImageClassification,
    ViTImageProcessorPil,
    ViTMAEConfig,
    ViTMAEForPreTraining,
    ViTModel,
)

import qkv
from qkv.cli.main import main
from qkv.data.processors.images import ImageProcessor
from qkv.interop.images import read_processor, written_processor
from qkv.interop.load import load_published
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import read_spec
from qkv.interop.registry import choose, families, families_by_type
from qkv.interop.save import save_published
from qkv.interop.unsupported import NEEDS
from qkv.layers.signal import Signal
from qkv.spec.heads import VectorsHead
from qkv.spec.model import Model
from qkv.spec.signals.images import Images, Patches
from qkv.system.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
MODEL = Model(frontend=Patches(height=12, width=12, channels=3, class_token=True), head=VectorsHead())
SMALL = {"height": 12, "width": 12}
PROCESSORS = {
    "squash": ViTImageProcessorPil(size={"height": 12, "width": 9}),
    "bicubic": ViTImageProcessorPil(size=SMALL, resample=3, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.4]),
    "nearest": ViTImageProcessorPil(size=SMALL, resample=0, do_normalize=False),
    "lanczos, no factor": ViTImageProcessorPil(
        size=SMALL, resample=1, do_rescale=False, image_mean=[100.0, 110.0, 120.0], image_std=[50.0, 60.0, 70.0]
    ),
    "other factor": ViTImageProcessorPil(size=SMALL, rescale_factor=1 / 127.5),
    "square, cropped": DeiTImageProcessorPil(size={"height": 15, "width": 15}, crop_size={"height": 12, "width": 11}),
    "shorter side, cropped": BitImageProcessorPil(size={"shortest_edge": 17}, crop_size={"height": 12, "width": 13}),
    "siglip": SiglipImageProcessorPil(size=SMALL),
    "beit, cropped": BeitImageProcessorPil(
        size={"height": 15, "width": 15}, do_center_crop=True, crop_size={"height": 12, "width": 11}
    ),
    "donut": DonutImageProcessorPil(size=SMALL),
    "donut, high": DonutImageProcessorPil(size={"height": 15, "width": 10}),
    "segformer": SegformerImageProcessorPil(size=SMALL),
    "pvt": PvtImageProcessorPil(size={"height": 12, "width": 9}),
    "poolformer": PoolFormerImageProcessorPil(size={"shortest_edge": 12}, crop_size=SMALL),
    "convnext": ConvNextImageProcessorPil(size={"shortest_edge": 12}, crop_pct=0.8),
    "convnext, whole": ConvNextImageProcessorPil(size={"shortest_edge": 384}),
    "shorter side": BitImageProcessorPil(size={"shortest_edge": 12}, crop_size=SMALL, resample=2),
}


def picture(height: int, width: int, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def folder_with(folder: Path, **changed: Any) -> Path:
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "ViTImageProcessor", "size": SMALL, **changed})
    )
    return folder


@pytest.mark.parametrize("name", PROCESSORS)
def test_pixels_are_those_of_the_published_processor(name: str, tmp_path: Path) -> None:
    theirs = PROCESSORS[name]
    theirs.save_pretrained(tmp_path)
    spec = read_processor(tmp_path, MODEL)
    assert isinstance(spec, Images)
    for height, width in ((20, 31), (37, 14), (12, 12), (9, 50)):
        image = picture(height, width)
        wanted = torch.as_tensor(np.array(theirs(image)["pixel_values"][0]), dtype=torch.float32)
        own = ImageProcessor(spec)
        pixels = own.signal([own.encode(image)]).values[0]
        assert pixels.shape == wanted.shape
        assert float((pixels - wanted).abs().max()) <= 1e-6 * max(1.0, float(wanted.abs().max())), (height, width)


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_written_processor_is_the_same_in_both_libraries(name: str, tmp_path: Path) -> None:
    PROCESSORS[name].save_pretrained(tmp_path)
    spec = read_processor(tmp_path, MODEL)
    written = written_processor(spec)
    assert written is not None
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(written))
    assert read_processor(tmp_path, MODEL) == spec
    again = getattr(transformers, f"{written['image_processor_type']}Pil").from_pretrained(tmp_path)
    given, found = (np.array(processor(picture(20, 31))["pixel_values"][0]) for processor in (PROCESSORS[name], again))
    assert np.abs(given - found).max() <= 1e-5 * max(1.0, np.abs(given).max())
    assert written_processor(Images()) is None


def test_defaults_and_sizes_of_older_files(tmp_path: Path) -> None:
    old = read_processor(
        folder_with(
            tmp_path, image_processor_type=None, feature_extractor_type="DeiTFeatureExtractor", size=16, crop_size=12
        ),
        MODEL,
    )
    assert old == Images(
        height=12, width=12, channels=3, mean=(0.5,) * 3, deviation=(0.5,) * 3, resized=16, resample="bicubic"
    )
    clip = read_processor(
        folder_with(tmp_path, image_processor_type="CLIPImageProcessor", size=16, crop_size=12), MODEL
    )
    assert isinstance(clip, Images)
    assert (clip.resize, clip.resized, clip.mean) == ("crop", 16, (0.48145466, 0.4578275, 0.40821073))
    (tmp_path / "preprocessor_config.json").unlink()
    assert read_processor(tmp_path, MODEL) is None


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"image_processor_type": "ViTImageProcesor"}, "did you mean 'ViTImageProcessor'"),
        ({"do_resize": False}, "do_resize is False, but qkv supports only True"),
        ({"resample": 5}, "resample is 5, which qkv does not support"),
        ({"size": {"shortest_edge": 12}}, "images have several sizes"),
        ({"size": {"longest_edge": 12}}, "qkv supports only one size, height and width, or shortest_edge"),
        ({"size": {"height": 9, "width": 12}, "do_center_crop": True}, "9 × 12 before a crop"),
        ({"image_mean": [0.5, 0.5]}, "2 values are given for 3 channels"),
        ({"image_mean": ["a"]}, "should be a list of numbers"),
        ({"image_std": [0.5, 0, 0.5]}, "deviation"),
        ({"rescale_factor": 0}, "pixels have a factor above 0"),
    ],
)
def test_what_cannot_be_followed_is_refused(changed: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"preprocessor_config\.json: ") as refusal:
        read_processor(folder_with(tmp_path, **changed), MODEL)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("key", ["patch_size", "num_attention_heads", "layer_norm_eps"])
def test_a_misspelt_key_of_a_tower_is_refused_by_its_name(key: str) -> None:
    sizes = {"hidden_size": 30, "num_attention_heads": 5, "patch_size": 4, "image_size": 12, "layer_norm_eps": 1e-3}
    inner = {**CLIPConfig().vision_config.to_dict(), **sizes}
    inner[key.replace("_", "__", 1)] = inner.pop(key)
    config = Config({"model_type": "clip", "vision_config": inner})
    with pytest.raises(UserError, match=f"vision_config: .* did you mean '{key}'"):
        read_spec(*choose(config), config)


def test_the_encoder_of_a_masked_autoencoder_reads_all_patches_and_is_written_as_vit(tmp_path: Path) -> None:
    sizes = {"hidden_size": 30, "num_attention_heads": 5, "patch_size": 4, "image_size": 12, "intermediate_size": 44}
    decoder = {"decoder_hidden_size": 16, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
    config = ViTMAEConfig(**sizes, **decoder, num_hidden_layers=2, mask_ratio=0.0)
    theirs = saved(ViTMAEForPreTraining, config, tmp_path / "mae").vit
    published = load_published(tmp_path / "mae")
    pixels = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        wanted = theirs(pixels, noise=torch.arange(9.0).expand(2, -1)).last_hidden_state
        found = published.model(Signal(pixels))[0]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    assert save_published(published.model, tmp_path / "vit", family=published.family).architecture == "ViTModel"
    with torch.no_grad():
        again = ViTModel.from_pretrained(tmp_path / "vit").eval()(pixels).last_hidden_state
    torch.testing.assert_close(again, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "values",
    [{"model_type": "levit"}, {"model_type": "perceiver", "architectures": ["PerceiverForImageClassificationFourier"]}],
)
def test_a_published_model_that_is_not_supported_is_refused_with_what_it_needs(values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"config\.json: .* which qkv does not support; it needs: ") as refusal:
        choose(Config(values))
    assert any(need in str(refusal.value) for need in NEEDS.values())


def test_no_family_is_listed_as_not_supported() -> None:
    architectures = {name for family in families() for name in family.architectures}
    assert not NEEDS.keys() & (families_by_type().keys() | architectures)


def test_dinov3_resizes_pixels_without_rounding_them(tmp_path: Path) -> None:
    """Scaled, resized with antialiasing and standardised, as its class does with torch."""
    folder_with(tmp_path, image_processor_type="DINOv3ViTImageProcessorFast", size={"height": 12, "width": 9})
    spec = read_processor(tmp_path, MODEL)
    assert isinstance(spec, Images)
    assert not spec.rounded
    mean, deviation = (torch.tensor(each)[:, None, None] for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    processor = ImageProcessor(spec)
    for height, width in ((20, 31), (37, 14), (9, 50)):
        image = picture(height, width)
        pixels = torch.from_numpy(np.array(image).transpose(2, 0, 1).astype(np.float32) / 255)
        resized = torch.nn.functional.interpolate(pixels[None], (12, 9), mode="bilinear", antialias=True)[0]
        found = processor.signal([processor.encode(image)]).values[0]
        torch.testing.assert_close(found, (resized - mean) / deviation, rtol=0, atol=1e-5)
    written = written_processor(spec)
    assert written is not None
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(written))
    assert read_processor(tmp_path, MODEL) == spec


def test_pixels_with_fractions_are_shown_as_bytes() -> None:
    spec = Images(height=4, width=5, channels=3, mean=(0.0,) * 3, deviation=(1.0,) * 3, rounded=False)
    processor = ImageProcessor(spec)
    pixels = processor.encode(picture(9, 7))
    assert pixels.dtype == np.float32
    assert np.abs(pixels - pixels.round()).max() > 0.1
    assert (
        np.abs(pixels - ImageProcessor(spec.changed(rounded=True)).encode(picture(9, 7))).max() <= 1.01
    )  # bytes are rounded twice, by columns and by rows
    assert str(processor.picture_read(pixels)).startswith("data:image")


def saved(kind: Any, config: Any, folder: Path, processor: Any = None) -> Any:
    torch.manual_seed(5)
    theirs = kind(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    theirs.save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)
    return theirs


def test_a_picture_gets_the_label_of_the_published_classifier(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, processor = tmp_path / "vit", ViTImageProcessorPil(size={"height": 14, "width": 14})
    theirs = saved(ViTForImageClassification, vit(id2label=LABELS), folder, processor)
    picture(40, 30).save(tmp_path / "a.png")
    with torch.no_grad():
        logits = theirs(torch.as_tensor(np.array(processor(picture(40, 30))["pixel_values"]))).logits[0]
    run = qkv.load(folder)
    assert run.vocabulary.processors["input"] == run.recipe.data.processor
    (answer,) = qkv.predict(run, {"image": str(tmp_path / "a.png")})
    assert answer["answer"] == LABELS[int(logits.argmax())]
    assert answer["probabilities"][answer["answer"]] == pytest.approx(float(logits.softmax(0).max()), rel=1e-4)
    assert main(["predict", str(folder), str(tmp_path / "a.png")]) == 0
    assert answer["answer"] in capsys.readouterr().out
    assert main(["export", str(folder), "--out", str(tmp_path / "again")]) == 0
    told = capsys.readouterr().out
    assert "ViT (ViTForImageClassification)" in told
    assert "compared with the transformers library: differs" in told
    assert qkv.load(tmp_path / "again").vocabulary == run.vocabulary
    assert not (tmp_path / "again" / "generation_config.json").exists()


def test_positions_are_resampled_to_the_size_of_the_processor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with ``interpolate_pos_encoding=True``; the stored table is kept, so that an export has it."""
    for kind, config, options in (
        (ViTForImageClassification, vit(image_size=16), {"interpolate_pos_encoding": True}),
        (Dinov2ForImageClassification, dinov2(image_size=16), {}),
    ):
        folder = tmp_path / kind.__name__
        theirs = saved(kind, config, folder, ViTImageProcessorPil(size={"height": 24, "width": 12}))
        found = load_published(folder)
        signal = found.model.frontend.random(2, 1, torch.Generator().manual_seed(1))
        assert tuple(signal.values.shape) == (2, 3, 24, 12)
        with torch.no_grad():
            wanted = theirs(signal.values, **options).logits
            own = found.model(signal)[0]
        assert float((own - wanted).abs().max() / wanted.abs().max()) < 1e-4
        assert main(["export", str(folder), "--out", f"{folder}-again"]) == 0
        assert "compared with the transformers library: differs" in capsys.readouterr().out
        again = load_published(f"{folder}-again")
        assert again.spec == found.spec
        assert json.loads((tmp_path / f"{kind.__name__}-again" / "config.json").read_text())["image_size"] == 16


def test_what_no_task_or_processor_fits_is_refused(tmp_path: Path) -> None:
    saved(ViTModel, vit(), tmp_path / "body", ViTImageProcessorPil(size={"height": 14, "width": 14}))
    with pytest.raises(UserError, match="a head of the kind 'vectors', which no task of qkv uses"):
        qkv.load(tmp_path / "body")
    saved(ViTForImageClassification, vit(), tmp_path / "bare")
    with pytest.raises(UserError, match=r"holds no preprocessor_config\.json"):
        qkv.load(tmp_path / "bare")
    saved(ViTForImageClassification, vit(), tmp_path / "small", ViTImageProcessorPil(size={"height": 3, "width": 3}))
    with pytest.raises(UserError, match="patches of 4 pixels are larger than images of 3 × 3"):
        load_published(tmp_path / "small")
    config = json.loads((tmp_path / "bare" / "config.json").read_text())
    for changed, sentence in (
        ({"patch_size": [4, 2]}, "only square patches"),
        ({"image_size": [14]}, r"one size or \[height, width\]"),
        ({"model_type": "dinov2", "image_size": [12, 8], "architectures": ["Dinov2Model"]}, "not square"),
    ):
        (tmp_path / "bare" / "config.json").write_text(json.dumps({**config, **changed}))
        with pytest.raises(UserError, match=sentence):
            load_published(tmp_path / "bare")
