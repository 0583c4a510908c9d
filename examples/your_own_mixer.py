"""A mixer defined outside the package: a spec and a module; everything else works automatically.

The mixer is an exponential moving average with a learned rate per feature:

    s_i = a ⊙ s_{i-1} + (1 - a) ⊙ x_i W        a = σ(rate)        y_i = s_i V

    python examples/your_own_mixer.py
    qkv train recipe.yaml --import examples/your_own_mixer.py        train a recipe that names leaky_mean
"""

import torch
from pydantic import Field
from torch import Tensor, nn

import qkv
from qkv.layers.branch import Branch
from qkv.layers.context import Context
from qkv.layers.linear.linear import Linear
from qkv.spec import branches as spec
from qkv.spec.register import implements


# 1. The spec: options, validated and written in YAML. Defining the class registers the kind "leaky_mean".
class LeakyMean(spec.Branch, kind="leaky_mean"):
    """s_i = a ⊙ s_{i-1} + (1 - a) ⊙ x_i W, y_i = s_i V."""

    horizon: float = Field(
        default=8.0, gt=1, description="positions after which about 1/e of an input is left at first"
    )


# 2. The module: input x (B, N, D), context and state s (B, D); output y (B, N, D) and the next state.
@implements(LeakyMean)
class LeakyMeanMixer(Branch):
    """Loop over positions that handles rows of different lengths and packed documents."""

    rewindable = False

    def __init__(self, part: LeakyMean, width: int):
        super().__init__(part, width)
        self.input, self.output = Linear(width, width), Linear(width, width)
        self.rate = nn.Parameter(torch.full((width,), part.horizon - 1.0).log())

    def init_state(self, batch: int, capacity: int | None = None) -> Tensor:
        return self.rate.detach().new_zeros(batch, self.width)

    def forward(self, x: Tensor, context: Context, state: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        a, x = self.rate.sigmoid(), self.input(x)
        s, outs = x.new_zeros(x.shape[0], self.width) if state is None else state, []
        for i in range(x.shape[1]):
            if context.document_starts is not None:
                s = s.masked_fill(context.document_starts[:, i, None], 0.0)
            new = a * s + (1 - a) * x[:, i]
            s = new if context.valid is None else torch.where(context.valid[:, i, None], new, s)
            outs.append(s)
        y = torch.stack(outs, 1) if outs else x
        return self.output(y), None if state is None else s

    def state_bytes(self, length: int, batch: int = 1) -> int:
        return batch * self.width * self.rate.element_size()


def main() -> None:
    """Train a stack with the new mixer for two steps, decode with it in pieces, and count its cost."""
    # 3. The new mixer in a stack with attention over the last 16 positions.
    block = {"branches": ["leaky_mean(horizon=4)", "attention(4, mask='causal & window(16)')", "feed_forward"]}
    text = {"kind": "text", "vocab_size": 50}
    model = qkv.build(qkv.Model.parse({"width": 32, "num_layers": 2, "frontend": text, "blocks": [block]}))
    print("blocks:", [branch.spec.kind for branch in model.branches])

    ids = torch.randint(50, (8, 33), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(2):
        logits, _ = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step + 1}: loss {loss.item():.3f}")

    # The state contract: split a sequence anywhere, pass the state along, and the outputs equal those of one call.
    model.eval()
    with torch.no_grad():
        whole, _ = model(ids[:2])
        state, outs = model.init_state(batch=2), []
        for piece in ids[:2].split([20, 1, 1, 11], dim=1):
            logits, state = model(piece, state)
            outs.append(logits)
    torch.testing.assert_close(torch.cat(outs, 1), whole, atol=1e-5, rtol=0)
    print("20 + 1 + 1 + 11 positions give the same outputs as 33 at once")
    print(f"the state takes {model.state_bytes(33, batch=2):,} bytes")

    # Its cost is counted on the module itself; nothing has to be declared.
    part = qkv.cost(model.spec, batch_size=8, length=32).parts["leaky_mean"]
    print(f"cost of leaky_mean: {part.parameters:,} parameters, {part.flops / 1e6:.1f} MFLOPs")


if __name__ == "__main__":
    main()
