"""Folders of PatchTST: runs as folders, opened by the transformers library; what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.interop.cases.patchtst import patchtst
from tests.tasks.test_forecasting import BLOCKS, READER, recipe_of
from transformers import PatchTSTForPrediction

import qkv
from qkv.cli.main import main
from qkv.interop.load import load_published
from qkv.system.errors import UserError
from qkv.tasks.registry import build_task
from qkv.training.loop import train

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.mark.parametrize("ends", [{"align": "end"}, {"align": "end", "stride": 3}, {"normalise": "none"}])
def test_a_run_is_a_folder_of_the_other_library(
    ends: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    block = {**BLOCKS[0], "norm": {"kind": "batch_norm", "eps": 1e-3}, "order": "post", "dropout": 0.1}
    reader = {**READER, "pad_end": False, "dropout": 0.1, **ends}
    changes = {"model__frontend": reader, "model__blocks": [block], "model__norm": "none"}
    run = train(recipe_of(tmp_path, 2, **changes), tmp_path / "run", on_event=lambda _: None)
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "folder")]) == 0
    told = capsys.readouterr().out
    assert "PatchTST (PatchTSTForPrediction)" in told
    assert "compared with the transformers library: differs" in told
    theirs, info = PatchTSTForPrediction.from_pretrained(tmp_path / "folder", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    task: Any = build_task(run.recipe.task)
    batch = next(task.open(run.recipe).rows("test"))
    windows = batch.input.values[..., 0].unflatten(0, (-1, 2)).transpose(1, 2)
    with torch.no_grad():
        own = task.restored(run.model.eval(), batch)
        found = theirs.eval()(past_values=windows).prediction_outputs
    torch.testing.assert_close(own[:, 0, :, 0].unflatten(0, (-1, 2)).transpose(1, 2), found, rtol=1e-4, atol=1e-5)


def test_a_repeated_last_value_is_not_published(tmp_path: Path) -> None:
    """The library has no padding at the end of a window, so that no folder of PatchTST is this model."""
    train(recipe_of(tmp_path), tmp_path / "run", on_event=lambda _: None)
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "folder")]) == 2
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"use_cls_token": True}, "use_cls_token is True, but qkv supports only False"),
        ({"channel_attention": True}, "channel_attention is True, but qkv supports only False"),
        ({"share_embedding": False}, "share_embedding is False, but qkv supports only True"),
        ({"share_projection": False}, "share_projection is False, but qkv supports only True"),
        ({"scaling": "mean"}, "scaling is 'mean', but qkv supports only 'std' and null"),
        ({"pooling_type": "max"}, "pooling_type is 'max', but qkv supports only 'mean' and null"),
        ({"loss": "nll"}, "loss is 'nll', but qkv supports only 'mse'"),
        ({"loss": None}, "loss is None, but qkv supports only 'mse'"),
        ({"norm_type": "rmsnorm"}, "norm_type is 'rmsnorm', which qkv does not support"),
        ({"positional_encoding_type": "zeros"}, "positional_encoding_type is 'zeros', which qkv does not support"),
        ({"context_length": 3}, "a patch of 4 steps is longer than a window of 3"),
        ({"architectures": ["PatchTSTModel"], "do_mask_input": True}, "do_mask_input is True"),
        ({"architectures": ["PatchTSTForRegression"]}, "'PatchTSTForRegression' is not supported for PatchTST"),
        ({"minimum_scale": 1e-3}, "minimum_scale is 0.001, but qkv supports only 1e-05"),
    ],
)
def test_what_cannot_be_followed_is_refused(changed: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    PatchTSTForPrediction(patchtst()).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changed}))
    with pytest.raises(UserError) as refusal:
        load_published(tmp_path)
    assert sentence in str(refusal.value)


def test_a_folder_of_series_is_a_model_without_its_data(tmp_path: Path) -> None:
    PatchTSTForPrediction(patchtst()).save_pretrained(tmp_path)
    with pytest.raises(
        UserError, match="does not specify how series are read and standardised, and no published folder"
    ):
        qkv.load(tmp_path)
    assert main(["info", str(tmp_path)]) == main(["load", str(tmp_path)]) == 0
