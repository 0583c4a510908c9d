"""Convolution of the Conformer, and its block, against the transformers library."""

from __future__ import annotations

import torch
from transformers import Wav2Vec2ConformerConfig
from transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer import Wav2Vec2ConformerConvolutionModule

from qkv.layers.context import Context
from qkv.mixers.registry import build_branch
from qkv.spec.mixers.gated_convolution import ConformerConvolution


def test_it_is_the_convolution_of_the_other_library() -> None:
    torch.manual_seed(0)
    config = Wav2Vec2ConformerConfig(hidden_size=6, conv_depthwise_kernel_size=5, hidden_act="swish")
    theirs = Wav2Vec2ConformerConvolutionModule(config).double()
    theirs.layer_norm = torch.nn.Identity()
    ours = build_branch(ConformerConvolution(kernel_size=5, bias=False), 6).double()
    ours.load_state_dict(
        {
            "input.weight": theirs.pointwise_conv1.weight[..., 0],
            "weight": theirs.depthwise_conv.weight[:, 0].flip(-1),
            **{f"norm.{name}": value for name, value in theirs.batch_norm.state_dict().items() if "num" not in name},
            "output.weight": theirs.pointwise_conv2.weight[..., 0],
        }
    )
    theirs.dropout = torch.nn.Identity()
    x = torch.randn(3, 9, 6, dtype=torch.float64)
    context = Context(torch.arange(9)[None])
    for module in (ours, theirs):
        module.train()
    torch.testing.assert_close(ours(x, context)[0], theirs(x))
    for module in (ours, theirs):
        module.eval()
    torch.testing.assert_close(ours(x, context)[0], theirs(x))  # with the running statistics of one batch


def test_padding_is_no_part_of_the_batch_statistics() -> None:
    torch.manual_seed(0)
    ours = build_branch(ConformerConvolution(kernel_size=3), 6).double().train()
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    lengths = torch.tensor([7, 4])
    y = ours(x, Context(torch.arange(7)[None], lengths))[0]
    mean = ours.norm.running_mean.clone()
    louder = torch.where((torch.arange(7) < lengths[:, None])[..., None], x, 100.0)
    again = build_branch(ConformerConvolution(kernel_size=3), 6).double().train()
    again.load_state_dict({**ours.state_dict(), "norm.running_mean": 0 * mean, "norm.running_var": 0 * mean + 1})
    z = again(louder, Context(torch.arange(7)[None], lengths))[0]
    torch.testing.assert_close(z[0], y[0])
    torch.testing.assert_close(z[1, :4], y[1, :4])
    torch.testing.assert_close(again.norm.running_mean, mean)
