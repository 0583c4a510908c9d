"""Attention step by step: one query, six words, all intermediate values.

python examples/worked_attention.py
"""

import torch

from qkv.ops.attention.reference import AttentionProblem, attention, weights
from qkv.ops.masks import Full, Sites

# "The cat sat on the mat": each word has a key, compared with the query, and a value, its content.
words = ["the", "cat", "sat", "on", "the", "mat"]
query = torch.tensor([0.9, 0.1, 0.2, 0.3])
keys = torch.tensor(
    [[0, 0, 0, 1], [1, 0, 0.3, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]],
)
values = torch.tensor(
    [[0.1, 0, 0, 0.8], [0.9, 0, 0.1, 0.7], [0, 0.9, 0, 0.3], [0, 0, 0.5, 0], [0, 0, 0, 0.9], [0, 0, 0.9, 0.6]],
)


def show(name: str, x: torch.Tensor, digits: int = 2) -> None:
    print(f"{name:<22}" + "  ".join(f"{value:.{digits}f}" for value in x.tolist()))


print(" " * 22 + "  ".join(f"{word:<4}" for word in words))

# 1. A score for each word: the dot product of the query with its key.
scores = keys @ query
show("scores", scores)

# 2. Divided by the square root of the key's width, here √4. If the entries of q and k have variance 1, their dot
#    product has variance 4; the division brings it back to 1, so that the softmax does not saturate in wide heads.
scaled = scores / 4**0.5
show("scores / √4", scaled)

# 3. The softmax makes them positive with sum 1.
shares = scaled.softmax(0)
show("weights", shares)

# 4. The output is the weighted mean of the values. With weights rounded as printed:
show("output, rounded", torch.round(shares, decimals=2) @ values, 3)
show("output", shares @ values, 3)

# The same in one call, with a model's shapes: (batch, heads, positions, width). A problem holds the mask, the positions
# of queries and keys, and the scale.
sites = Sites(query=torch.tensor([[5]]), key=torch.arange(6)[None])
problem = AttentionProblem(mask=Full(), sites=sites, scale=1 / 4**0.5)
q, k, v = query[None, None, None], keys[None, None], values[None, None]
torch.testing.assert_close(weights(q, k, problem)[0, 0, 0], shares)
torch.testing.assert_close(attention(q, k, v, problem)[0, 0, 0], shares @ values)
print("qkv's reference gives the same weights and the same output")

# A dot product measures similarity: in this artificial space, "chasing" is closer to "cat" than to "mouse".
chasing = torch.tensor([-2, 3, 2.5, -1, 1.5, -2])
cat = torch.tensor([-1.8, 2.8, 3, 0.2, 2.5, -1.5])
mouse = torch.tensor([-1.5, -2, 2.8, -0.5, -2, 3])
print(f"chasing · cat = {float(chasing @ cat):.2f}, chasing · mouse = {float(chasing @ mouse):.2f}")

# Every query is compared with every key, so the weights of a layer need memory quadratic in the length.
heads, length, bytes_of_fp32 = 8, 1024, 4
size = heads * length**2 * bytes_of_fp32
print(f"weights of {heads} heads at {length} tokens in fp32: {size:,} bytes, {size / 1e6:.2f} MB, in each layer")
