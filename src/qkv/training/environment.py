"""Environment of a run that affects the last digits of its results: versions, processor, threads, and the chosen
implementation of each op.

Ops measure which of their implementations is fastest, and the outcome can differ when training resumes. The choices are
therefore saved in the run folder as soon as they are made, and reused when training resumes in that folder.
"""

from __future__ import annotations

import json
import os
import platform
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from qkv.ops.selection.choices import ChoiceTable
from qkv.runs.storage.files import clear_errors
from qkv.system.files import write_file
from qkv.system.optional import PATHS, turned_off
from qkv.system.processor import processor_name
from qkv.system.world import ALONE, World

FILE = "surroundings.json"


class Environment:
    """Environment of a run: versions, processor, and the op implementations chosen in ``table``. Stored in ``folder``,
    so that a resumed run repeats results exactly.
    """

    def __init__(self, folder: Path, device: torch.device, table: ChoiceTable, world: World = ALONE):
        self.path, self.table, self._world = folder / FILE, table, world
        self.facts = {**facts(device), "processes": dict(world.mesh) or None}
        self._written = -1

    def adopt(self) -> str:
        """Make ops use the implementations that were chosen when the run was last started or resumed; return a warning
        if the environment has changed, else "".
        """
        warning, saved = self._world.lead(self._read)
        self.table.restore(saved)
        return warning

    def _read(self) -> tuple[str, list[dict[str, object]]]:
        """Read the saved environment; return (warning if it differs or is damaged, choices to restore)."""
        try:
            saved = json.loads(self.path.read_bytes())
            before, paths = dict(saved["facts"]), list(saved["paths"])
        except FileNotFoundError:
            return "", []
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return (
                f"{self.path} cannot be read, so the fastest implementations are measured anew; "
                "the losses may differ in their last digits from here on"
            ), []
        changed = [
            f"{name} {before.get(name)} before, {value} now"
            for name, value in self.facts.items()
            if before.get(name) != value
        ]
        if changed:
            reason = f"the environment has changed since the run was last started: {'; '.join(changed)}"
            return f"the losses may differ in their last digits from here on, because {reason}", []
        return "", paths

    def keep(self) -> None:
        """Save which implementation each op has chosen by measurement, if there are new choices since the last call."""
        count = len(self.table.choices)
        if count != self._written:
            self._world.lead(self._write)
            self._written = count

    def _write(self) -> None:
        with clear_errors(str(self.path)):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            content = {
                "facts": self.facts,
                "python": platform.python_version(),
                "date": date.today().isoformat(),
                "paths": self.table.snapshot(),
            }
            write_file(self.path, json.dumps(content, indent=1).encode())


def read_environment(folder: Path) -> dict[str, Any] | None:
    """Read the environment that was saved when the run was last started or resumed, with ``python`` and ``date``; None
    if missing. ``folder``: folder of the run's checkpoints.
    """
    try:
        saved = json.loads((folder / FILE).read_bytes())
        return {**saved["facts"], "python": saved["python"], "date": saved["date"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def facts(device: torch.device) -> dict[str, Any]:
    """Return the environment that affects the last digits of results: versions, processor, device and threads, by
    name.
    """
    return {
        "qkv": version("qkv"),
        "torch": torch.__version__,
        "processor": processor_name(),
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "limit of oneDNN": os.environ.get("ONEDNN_MAX_CPU_ISA"),
        "paths turned off": ", ".join(name for name in PATHS if turned_off(name)) or None,
        "device": device.type if device.type == "cpu" else torch.get_device_module(device).get_device_name(device),
        "threads": torch.get_num_threads(),
    }
