"""Mixtures of experts in published configs: config keys, layers that have experts, and tensor names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from qkv.interop.families.common.activations import INWARD
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.spec.branches import GatedFeedForward
from qkv.spec.model import Block, Model
from qkv.spec.models.surgery import shortest_pattern
from qkv.spec.position_wise.experts import MixtureOfExperts
from qkv.system.errors import UserError

OURS = "blocks.{layer}.branches.1.body."
DENSE, SPARSE = "dense", "sparse"
_READERS: Mapping[str, Callable[[Config, str], Any]] = {
    "num_experts": Config.size,
    "top_k": Config.integer,
    "hidden": Config.size,
    "num_shared": Config.integer,
    "shared_hidden": Config.size,
    "normalised": Config.flag,
    "scale": Config.number,
    "groups": Config.integer,
    "top_groups": Config.integer,
    "limit": Config.number,
    "jitter": Config.number,
}
_REQUIRED = ("num_experts", "top_k", "hidden")
IGNORED_CONFIG: Reasons = {
    **dict.fromkeys(
        ("router_aux_loss_coef", "router_jitter_noise", "aux_loss_alpha", "seq_aux"), "training of the router"
    ),
    "output_router_logits": "output format of a call",
    **dict.fromkeys(
        ("num_nextn_predict_layers", "num_mtp_layers"), "number of multi-token prediction heads, which are not loaded"
    ),
}


class SparseLayers(NamedTuple):
    """Layers of a config that have experts.

    ``read`` returns a list of one bool per layer, True for experts; ``write`` returns the config keys of such a list.
    """

    read: Callable[[Config], list[bool]]
    write: Callable[[Sequence[bool]], dict[str, Any]]


EVERY = SparseLayers(lambda config: [True] * config.layers("num_hidden_layers"), lambda sparse: {})
"""Experts in every layer."""


def after_first(key: str = "first_k_dense_replace") -> SparseLayers:
    """Return the layers of a family whose first layers have no experts; ``key``: config key of their number."""
    return SparseLayers(
        lambda config: _from(config, config.integer(key)), lambda sparse: {key: [*sparse, True].index(True)}
    )


def _from(config: Config, first: int) -> list[bool]:
    return [layer >= first for layer in range(config.layers("num_hidden_layers"))]


def _by_step(config: Config) -> list[bool]:
    layers, step = config.layers("num_hidden_layers"), config.integer("decoder_sparse_step", 1)
    alone = config.items("mlp_only_layers")
    if step < 1:
        raise UserError(f"{config.source}: decoder_sparse_step is {step}, but it should be at least 1")
    return [layer not in alone and (layer + 1) % step == 0 for layer in range(layers)]


def _step_keys(sparse: Sequence[bool]) -> dict[str, Any]:
    return {"decoder_sparse_step": 1, "mlp_only_layers": [i for i, one in enumerate(sparse) if not one]}


BY_STEP = SparseLayers(_by_step, _step_keys)
"""Experts in each layer whose number, from 1, ``decoder_sparse_step`` divides, except ``mlp_only_layers``."""


def listed(first: int, key: str = "") -> SparseLayers:
    """Return the layers of a family that lists them in ``mlp_layer_types``: dense ones and sparse ones.

    Without that key, all layers after the first have experts: after as many as ``key`` says, by default ``first``.
    """

    def read(config: Config) -> list[bool]:
        dense = config.integer(key, first) if key else first
        layers, kinds = config.layers("num_hidden_layers"), config.items("mlp_layer_types")
        if not kinds:
            return _from(config, dense)
        if len(kinds) == layers and set(kinds) <= {DENSE, SPARSE}:
            return [kind == SPARSE for kind in kinds]
        raise UserError(
            f"{config.source}: mlp_layer_types is {kinds}, but it should name {DENSE} or {SPARSE} for {layers} layers"
        )

    return SparseLayers(read, lambda sparse: {"mlp_layer_types": [SPARSE if one else DENSE for one in sparse]})


BY_KIND = listed(1, "first_k_dense_replace")
"""Experts where ``mlp_layer_types`` is "sparse"; without that key, after the first ``first_k_dense_replace`` layers."""


@dataclass(frozen=True)
class ExpertKeys:
    """Mixture of experts of a family.

    ``keys``: field of the spec -> config key. ``fixed``: values of other fields. ``places``: layers that have experts.
    """

    keys: Mapping[str, str]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    places: SparseLayers = EVERY

    def spec(self, config: Config, model: Model) -> Model:
        """Return ``model`` with experts instead of the feed-forward network in the layers that have experts."""
        part, sparse = self.part(config), self.places.read(config)
        blocks = [
            block.changed(branches=(*block.branches[:1], part)) if one else block
            for block, one in zip(model.layers, sparse, strict=True)
        ]
        return model.changed(blocks=shortest_pattern(blocks))

    def part(self, config: Config) -> MixtureOfExperts:
        """Build the mixture of experts of a config. Raises ``UserError``."""
        keys = {name: key for name, key in self.keys.items() if name in _REQUIRED or config.has(key)}
        fields = {name: _READERS[name](config, key) for name, key in keys.items()}
        activation = {"activation": config.word("hidden_act", "silu", INWARD)}
        return MixtureOfExperts(**{**activation, **fields, **self.fixed})

    def config(self, spec: Model, rest: Callable[[Model], dict[str, Any] | None]) -> dict[str, Any] | None:
        """Return the config keys of ``spec``; None if its layers have different experts.

        ``rest``: function that returns the config keys of the model with a feed-forward network instead of experts.
        """
        several = [_experts(block) for block in spec.layers]
        first = next((part for part in several if part is not None), None)
        if first is None or any(part not in (None, first) for part in several):
            return None
        plain = [block for block, part in zip(spec.layers, several, strict=True) if part is None]
        single = GatedFeedForward(hidden=first.expert(spec.width).hidden, activation=first.activation)
        network = plain[0].branches[1] if plain and len(plain[0].branches) == 2 else single
        dense = [
            block if part is None else block.changed(branches=(*block.branches[:1], network))
            for block, part in zip(spec.layers, several, strict=True)
        ]
        config = rest(spec.changed(blocks=tuple(dense)))
        sparse = [part is not None for part in several]
        return None if config is None else {**config, **self.places.write(sparse), **self._written(first, spec.width)}

    def _written(self, part: MixtureOfExperts, width: int) -> dict[str, Any]:
        whole = part.canonical(width)
        values = {name: getattr(whole, name) for name in self.keys}
        if "num_shared" in values and "shared_hidden" not in values and whole.shared_hidden and whole.hidden:
            values["num_shared"] = whole.shared_hidden // whole.hidden
        return {self.keys[name]: value for name, value in values.items()}


def _experts(block: Block) -> MixtureOfExperts | None:
    match block.branches:
        case (_, MixtureOfExperts() as part):
            return part
        case _:
            return None


def names(
    place: str,
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    router: str = "gate",
    bias: str = "gate.e_score_correction_bias",
    shared: str = "shared_experts",
) -> tuple[NameRule, ...]:
    """Return the name table of experts.

    ``place``: published name of the branch; ``parts``: names of gate, up and down in an expert; ``router``, ``bias``
    (of the router's choice), ``shared``: published names of these parts.
    """
    expert, beside = f"{place}.experts.{{expert}}.", f"{place}.{shared}."
    gate, up, down = parts
    return (
        NameRule(OURS + "experts.{expert}.gate_up.weight", (f"{expert}{gate}.weight", f"{expert}{up}.weight"), PAIR),
        NameRule(OURS + "experts.{expert}.down.weight", f"{expert}{down}.weight"),
        NameRule(OURS + "router.weight", f"{place}.{router}.weight"),
        NameRule(OURS + "balance.bias", f"{place}.{bias}"),
        NameRule(OURS + "shared.gate_up.weight", (f"{beside}gate_proj.weight", f"{beside}up_proj.weight"), PAIR),
        NameRule(OURS + "shared.down.weight", f"{beside}down_proj.weight"),
        NameRule(OURS + "shared_gate.weight", f"{place}.shared_expert_gate.weight"),
    )


MLP = "model.layers.{layer}.mlp"
"""Published prefix of a layer's second branch."""
