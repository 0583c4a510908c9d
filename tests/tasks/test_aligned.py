"""What an encoder–decoder looks at, as a section of its evaluation."""

from __future__ import annotations

import pytest
import torch

from qkv.data.vocabulary import Vocabulary
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.model import Model
from qkv.spec.tokenizers import WordList
from qkv.tasks.example_task import trained
from qkv.tasks.pairs.aligned import MOST_TOKENS, aligned

SOURCE, TARGET = "ein haus steht da", "a house stands there"


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    both = trained(WordList(min_frequency=1), [SOURCE, TARGET], ("bos", "eos"))
    return Vocabulary(both, both)


def model(vocabulary: Vocabulary, branch: str = "cross_attention(2)") -> Transformer:
    torch.manual_seed(0)
    frontend = {"kind": "text", "vocab_size": vocabulary.tokenizer.vocab_size}
    spec = {
        "width": 8,
        "num_layers": 2,
        "context_length": 64,
        "frontend": frontend,
        "blocks": [{"branches": ["attention(2)", branch, "feed_forward"]}],
    }
    return build(Model.parse({**spec, "encoder": {"num_layers": 1, "context_length": 64, "frontend": frontend}})).eval()


def ids(vocabulary: Vocabulary) -> tuple[list[int], list[int]]:
    bos, eos = vocabulary.target.special("bos"), vocabulary.target.special("eos")
    assert bos is not None
    assert eos is not None
    return [*vocabulary.tokenizer.encode(SOURCE), eos], [bos, *vocabulary.target.encode(TARGET), eos]


def test_each_written_token_stands_beside_what_was_read_for_it(vocabulary: Vocabulary) -> None:
    source, written = ids(vocabulary)
    (section,) = aligned(model(vocabulary), vocabulary, source, written)
    assert (section["kind"], section["source"][:4], section["target"][:4]) == (
        "alignment",
        SOURCE.split(),
        TARGET.split(),
    )
    assert section["source"][4] == section["target"][4] == vocabulary.tokenizer.core.id_to_token(source[-1])
    weights = torch.tensor(section["weights"])
    assert weights.shape == (5, 5)
    torch.testing.assert_close(weights.sum(1), torch.ones(5))


def test_a_row_depends_on_what_was_read_up_to_it(vocabulary: Vocabulary) -> None:
    source, written = ids(vocabulary)
    made = model(vocabulary)
    (section,) = aligned(made, vocabulary, source, written)
    (other,) = aligned(made, vocabulary, source, [*written[:-2], written[1], written[-1]])
    found, changed = torch.tensor(section["weights"]), torch.tensor(other["weights"])
    torch.testing.assert_close(found[:-1], changed[:-1])
    assert not torch.equal(found[-1], changed[-1])


def test_without_attention_to_a_source_there_is_no_section(vocabulary: Vocabulary) -> None:
    source, written = ids(vocabulary)
    frontend = {"kind": "text", "vocab_size": vocabulary.tokenizer.vocab_size}
    lone = build(Model.parse({"width": 8, "context_length": 64, "frontend": frontend})).eval()
    assert aligned(lone, vocabulary, source, written) == []
    assert aligned(model(vocabulary), vocabulary, source * MOST_TOKENS, written) == []
    assert aligned(model(vocabulary), vocabulary, source, written[:1]) == []
