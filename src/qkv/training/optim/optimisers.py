"""Optimiser of a run: one or two torch optimisers with a common interface, and a state that only consists of named
tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from qkv.layers.branch import matrices
from qkv.parallel.shards import like, whole
from qkv.spec.register import implementation, implements
from qkv.spec.training import AdamW
from qkv.spec.training import Muon as MuonSpec
from qkv.spec.training import Optimizer as OptimizerSpec
from qkv.system.errors import UserError, nearest
from qkv.training.optim.muon import Muon

Named = list[tuple[str, nn.Parameter]]

REMEMBERED: dict[type[torch.optim.Optimizer], set[str]] = {
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
    Muon: {"momentum_buffer"},
}
"""Names of the state tensors of each optimiser class; loaded states are checked against them. Classes that are not
listed may use any name.
"""


class Optimizer:
    """Optimiser of a whole model: one or several torch optimisers, each for some of its parameters.

    ``state_dict`` maps ``parameter/quantity`` to a tensor, so that it can be stored in a safetensors file. It contains
    no learning rates, because the spec and the step number determine them.
    """

    def __init__(self, parts: Iterable[torch.optim.Optimizer], named: Named):
        self.parts = tuple(parts)
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in named}
        self._rates = [[group["lr"] for group in part.param_groups] for part in self.parts]

    def scale_rates(self, factors: Mapping[str, float]) -> None:
        """Multiply the learning rate of each parameter by its factor in ``factors``, parameter name -> factor (default
        1). Call before the first step.
        """
        for part in self.parts:
            part.param_groups[:] = [some for group in part.param_groups for some in self._by_factor(group, factors)]
        self._rates = [[group["lr"] for group in part.param_groups] for part in self.parts]

    def _by_factor(self, group: dict[str, Any], factors: Mapping[str, float]) -> list[dict[str, Any]]:
        members: dict[float, list[Tensor]] = {}
        for parameter in group["params"]:
            members.setdefault(factors.get(self.names[parameter], 1.0), []).append(parameter)
        return [{**group, "params": some, "lr": group["lr"] * factor} for factor, some in members.items()]

    def step(self, multiplier: float = 1.0) -> None:
        """Update the parameters once, with each group's learning rate multiplied by ``multiplier``."""
        for part, rates in zip(self.parts, self._rates, strict=True):
            for group, rate in zip(part.param_groups, rates, strict=True):
                group["lr"] = rate * multiplier
            part.step()

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for parameter in self.names:
            parameter.grad = None

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state tensors (such as moments) by name ``parameter/quantity``, without copying them; those in
        shards are gathered, by all processes.
        """
        return {
            f"{self.names[parameter]}/{quantity}": whole(value)
            for part in self.parts
            for parameter, remembered in part.state.items()
            for quantity, value in remembered.items()
        }

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the state tensors that ``state_dict`` returned. Raises UserError for a name or a shape that does not fit
        this model.
        """
        owners = {
            self.names[p]: (part, p) for part in self.parts for group in part.param_groups for p in group["params"]
        }
        states: dict[Tensor, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            name, _, quantity = key.rpartition("/")
            if name not in owners:
                raise UserError(
                    f"the checkpoint has an optimiser state {key!r}, but the model has no such parameter; "
                    f"{nearest(name, owners)}"
                )
            part, parameter = owners[name]
            if quantity not in REMEMBERED.get(type(part), {quantity}):
                quantities = ", ".join(sorted(REMEMBERED[type(part)]))
                raise UserError(
                    f"the optimiser state {key!r} in the checkpoint is of another optimiser: {type(part).__name__}, "
                    f"which updates this parameter, stores {quantities}; the run was started with another version or "
                    "recipe, so train it again in another folder"
                )
            if tensor.dim() and tensor.shape != parameter.shape:
                raise UserError(
                    f"the optimiser state {key!r} has the shape {list(tensor.shape)}, "
                    f"but its parameter has the shape {list(parameter.shape)}"
                )
            moved = tensor.to(parameter.device, copy=True)
            states.setdefault(parameter, {})[quantity] = like(moved, parameter) if tensor.dim() else moved
        for part in self.parts:
            part.state.clear()
        for parameter, remembered in states.items():
            owners[self.names[parameter]][0].state[parameter] = remembered


def build_optimizer(spec: OptimizerSpec, model: nn.Module) -> Optimizer:
    """Build the optimiser that ``spec`` describes for all trainable parameters of ``model``."""
    return implementation(spec, "qkv.training.optim")(spec, model)


@implements(AdamW)
def adamw(spec: AdamW, model: nn.Module) -> Optimizer:
    """Build AdamW (Loshchilov & Hutter 2019) for a model, with weight decay only on parameters of two or more axes."""
    named = _trainable(model)
    return Optimizer([_adamw(spec, named)], named)


@implements(MuonSpec)
def muon(spec: MuonSpec, model: nn.Module) -> Optimizer:
    """Build Muon for the weight matrices of all blocks (also those of encoder and latents), and AdamW for all other
    parameters: embeddings, head, norms, biases and convolution kernels.
    """
    named, inside = _trainable(model), matrices(model)
    maps, rest = _split(named, lambda _, p: p in inside)
    parts: list[torch.optim.Optimizer] = []
    if maps:
        parts.append(Muon([p for _, p in maps], spec))
    if rest:
        parts.append(_adamw(spec.others, rest))
    return Optimizer(parts, named)


def _adamw(spec: AdamW, named: Named) -> torch.optim.Optimizer:
    decayed, plain = _split(named, lambda _, p: p.ndim >= 2)
    groups = [
        {"params": [p for _, p in decayed], "weight_decay": spec.weight_decay},
        {"params": [p for _, p in plain], "weight_decay": 0.0},
    ]
    fused = all(p.device.type in {"cpu", "cuda", "mps", "xpu"} for _, p in named)
    return torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=spec.eps, fused=fused
    )


def _trainable(model: nn.Module) -> Named:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def _split(named: Named, belongs: Callable[[str, nn.Parameter], bool]) -> tuple[Named, Named]:
    return [(n, p) for n, p in named if belongs(n, p)], [(n, p) for n, p in named if not belongs(n, p)]
