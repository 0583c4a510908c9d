"""Cost formulas of built-in parts, except attention, memory branches and heads. Imports no torch."""

from __future__ import annotations

from dataclasses import replace

from qkv.inspection.shares import FLOAT, Setting, Share, formula, last, linear, share
from qkv.spec import branches as branch
from qkv.spec import parts
from qkv.spec.model import Text

# Activations whose backward pass reads their input, and those whose backward pass reads their output.
_KEEPS_INPUT = {"gelu", "gelu_tanh", "silu", "quick_gelu", "relu2"}
_READS_OUTPUT = {"relu", "sigmoid", "tanh"}


@formula(branch.FeedForward)
def feed_forward(part: branch.FeedForward, at: Setting) -> Share:
    """Two linear layers with an activation; dropout saves its mask, and a copy if the activation saves its output."""
    hidden = part.hidden_at(at.width)
    size = at.tokens * hidden * at.item
    kept = part.activation in _KEEPS_INPUT
    if part.dropout:
        kept += 1 + (part.activation in _READS_OUTPUT)
    gradients = 3 if part.activation == "relu2" else 1 if kept else 2
    inner = Share(saved=kept * size, working=gradients * size, calls=2, step_calls=2)
    return linear(at.width, hidden, part.bias, at, at.input) + inner + last(linear(hidden, at.width, part.bias, at))


@formula(branch.GatedFeedForward)
def gated_feed_forward(part: branch.GatedFeedForward, at: Setting) -> Share:
    """Two linear layers with a gated activation; saves gate, value and activated gate."""
    hidden = part.hidden_at(at.width)
    size = at.tokens * hidden * at.item
    kept = 2 + (part.activation != "identity") + (1 if part.dropout else 0)
    inner = Share(saved=kept * size, working=2 * size, calls=4, step_calls=4)
    return linear(at.width, 2 * hidden, part.bias, at, at.input) + inner + last(linear(hidden, at.width, part.bias, at))


@formula(branch.LinearAttention)
def linear_attention(part: branch.LinearAttention, at: Setting) -> Share:
    """Scores within chunks of C, and two products with the (Dk, Dk) state per chunk."""
    heads, chunk = part.num_heads, part.chunk
    head_dim = at.width // heads
    whole, rest = divmod(at.length, chunk)
    chunks = whole + (rest > 0)
    rows = at.batch * heads
    pairs = whole * chunk * chunk + rest * rest
    triangle = whole * chunk * (chunk + 1) // 2 + rest * (rest + 1) // 2
    # Slices of heads are copied for batched products, unless batch or heads is 1.
    copied = 5 * (at.length - min(chunk, at.length)) + 2 * min(chunk, at.length) if at.batch > 1 and heads > 1 else 0
    elements = at.batch * at.width * (7 * at.length + copied) + rows * (pairs + chunks * head_dim * (head_dim + 1) + 2 * at.length)
    inner = Share(
        flops=4 * rows * head_dim * (pairs + at.length * head_dim),
        masked=4 * rows * head_dim * (pairs - triangle),
        step=4 * rows * head_dim * (1 + head_dim),
        saved=elements * at.item,
        working=4 * at.tokens * at.width * at.item,
        scores=rows * at.length * at.length * at.item,
        state=rows * head_dim * (head_dim + 1) * at.item,
        calls=10 + 24 * chunks,
        step_calls=46,
    )
    # The output projection saves this output; it is counted there.
    return linear(at.width, 3 * at.width, part.bias, at, at.input) + inner + last(linear(at.width, at.width, part.bias, at, 0))


@formula(branch.TokenShift)
def token_shift(part: branch.TokenShift, at: Setting) -> Share:
    """One linear layer on shifted features; the state is the last G - 1 inputs."""
    inner = Share(
        working=2 * at.tokens * at.width * at.item,
        state=at.batch * (part.groups - 1) * at.width * at.item,
        calls=12,
        step_calls=19,
    )
    return last(linear(at.width, at.width, True, at)) + inner


@formula(branch.Convolution)
def convolution(part: branch.Convolution, at: Setting) -> Share:
    """One linear layer on K concatenated inputs; if gated, saves both halves and the sigmoid."""
    inputs = part.kernel_size * at.width
    inner = Share(
        saved=3 * at.tokens * at.width * at.item if part.gated else 0, working=at.tokens * inputs * at.item, calls=14, step_calls=13
    )
    return linear(inputs, (2 if part.gated else 1) * at.width, True, at) + inner


@formula(branch.MemoryLayer)
def memory_layer(part: branch.MemoryLayer, at: Setting) -> Share:
    """Query projection, products with the keys, and one linear layer on the weights, which are saved."""
    (slots, key_dim), heads = part.sizes(at.width), part.num_heads
    size = at.tokens * heads * slots * at.item
    # With several heads, queries and scores are copied for batched products.
    again = 0 if heads == 1 else at.tokens * heads * key_dim * at.item
    keys = replace(linear(key_dim, slots, False, replace(at, batch=at.batch * heads)), parameters=heads * slots * key_dim)
    keys = replace(keys, matrices=keys.parameters, saved=keys.saved + (heads - 1) * slots * key_dim * (at.item if at.item != FLOAT else 0))
    kept = part.activation in _KEEPS_INPUT
    inner = Share(saved=kept * size + again, working=2 * size, calls=4, step_calls=4)
    before = linear(at.width, heads * key_dim, False, at, at.input)
    return before + keys + inner + last(linear(heads * slots, at.width, False, at))


