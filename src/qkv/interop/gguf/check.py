"""Verification of a GGUF file: open it with llama.cpp, if installed, and compare its logits with qkv's."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import torch

from qkv.interop.gguf.peer import logits_of
from qkv.interop.load import load_published
from qkv.system.errors import UserError

TOLERANCE = {"F32": 5e-3, "F16": 0.05, "BF16": 0.15, "Q8_0": 0.3, "Q4_0": 0.3}
"""Tolerance by type of the matrices: maximum difference / maximum logit.

llama.cpp reads activation functions from an fp16 table, and rounds the inputs of products to the type of the matrices,
or to 8 bits.
"""
_LENGTH = 32


@torch.no_grad()
def compare_gguf(file: Path, kind: str) -> str:
    """Compare the logits that llama.cpp and qkv compute from ``file`` on a few random ids.

    kind: type of the file's matrices, a key of ``TOLERANCE``. Return a clause for the user: the largest difference, or
    why nothing was compared. llama.cpp runs in a separate process, because a failed assertion in it ends the process.
    Raises ``UserError`` if the logits differ.
    """
    if importlib.util.find_spec("llama_cpp") is None:
        return "not compared, because the package llama-cpp-python is not installed"
    model = load_published(file, "fp32").model
    room = min(_LENGTH, model.spec.position_limit or model.spec.context_length)
    ids = torch.randint(0, model.spec.vocab_size or 1, (room,), generator=torch.Generator().manual_seed(0))
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            theirs = torch.from_numpy(pool.submit(logits_of, file, ids.tolist()).result())
    except (BrokenProcessPool, UserError, RuntimeError) as error:
        return f"not compared, because the installed llama.cpp cannot open it: {str(error).splitlines()[0]}"
    ours = model(ids[None])[0][0]
    error = float("inf") if ours.shape != theirs.shape else float((ours - theirs).abs().max() / ours.abs().max())
    if not error <= TOLERANCE[kind]:
        raise UserError(
            f"llama.cpp computes different logits from the file (they differ by {error:.2g} of the largest logit), so "
            "nothing was written; please report it with the spec of the model, or use --no-check to write it anyway"
        )
    same = int((ours.argmax(-1) == theirs.argmax(-1)).sum()) / len(ours)
    differs = f"differs by {error:.1e} of the largest logit"
    return f"compared with llama.cpp: {differs}; {same:.0%} of the most likely tokens are equal"
