"""Folders that the transformers library writes, with random weights, and an input of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from PIL import Image
from tests.interop.cases.vit import vit
from tests.interop.word_pieces import word_pieces
from tokenizers import decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import ViTImageProcessorPil

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ("the", "quick", "brown", "fox", "jump", "##s", "over", "lazy", "dog", ".", ",")
TEXT = "the quick brown fox jumps over the lazy dog. "
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": len(SPECIALS) + len(WORDS),
}


def byte_pairs() -> transformers.PreTrainedTokenizerFast:
    """Byte-level BPE, as GPT-2 has it."""
    core = tokenizers.Tokenizer(BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=letters)
    core.train_from_iterator([TEXT] * 4, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|endoftext|>")


def pieces(one: str, two: str, **more: Any) -> transformers.PreTrainedTokenizerFast:
    """WordPiece between the special tokens of the templates."""
    named = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIALS, strict=True))
    core = word_pieces(SPECIALS, WORDS, one, two)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, **named, **more)


def write(kind: Any, config: Any, beside: Any, folder: Path) -> Path:
    """Write a model with random weights, and what stands ``beside`` it: its tokenizer or its processor."""
    torch.manual_seed(5)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.tie_weights()
    model.save_pretrained(folder)
    beside.save_pretrained(folder)
    return folder


def gpt2(folder: Path) -> Path:
    """Decoder with learned positions."""
    beside = byte_pairs()
    end = len(beside) - 1
    sizes: dict[str, Any] = {"n_embd": 16, "n_layer": 3, "n_head": 4, "n_positions": 64, "vocab_size": len(beside)}
    config = transformers.GPT2Config(**sizes, bos_token_id=end, eos_token_id=end)
    return write(transformers.GPT2LMHeadModel, config, beside, folder)


def t5(folder: Path) -> Path:
    """Encoder–decoder with relative positions, that writes until its separator."""
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": SIZES["vocab_size"]}
    config = transformers.T5Config(**sizes, pad_token_id=0, eos_token_id=3, decoder_start_token_id=0)
    beside = pieces("$A {sep}", "$A $B {sep}", eos_token=SPECIALS[3])
    return write(transformers.T5ForConditionalGeneration, config, beside, folder)


def bert(folder: Path) -> Path:
    """Encoder that fills in masked tokens."""
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    beside = pieces("{cls} $A {sep}", "{cls} $A {sep} $B:1 {sep}:1", model_input_names=inputs)
    config = transformers.BertConfig(**SIZES, max_position_embeddings=64)
    return write(transformers.BertForMaskedLM, config, beside, folder)


def labels(folder: Path) -> Path:
    """Encoder that gives a text a label."""
    named = {"id2label": {0: "dull", 1: "lively"}, "label2id": {"dull": 0, "lively": 1}}
    config = transformers.BertConfig(**SIZES, max_position_embeddings=64, **named)
    beside = pieces("{cls} $A {sep}", "{cls} $A {sep} $B:1 {sep}:1")
    return write(transformers.BertForSequenceClassification, config, beside, folder)


def images(folder: Path) -> Path:
    """Encoder of patches of an image, with a class for each."""
    config, beside = vit(id2label={0: "dark", 1: "light"}), ViTImageProcessorPil(size={"height": 14, "width": 14})
    write(transformers.ViTForImageClassification, config, beside, folder)
    pixels = np.linspace(0, 255, 20 * 24 * 3).reshape(20, 24, 3).astype(np.uint8)
    Image.fromarray(pixels).save(folder / "image.png")
    return folder


def every_folder(parent: Path) -> dict[str, tuple[Path, str]]:
    """Return name -> (folder, input as the command takes it)."""
    made = {"GPT-2": gpt2, "T5": t5, "BERT": bert, "BERT labels": labels, "ViT": images}
    folders = {name: make(parent / name.replace(" ", "-")) for name, make in made.items()}
    given = {"BERT": "the quick [MASK] fox.", "ViT": str(folders["ViT"] / "image.png")}
    return {name: (folder, given.get(name, "the quick brown fox jumps")) for name, folder in folders.items()}
