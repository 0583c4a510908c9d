"""A folder of wav2vec 2.0 with random weights."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import Wav2Vec2Config, Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC


def wav2vec2(folder: Path) -> None:
    """Write the folder, of a model that writes the letters of two words."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<s>", "</s>", "<unk>", "|", *"HIGLOW"])}
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    Wav2Vec2CTCTokenizer(str(folder / "vocab.json")).save_pretrained(folder)
    Wav2Vec2FeatureExtractor().save_pretrained(folder)
    config = Wav2Vec2Config(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        conv_dim=(8,) * 7,
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4,
        pad_token_id=0,
    )
    Wav2Vec2ForCTC(config).save_pretrained(folder)
