"""Language modelling: each position predicts the token after it."""

from __future__ import annotations

import math

from torch import Tensor

from qkv.data.batch import Batch
from qkv.layers.context import Tap
from qkv.models.transformer import Transformer
from qkv.spec.recipe import NextToken
from qkv.tasks.cross_entropy import chunked_cross_entropy, cross_entropy
from qkv.tasks.task import Scale, Task, register

# Up to 64 MB of fp32 logits at once are faster than shares of them; above, shares of at least 256 rows cost no time.
_MOST_LOGITS = 1 << 24
_SHARE = 1 << 23
_FEWEST_ROWS = 256


@register(NextToken)
class NextTokenTask(Task):
    """-Σ log p(x_i | x_<i) over the targets that are not -100."""

    def __init__(self, spec: NextToken):
        self.spec = spec

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        """The sum in nats. ``tap`` sees what each branch computes."""
        where = {"lengths": batch.lengths, "segments": batch.segments, "tap": tap}
        targets, vocab = batch.targets.flatten(), model.head.weight.shape[0]
        if targets.numel() * vocab <= _MOST_LOGITS:
            logits, _ = model(batch.ids, **where)
            return cross_entropy(logits.flatten(0, 1), targets)
        hidden, _ = model.features(batch.ids, **where)
        rows = max(_FEWEST_ROWS, _SHARE // vocab)
        return chunked_cross_entropy(hidden.flatten(0, 1), model.head, targets, rows)

    def metrics(self, nats: float, count: int, scale: Scale) -> dict[str, float]:
        """Loss (nats a token), perplexity = exp(loss), and bits a token, a character and a byte of the text.

        ``scale`` says how many characters and bytes a token stands for on average, so that tokenizers can be compared.
        """
        loss = nats / count if count else math.nan
        bits = loss / math.log(2)
        return {
            "loss": loss,
            "perplexity": math.exp(loss) if loss < 700 else math.inf,
            "bits_per_token": bits,
            "bits_per_character": bits / scale.characters_per_token,
            "bits_per_byte": bits / scale.bytes_per_token,
        }
