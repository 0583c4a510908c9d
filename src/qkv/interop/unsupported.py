"""Published model types and architectures that qkv does not open, each with what a family of them would need."""

from __future__ import annotations

from qkv.interop.mapping.names import Reasons

_STAGES = "stages of blocks over ever coarser grids of patches"
_CONVOLUTIONS = "a network of 2-D convolutions"

NEEDS: Reasons = {
    "swin": f"{_STAGES}, with attention in shifted windows",
    "swinv2": f"{_STAGES}, with cosine attention in shifted windows and biases from an MLP",
    "donut-swin": f"{_STAGES}, with attention in shifted windows",
    "dinat": f"{_STAGES}, with attention to dilated neighbourhoods on the grid",
    "hiera": f"{_STAGES}, with attention in mask units and pooled queries",
    "focalnet": f"{_STAGES}, with focal modulation",
    "pvt": f"{_STAGES}, with keys and values of a coarser grid",
    "pvt_v2": f"{_STAGES}, with keys and values of a coarser grid and convolutions in feed-forward networks",
    "segformer": f"{_STAGES}, with keys and values of a coarser grid and convolutions in feed-forward networks",
    "poolformer": f"{_STAGES}, with pooling over neighbours and group norm",
    "cvt": f"{_STAGES}, with convolutions as projections of attention",
    "levit": f"{_STAGES}, with attention that shrinks the grid and batch norm after each projection",
    "mobilevit": f"{_STAGES}, with inverted residuals of convolutions between the blocks",
    "mobilevitv2": f"{_STAGES}, with separable attention and inverted residuals of convolutions",
    "swiftformer": f"{_STAGES}, with additive attention and convolutions",
    "convnext": f"{_STAGES}, with depthwise 2-D convolutions",
    "convnextv2": f"{_STAGES}, with depthwise 2-D convolutions and norms over the whole grid",
    "dinov3_convnext": f"{_STAGES}, with depthwise 2-D convolutions",
    **dict.fromkeys(
        (
            "bit",
            "efficientnet",
            "hgnet_v2",
            "mobilenet_v1",
            "mobilenet_v2",
            "pp_lcnet",
            "regnet",
            "resnet",
            "textnet",
        ),
        _CONVOLUTIONS,
    ),
    "siglip2": "rows of patches of images of several sizes, each with its own grid",
    "imagegpt": "a vocabulary of colours, to which a processor converts pixels by a table",
    "shieldgemma2": "Gemma 3 with an image tower, and a head of the tokens Yes and No",
    "timm_wrapper": "the layers of the timm library, which the config only names",
    "PerceiverForImageClassificationLearned": "learned positions after a linear map, concatenated with pixels",
    "PerceiverForImageClassificationFourier": "Fourier features of positions, concatenated with pixels",
    "PerceiverForImageClassificationConvProcessing": "Fourier features of positions, beside a convolution",
}
"""Value of ``model_type`` or ``architectures`` -> what it would need, as the object of a sentence."""
