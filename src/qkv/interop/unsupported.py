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
    "mobilebert": "blocks whose branches run in a narrow bottleneck, and embeddings of trigrams",
    "squeezebert": "products with block-diagonal matrices (grouped convolutions)",
    "convbert": "convolutions with kernels computed from the text, beside fewer heads of attention",
    "funnel": "stages of blocks over ever shorter rows, and a decoder that repeats them",
    "fnet": "a Fourier transform over positions and features",
    "nystromformer": "attention by landmarks with an iterated pseudo-inverse",
    "yoso": "attention by sampled hash codes",
    "mra": "attention at several resolutions of the score matrix",
    "xmod": "adapters per language behind each feed-forward",
    "roc_bert": "embeddings of the shape and the pronunciation of each token",
    "layoutlm": "embeddings of the box of each word on its page",
    "tapas": "seven kinds of token types, for the cells of tables",
    "neomme": "factorised embeddings, patches of images between the tokens and a window per layer",
    "ultrabert": "a head of two dense layers without norms",
    "switch_transformers": "feed-forwards of experts with a capacity, in some layers of T5",
    "nllb-moe": "feed-forwards of experts with a capacity, in some layers of an encoder–decoder",
    "prophetnet": "attention of several streams, each of which predicts a later token",
    "xlm-prophetnet": "attention of several streams, each of which predicts a later token",
    "pegasus_x": "an encoder with blocks that are staggered from layer to layer, and global tokens",
    "bigbird_pegasus": "attention to random blocks",
    "encoder-decoder": "an encoder and a decoder of families of their own in one folder",
    "t5gemma2": "self-attention and cross-attention with one softmax, and images among the tokens",
    "trocr": "the decoder of an encoder of images alone",
    "siglip2": "rows of patches of images of several sizes, each with its own grid",
    "imagegpt": "a vocabulary of colours, to which a processor converts pixels by a table",
    "shieldgemma2": "Gemma 3 with an image tower, and a head of the tokens Yes and No",
    "timm_wrapper": "the layers of the timm library, which the config only names",
    "PerceiverForImageClassificationLearned": "learned positions after a linear map, concatenated with pixels",
    "PerceiverForImageClassificationFourier": "Fourier features of positions, concatenated with pixels",
    "PerceiverForImageClassificationConvProcessing": "Fourier features of positions, beside a convolution",
}
"""Value of ``model_type`` or ``architectures`` -> what it would need, as the object of a sentence."""