@formula(branch.CausalConvolution)
def causal_convolution(part: branch.CausalConvolution, at: Setting) -> Share:
    """One linear layer on K concatenated inputs; if gated, saves both halves and the sigmoid. State: (K - 1) d inputs."""
    inputs = part.kernel_size * at.width
    inner = Share(
        saved=3 * at.tokens * at.width * at.item if part.gated else 0,
        working=at.tokens * inputs * at.item,
        state=at.batch * part.tail * at.width * at.item,
        calls=14,
        step_calls=23,
    )
    return linear(inputs, (2 if part.gated else 1) * at.width, True, at) + inner


@formula(branch.RNN)
@formula(branch.GRU)
@formula(branch.LSTM)
def recurrent(part: branch.Recurrent, at: Setting) -> Share:
    """Input and recurrent matrices of each gate, and a linear layer; each step saves its gates and their inputs.

    Two directions split the hidden features, which halves the recurrent products.
    """
    hidden, directions = part.hidden or at.width, 2 if part.direction == "both" else 1
    size, kept = hidden // directions, {1: 1, 3: 7, 4: 12}[part.gates]
    inner = Share(
        saved=(kept * at.tokens * hidden + (0 if part.causal else 2 * at.tokens * at.width)) * at.item,
        working=2 * at.tokens * hidden * at.item,
        state=part.leaves * at.batch * hidden * at.item if part.causal else 0,
        calls={1: 8, 3: 20, 4: 20}[part.gates] * at.length * directions,
        step_calls=22,
    )
    gates = linear(at.width, part.gates * hidden, True, at, at.input)
    for _ in range(directions):
        gates += linear(size, part.gates * size, True, at, 0)
    return gates + inner + last(linear(hidden, at.width, True, at))


@formula(parts.LayerNorm)
def layer_norm(part: parts.LayerNorm, at: Setting) -> Share:
    """Saves its input, and mean and deviation of each position."""
    return _norm(at, at.width * (2 if part.bias else 1), 2, 2)


@formula(parts.RMSNorm)
def rms_norm(part: parts.RMSNorm, at: Setting) -> Share:
    """Saves its input, the root mean square of each position, and with a weight the normalised vectors."""
    saved = at.tokens * at.width * FLOAT if part.weight else 0
    return _norm(at, at.width if part.weight else 0, 1, 4) + Share(saved=saved, working=3 * at.tokens * at.width * FLOAT)


@formula(parts.BatchNorm)
def batch_norm(part: parts.BatchNorm, at: Setting) -> Share:
    """Saves its input; running statistics are not parameters."""
    return _norm(at, 2 * at.width, 0, 2)


def _norm(at: Setting, parameters: int, statistics: int, calls: int) -> Share:
    kept = at.tokens * (at.width + statistics) * FLOAT
    return Share(parameters=parameters, saved=kept, working=at.tokens * at.width * FLOAT, calls=calls, step_calls=calls)


@formula(parts.NoNorm)
def no_norm(part: parts.NoNorm, at: Setting) -> Share:
    """No cost."""
    return Share()


@formula(parts.Add)
def add(part: parts.Add, at: Setting) -> Share:
    """One addition; saves nothing."""
    return Share(calls=1, step_calls=1)


@formula(parts.Scaled)
def scaled(part: parts.Scaled, at: Setting) -> Share:
    """One weight per feature; saves the branch output."""
    return Share(parameters=at.width, saved=at.tokens * at.width * at.item, calls=2, step_calls=2)


@formula(parts.Gated)
def gated(part: parts.Gated, at: Setting) -> Share:
    """One gate; saves the branch output."""
    return Share(parameters=1, saved=at.tokens * at.width * at.item, calls=3, step_calls=3)


@formula(parts.Reversible)
def reversible(part: parts.Reversible, at: Setting) -> Share:
    """Two streams swapped; saves nothing, as inputs are recomputed."""
    return Share(calls=4, step_calls=4)


@formula(parts.NoResidual)
def no_residual(part: parts.NoResidual, at: Setting) -> Share:
    """No cost."""
    return Share()


@formula(parts.Learned)
def learned(part: parts.Learned, at: Setting) -> Share:
    """One vector per position."""
    return Share(parameters=(at.context_length + part.offset) * at.width, calls=2, step_calls=2)


@formula(parts.Axial)
def axial(part: parts.Axial, at: Setting) -> Share:
    """One table per axis."""
    widths = part.widths or (at.width,) * len(part.shape)
    tables = sum(size * width for size, width in zip(part.shape, widths, strict=True))
    return Share(parameters=tables, calls=5 * len(widths), step_calls=5 * len(widths))


@formula(parts.Sinusoidal)
def sinusoidal(part: parts.Sinusoidal, at: Setting) -> Share:
    """No parameters; nothing saved."""
    return Share(calls=8, step_calls=8)


@formula(parts.LearnedSinusoidal)
def learned_sinusoidal(part: parts.LearnedSinusoidal, at: Setting) -> Share:
    """Two linear layers on sinusoids, once for all rows."""
    hidden, one = part.hidden or at.width, replace(at, batch=1)
    kept = (part.activation in _KEEPS_INPUT) * at.length * hidden * at.item
    maps = linear(at.width, hidden, True, one) + linear(hidden, at.width, True, one)
    return replace(maps, matrices=0) + Share(saved=kept, calls=9, step_calls=9)


@formula(parts.NoPositions)
def no_positions(part: parts.NoPositions, at: Setting) -> Share:
    """No cost."""
    return Share()


@formula(Text)
def text(part: Text, at: Setting) -> Share:
    """Token and type tables, position embeddings and norm; dropout saves its mask."""
    width = at.width if part.join == "add" else at.width // 2
    drawn = at.tokens * at.width * FLOAT if part.dropout else 0
    tables = (at.vocab_size + part.types + part.query) * width
    joined = share(part.positions, replace(at, width=width)) + share(part.norm, at)
    return Share(parameters=tables, saved=drawn, calls=12, step_calls=12) + joined
