"""Four position encodings for attention and the property that motivates each.

python examples/positions.py
"""

import math

import torch

from qkv.layers.positions import rope_frequencies
from qkv.models.build import build
from qkv.ops.positions import alibi_slopes, inverse_frequencies, rotate, rotation, sinusoid
from qkv.spec.branches import Attention
from qkv.spec.masks import Full
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import NoPositions, Rope, YarnScaling

torch.manual_seed(0)
width = 8

# Sinusoidal (Vaswani et al. 2017). A shift by k positions rotates each pair (sin, cos) by an angle of k alone:
# PE(p + k) = T_k PE(p), with the same matrix T_k at every p.
step = 3
angles = step * inverse_frequencies(width, 10000.0)
shift = torch.block_diag(*(torch.tensor([[a.cos(), a.sin()], [-a.sin(), a.cos()]]) for a in angles))
for p in (0, 7, 100):
    torch.testing.assert_close(
        shift @ sinusoid(torch.tensor(p), width), sinusoid(torch.tensor(p + step), width), atol=1e-5, rtol=0
    )
print(f"sinusoidal: one matrix moves PE(p) to PE(p + {step}) for p = 0, 7, 100")

# Rotary positions (RoPE, Su et al. 2021). Queries and keys are rotated by their position, so their dot product depends
# only on their distance.
q, k = torch.randn(width), torch.randn(width)
frequencies, magnitude = rope_frequencies(Rope(), width)


def score(query_position: int, key_position: int) -> float:
    turned = [
        rotate(x, *rotation(torch.tensor(p), frequencies, magnitude))
        for x, p in ((q, query_position), (k, key_position))
    ]
    return float(turned[0] @ turned[1])


print("rope: q·k at distance 4 from position 4, 50, 1000:", [round(score(p, p - 4), 4) for p in (4, 50, 1000)])
print("      at distance 5:", round(score(50, 45), 4))

# Beyond the trained length, low frequencies reach unseen angles. YaRN scales those down and keeps the high ones, which
# distinguish neighbours.
stretched, _ = rope_frequencies(Rope(scaling=YarnScaling(factor=4, original_length=64)), 32)
plain, _ = rope_frequencies(Rope(), 32)
print("yarn: frequencies divided by", [round(float(r), 1) for r in (plain / stretched)[::3]])

# ALiBi (Press et al. 2022) subtracts m·distance from each logit, with a different slope m per head.
slopes = alibi_slopes(8)
print("alibi: slopes of 8 heads:", [f"1/{round(1 / float(m))}" for m in slopes])
distance = 6
print(
    f"       a key {distance} positions back keeps e^-{distance}m of its weight:",
    [round(math.exp(-distance * float(m)), 3) for m in slopes[:4]],
)

# Without position information, full attention is permutation-equivariant: shuffling the input shuffles the output.
bare = Model(
    width=16, frontend=Text(vocab_size=10, positions=NoPositions()), blocks=(Block(branches=(Attention(mask=Full()),)),)
)
model = build(bare).eval()
ids, order = torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([4, 2, 0, 1, 3])
with torch.no_grad():
    torch.testing.assert_close(model(ids)[0][:, order], model(ids[:, order])[0], atol=1e-5, rtol=0)
print("none: without a mask, shuffled words give the same outputs in shuffled order")
