"""Block orders as graphs, recorded from a forward pass of real blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from making.pictures.sheet import NARROW, Picture, box, heading, line, written
from qkv.layers.branch import Branch
from qkv.layers.context import Context
from qkv.models.block import Block
from qkv.report.markup import Markup, tag
from qkv.spec.model import Block as BlockSpec

ORDERS = "pre", "post", "sandwich", "parallel"
BOX, GAP, HIGH = 70, 8, 24
ROUND = 9.0
"""Radius of sums and of the input."""
PITCH = HIGH + 18


@dataclass
class Node:
    """One operation: its name, and the nodes whose outputs it reads, the residual stream first."""

    name: str
    reads: list[Node] = field(default_factory=list)

    @property
    def row(self) -> int:
        """Longest path from the input."""
        return 1 + max((node.row for node in self.reads), default=-1)


def graph(order: str) -> list[Node]:
    """Operations of a block with two branches in the order of their calls, from the input to the output."""
    block = Block(BlockSpec.parse({"branches": ["attention(1)", "feed_forward(8)"], "order": order}), 8, "block")
    nodes, made, kept = [Node("x")], {}, []

    def named(path: str, module: nn.Module) -> str | None:
        if isinstance(module, Branch):
            return "attention" if "mask" in type(module.spec).model_fields else "feed-forward"
        leaf = path.rpartition(".")[2]
        return {"norm": "norm", "norm_after": "norm", "residual": "+"}.get(leaf) if "body" not in path else None

    def record(name: str, given: tuple[object, ...], out: object) -> None:
        tensors = [value for value in given if isinstance(value, Tensor)]
        node = Node(name, [made[id(t)] for t in tensors])
        result = out[0] if isinstance(out, tuple) else out
        kept.append(result)
        made[id(result)] = node
        nodes.append(node)

    for path, module in block.named_modules():
        if name := named(path, module):
            module.register_forward_hook(lambda _, given, out, name=name: record(name, given, out))
    x = torch.randn(1, 4, 8)
    made[id(x)] = nodes[0]
    block(x, Context(torch.arange(4)[None]))
    return nodes


def stream(nodes: list[Node]) -> list[Node]:
    """Nodes of the residual stream, from the output back to the input."""
    found = [nodes[-1]]
    while found[-1].reads:
        found.append(found[-1].reads[0])
    return found


def columns(nodes: list[Node]) -> dict[int, int]:
    """Column of each node, by ``id``: 0 for the stream, then one for each branch that runs beside another."""
    on_stream = stream(nodes)
    column = {id(node): 0 for node in on_stream}
    taken: set[tuple[int, int]] = set()
    for node in nodes:
        if id(node) not in column:
            place = 1
            while (place, node.row) in taken:
                place += 1
            column[id(node)] = place
            taken.add((place, node.row))
    return column


def half(node: Node) -> float:
    """Half of a node's height."""
    return ROUND if node.name in ("+", "x") else HIGH / 2


def places(nodes: list[Node], x: float, y: float) -> dict[int, tuple[float, float]]:
    """Centre of each node, by ``id``."""
    column = columns(nodes)
    first = ROUND + 4 if all(half(node) == ROUND for node in stream(nodes)) else BOX / 2
    after = first + (ROUND if first < BOX / 2 else BOX / 2) + GAP + BOX / 2
    across = {id(n): first if column[id(n)] == 0 else after + (column[id(n)] - 1) * (BOX + GAP) for n in nodes}
    return {id(n): (x + across[id(n)], y + n.row * PITCH + HIGH / 2) for n in nodes}


def _edges(nodes: list[Node], middle: dict[int, tuple[float, float]]) -> Iterator[Markup]:
    for node in nodes:
        x1, y1 = middle[id(node)]
        for source in node.reads:
            (x0, y0), start = middle[id(source)], half(source)
            if x0 == x1:
                yield line([(x0, y0 + start), (x1, y1 - half(node))])
            elif x0 < x1:  # leaves the stream below its source
                turn = y0 + start + 6
                yield line([(x0, turn), (x1, turn), (x1, y1 - half(node))])
            else:  # comes back to the stream
                yield line([(x0, y0 + start), (x0, y1), (x1 + half(node), y1)])


def _panel(order: str, x: float, y: float) -> Iterator[Markup]:
    nodes = graph(order)
    middle = places(nodes, x, y + 26)
    yield heading(order, x, y + 12)
    yield from _edges(nodes, middle)
    for node in nodes:
        cx, cy = middle[id(node)]
        if half(node) == ROUND:
            yield tag("circle", cx=cx, cy=cy, r=ROUND, style="fill:var(--paper);stroke:var(--muted);stroke-width:1.25")
            yield written(cx, cy + 4, node.name, 12, anchor="middle")
            continue
        colour = "hairline" if node.name == "norm" else "s0" if node.name == "attention" else "s1"
        yield box(cx - BOX / 2, cy - HIGH / 2, BOX, HIGH, colour)
        yield written(cx, cy + 4, node.name, 10.5, anchor="middle")


def told(order: str) -> str:
    """Operations of the block in words."""
    return f"{order}: " + ", ".join(node.name if node.name != "+" else "sum" for node in graph(order)[1:])


def orders(width: int) -> Picture:
    """All orders of a block with attention and a feed-forward network, from top to bottom."""
    across = 2 if width <= NARROW else 4
    pitch = width / across
    rows = [ORDERS[i : i + across] for i in range(0, len(ORDERS), across)]
    pieces, y = [], 0.0
    for row in rows:
        for i, order in enumerate(row):
            pieces += _panel(order, i * pitch, y)
        y += 26 + PITCH * (1 + max(node.row for order in row for node in graph(order))) + 4
    description = "The residual stream runs down on the left of each drawing. " + "; ".join(map(told, ORDERS)) + "."
    return Picture("Block orders", description, (width, y - 18), pieces)
