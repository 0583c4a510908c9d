"""Published models of images beside texts that qkv does not support, with the computation that each would need."""

from __future__ import annotations

from qkv.interop.mapping.names import Reasons

_SIZED = "a tower over patches of images of any size"
_TURNED = f"{_SIZED}, with RoPE of two axes"
_WINDOWS = f"{_SIZED}, with attention in windows"
_DEEP = "vectors of inner layers of an image tower, added in layers of the decoder"
_PIXTRAL = f"{_TURNED} (Pixtral), and joined patches"
_SAM = "an encoder of images with windows, global layers and positions of two axes (SAM)"
_HEARS = "an encoder of sound beside that of images"
_CODES = "codes of images (VQ-VAE) among the tokens"
_QUERIES = "queries that read an image tower (Q-Former) before the tokens of a decoder"
_TILES = "tiles of an image of several numbers of rows and columns"
_NETWORK = "a network of 2-D convolutions as the image tower"
_SHUFFLED = "neighbouring patches joined to one vector, before two layers with a gate or a norm"
_VIDEO = "frames of a video in one row"

IMAGE_NEEDS: Reasons = {
    **dict.fromkeys(
        ("qwen2_5_vl", "hyperclovax_vision_v2", "exaone4_5", "minicpm_ocr", "minicpmv4_6", "minicpmv4_7"), _WINDOWS
    ),
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "cosmos3_omni", "granite_docling"), _DEEP),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe"), f"{_TURNED} and learned positions that are resampled"),
    "qwen4_exp": f"{_TURNED}, and attention to keys that an indexer selects",
    **dict.fromkeys(
        ("glm4v", "glm46v", "glmga", "glm4v_moe", "glm_ocr"),
        f"{_TURNED}, learned positions that are resampled, and a convolution that joins patches",
    ),
    "glm5_next": f"{_TURNED}, and residual streams that layers mix (hyper-connections)",
    "cohere_compass": f"{_TURNED}, whose joined patches stand among the tokens",
    "cosmos3_edge": f"{_SIZED} and a merger of patches, whose vectors stand among the tokens",
    "ernie4_5_vl_moe": f"{_TURNED}, and experts of their own for tokens of images",
    "hunyuan_vl": f"{_SIZED} with resampled positions, and joined patches with vectors at the ends of rows",
    "paddleocr_vl": f"{_TURNED} and resampled positions",
    "kimi_k25": f"{_TURNED} and resampled positions, before a decoder with latent attention",
    "muse_glimmer": f"{_TURNED}, before a decoder that normalises its embeddings",
    "muse_spark": f"{_TURNED}, {_HEARS}, and experts behind gated residual sums",
    "minimax_m3_vl": f"{_TURNED}, and attention to blocks of keys that an indexer selects",
    "video_llama_3": f"{_TURNED}, and frames of a video in one row",
    "step3p7": f"{_TURNED}, and convolutions that shrink the grid",
    "lfm2_vl": "rows of patches of images of several sizes, each with its own grid (SigLIP 2)",
    "lfm3_vl": f"{_TURNED}, with short convolutions in its layers",
    "siglip2": "rows of patches of images of several sizes, each with its own grid",
    **dict.fromkeys(("mistral3", "lighton_ocr"), _PIXTRAL),
    "mistral4": "latent attention with scores scaled by position",
    "mistral_large4": f"{_PIXTRAL}, and latent attention to keys that an indexer selects",
    "idefics2": "latent queries that read an image tower of any size",
    "aria": "latent queries that read an image tower of any size, before experts that all tokens share",
    "idefics": "gated cross-attention to images in some layers of the decoder, and latent queries (Perceiver)",
    "mllama": "gated cross-attention to tiles of images in some layers of the decoder",
    "kosmos-2": "latent queries that read an image tower, before a decoder with norms inside of its branches",
    "kosmos-2.5": f"{_SIZED} by rows and columns, and latent queries, before a decoder",
    **dict.fromkeys(("blip-2", "instructblip"), _QUERIES),
    "instructblipvideo": f"{_QUERIES}, for each frame of a video",
    "granite4_vision": f"{_QUERIES}, over windows of patches, for several layers of the decoder",
    "aya_vision": f"{_SHUFFLED}, and {_TILES}",
    "cohere2_vision": f"{_SHUFFLED}, and {_TILES}",
    "internvl": f"{_SHUFFLED}, after a tower with scaled branches, and {_TILES}",
    "qianfan_ocr": f"{_SHUFFLED}, after a tower with scaled branches, and {_TILES}",
    **dict.fromkeys(
        ("llava_next", "llava_onevision"), f"{_TILES}, whose padding is cut and whose rows end in a vector"
    ),
    "llava_next_video": f"{_TILES}, whose padding is cut and whose rows end in a vector, and {_VIDEO}",
    "video_llava": f"a second tower for the frames of a video, and {_VIDEO}",
    "vipllava": "vectors of several layers of an image tower, side by side, behind a norm",
    "deepseek_vl": "a tower whose vectors two layers map (SigLIP), beside Llama, with the names of its own files",
    "deepseek_vl_hybrid": f"{_SAM} beside SigLIP, whose vectors are mapped together",
    **dict.fromkeys(("deepseek_ocr2", "unlimited_ocr"), f"{_SAM} before a second tower over its vectors"),
    **dict.fromkeys(("got_ocr2", "pp_chart2table"), _SAM),
    "pp_formulanet": f"{_SAM} before a decoder of formulas",
    "gemma3": "an image tower whose patches are averaged to fewer vectors, which see each other among the tokens",
    "gemma3n": f"{_NETWORK}, {_HEARS}, and several residual streams (AltUp)",
    "diffusion_gemma": "an encoder of images and texts beside a decoder that writes blocks of tokens by diffusion",
    "t5gemma2": "self-attention and cross-attention with one softmax, and images among the tokens",
    "pi0": "PaliGemma beside a second decoder of actions of a robot, which a flow draws",
    "llama4": f"a tower with RoPE of two axes and joined patches, and {_TILES}",
    "molmo2": "vectors of several layers of an image tower, pooled by attention in windows",
    "ovis2": "probabilities over a table of visual words, whose mean stands among the tokens",
    "perception_lm": "an image tower of the timm library, whose grid is averaged",
    "fast_vlm": "the layers of the timm library, which the config only names, as the image tower",
    "nemotron_h_omni": f"a tower of several sizes (RADIO), and {_HEARS}",
    **dict.fromkeys(("qwen2_5_omni_thinker",), f"{_WINDOWS}, and {_HEARS}"),
    "qwen3_omni_moe_thinker": f"{_DEEP}, and {_HEARS}",
    **dict.fromkeys(("inkling2", "inkling_mm_model"), "relative logits in attention, short convolutions, and images"),
    **dict.fromkeys(("chameleon", "emu3"), _CODES),
    "janus": f"{_CODES}, beside an image tower for reading",
    "florence2": "stages of attention over channels and in windows (DaViT), before BART",
    "udop": "positions of words on a page as biases of attention, and patches joined with the words on them",
    "pix2struct": f"{_SIZED} with positions of rows and columns, before a decoder like T5's with its own norms",
    "fuyu": "patches of an image as vectors among those of the tokens, before Persimmon's blocks",
    "git": "vectors of an image before a text, which attend to one another in both directions",
    "evolla": "an encoder of proteins, latent queries, and gated cross-attention in layers of the decoder",
    "shieldgemma2": "Gemma 3 with an image tower, and a head of the tokens Yes and No",
    **dict.fromkeys(
        ("BlipModel", "BlipForImageTextRetrieval", "BlipForQuestionAnswering"),
        "a bidirectional stack of texts whose cross-attention reads the vectors of an image tower",
    ),
    # models with two towers
    "align": f"{_NETWORK} (EfficientNet), beside BERT",
    "altclip": "a text tower like XLM-R's with a norm and a linear map of its first vector",
    "clipseg": "CLIP with a decoder that segments the image",
    "aimv2": "an image tower with gated feed-forwards and RMS norms, pooled by attention",
    "tipsv2": "an image tower with scaled branches and two class tokens, beside a text tower whose mean is read",
    "videoprism": f"factorised attention in space and time, and {_VIDEO}",
    "xclip": f"messages between the frames of a video, and {_VIDEO}",
    "clap": "a Swin tower over frames of a log-mel spectrogram (HTSAT), whose frames are put on a square",
    "clvp": "a tower of codes of speech beside one of texts, both with RoPE and a decoder that draws them",
    "flava": "a third stack that reads the vectors of an image tower and a text tower together",
    "groupvit": "groups of patches that are assigned in stages",
    **dict.fromkeys(("owlvit", "owlv2"), "boxes and classes for every patch of an image tower"),
    "vision-text-dual-encoder": "an image tower and a text tower of any two families",
}
"""Value of ``model_type`` or ``architectures`` -> what qkv would need to support it, a noun phrase."""
