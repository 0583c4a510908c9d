"""Functions that the compiler leaves alone."""

from __future__ import annotations

import subprocess
import sys

import torch

from qkv.ops.selection.untraced import untraced


def test_the_compiler_breaks_its_graph_at_the_function() -> None:
    seen: list[bool] = []

    @untraced("it looks at what runs it")
    def doubled(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.compiler.is_compiling())
        return 2 * x

    compiled = torch.compile(lambda x: doubled(x + 1) + 1, backend="eager")
    assert [float(compiled(torch.tensor(float(i)))) for i in range(3)] == [3.0, 5.0, 7.0]
    assert seen == [False] * 3


def test_reading_a_model_imports_no_compiler() -> None:
    """It takes a second, which every command would pay."""
    code = "import sys; import qkv.runs.run, qkv.generation.text; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
