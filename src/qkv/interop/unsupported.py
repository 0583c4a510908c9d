"""Published model types and architectures that qkv does not support, with the computation that each would need."""

from __future__ import annotations

from qkv.interop.mapping.names import Reasons

_STAGES = "stages of blocks over ever coarser grids of patches"
_CONVOLUTIONS = "a network of 2-D convolutions"

NEEDS: Reasons = {
    "dinat": f"{_STAGES}, with attention to dilated neighbourhoods on the grid",
    "hiera": f"{_STAGES}, with attention in mask units and pooled queries",
    "cvt": f"{_STAGES}, with convolutions as projections of attention",
    "levit": f"{_STAGES}, with attention that shrinks the grid and batch norm after each projection",
    "mobilevit": f"{_STAGES}, with inverted residuals of convolutions between the blocks",
    "mobilevitv2": f"{_STAGES}, with separable attention and inverted residuals of convolutions",
    "swiftformer": f"{_STAGES}, with additive attention and convolutions",
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
    "mra": "attention at several resolutions of the score matrix",
    "xmod": "adapters per language behind each feed-forward",
    "neomme": "factorised embeddings, patches of images between the tokens and a window per layer",
    "nllb-moe": "feed-forwards of experts with a capacity, in some layers of an encoder–decoder",
    "prophetnet": "attention of several streams, each of which predicts a later token",
    "xlm-prophetnet": "attention of several streams, each of which predicts a later token",
    "pegasus_x": "an encoder with blocks that are staggered from layer to layer, and global tokens",
    "t5gemma2": "self-attention and cross-attention with one softmax, and images among the tokens",
    "voxtral_realtime": "a log-mel front end whose vectors are added to those of the tokens, and feed-forward networks "
    "whose inputs are scaled by a function of the delay",
    "siglip2": "rows of patches of images of several sizes, each with its own grid",
    "minimax": "linear attention with a fixed decay per head (lightning attention), and experts",
    "kimi_linear": "the gated delta rule with a decay per feature of a key (KDA)",
    "zamba": "Mamba with several heads, and attention that layers share and that reads the token vectors, too",
    "zamba2": "Mamba-2 and attention that layers share, with matrices of its own in each use",
    "blt": "patches of bytes by their entropy, between an encoder and a decoder of bytes",
    "cpmant": "buckets of distances within and between segments, and learned prompts before a text",
    "doge": "a mask of keys that is computed from their values, and learned factors of the residual stream",
    "gemma3n_text": "several residual streams (AltUp), low-rank paths (LAuReL) and embeddings for each layer",
    "gemma4_text": "embeddings for each layer, keys and values of earlier layers, and keys that are values",
    "hrm_text": "two stacks that alternate in cycles, each with vectors of its own",
    "mllama_text_model": "gated cross-attention to vectors of images in some layers",
    "moshi": "several codebooks of sound at each position",
    "musicgen_decoder": "several codebooks of sound at each position",
    "musicgen_melody_decoder": "several codebooks of sound at each position",
    "phi4_multimodal": "adapters of its own for images and for sound",
    "rwkv": "time mixing with a weighted mean of exponentially decayed keys (RWKV-4)",
    "xlstm": "matrix memories with exponential gates (mLSTM)",
    "imagegpt": "a vocabulary of colours, to which a processor converts pixels by a table",
    "shieldgemma2": "Gemma 3 with an image tower, and a head of the tokens Yes and No",
    "timm_wrapper": "the layers of the timm library, which the config only names",
    "PerceiverForImageClassificationLearned": "learned positions after a linear map, concatenated with pixels",
    "PerceiverForImageClassificationFourier": "Fourier features of positions, concatenated with pixels",
    "PerceiverForImageClassificationConvProcessing": "Fourier features of positions, beside a convolution",
}
"""Value of ``model_type`` or ``architectures`` -> what qkv would need to support it, a noun phrase."""
