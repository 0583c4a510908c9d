"""Decoding state of a model: continue, fork, drop, rewind, measure.

python examples/state.py
"""

import torch

import qkv
from qkv.layers.signal import Signal
from qkv.models.transformer import Transformer
from qkv.state.tree import join, nbytes, rows


def model_of(branches: list[str]) -> Transformer:
    """Small model with random weights."""
    return qkv.build(
        qkv.Model.parse(
            {"width": 64, "frontend": {"kind": "text", "vocab_size": 100}, "blocks": [{"branches": branches}]}
        )
    ).eval()


torch.set_grad_enabled(False)
model = model_of(["attention(4, relative=rope)", "feed_forward"])
prompt = torch.tensor([[11, 12, 13, 14, 15]])

# A call takes a state and returns the next. A prompt followed by one token gives the same result as all six at once.
_, state = model(prompt, model.init_state(batch=1))
logits, state = model(torch.tensor([[16]]), state)
whole, _ = model(torch.tensor([[11, 12, 13, 14, 15, 16]]))
torch.testing.assert_close(logits[:, -1], whole[:, -1], atol=1e-5, rtol=0)
print("positions seen:", state.positions.tolist())

# Fork: three continuations of one prompt. Indexing rows repeats, reorders and drops them in the state of any mixer;
# beam search uses it.
forked = rows(state, [0, 0, 0])
three, forked = model(torch.tensor([[20], [30], [40]]), forked)
best_two = rows(forked, [2, 0])
print("rows after a fork:", len(forked.positions), "- and after two are kept:", best_two.positions.tolist())

# A call consumes its state: it may write into its buffers. The copies above do not share them, so the original is still
# valid.
again, state = model(torch.tensor([[30]]), state)
torch.testing.assert_close(again[0], three[1], atol=1e-5, rtol=0)

# Rewind: attention can drop its latest positions by lowering the count, such as rejected speculative tokens.
state = model.rewind(state, torch.tensor([5]))
retry, state = model(torch.tensor([[16]]), state)
torch.testing.assert_close(retry, logits, atol=1e-5, rtol=0)
print("rewound to 5 and read one again:", state.positions.tolist())

# Rows of different lengths are batched, padded on the right; each row has its own position count.
ragged = torch.tensor([[11, 12, 13, 14, 15], [21, 22, 0, 0, 0]])
_, both = model(Signal(ragged, lengths=torch.tensor([5, 2])), model.init_state(batch=2))
next_logits, both = model(torch.tensor([[16], [23]]), both)
torch.testing.assert_close(next_logits[0], logits[0], atol=1e-5, rtol=0)
print("ragged rows:", both.positions.tolist())

# Two batches can be joined; the rows go on together.
joined = join(state, both)
_, joined = model(torch.tensor([[17], [17], [24]]), joined)
print("a batch of one and a batch of two, joined:", joined.positions.tolist())

# The state depends on the mixer: keys and values of all positions, of a window, or sums of fixed size.
for branch in (
    "attention(4)",
    "attention(4, num_kv_heads=1)",
    "attention(4, mask='causal & window(32)')",
    "linear_attention(4)",
    "gru",
):
    mixer = model_of([branch])
    _, state = mixer(torch.zeros(1, 200, dtype=torch.long), mixer.init_state(batch=1, capacity=200))
    print(f"{branch:<42} {nbytes(state.blocks):>8,} bytes after 200 positions")
