"""What holds for every test: uninitialised memory is poison, no network, caches in a temporary folder, one thread."""

from __future__ import annotations

import gc
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic algorithms on a GPU ask for it
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")  # threads for each tiny model take longer than its tensors

import torch

from qkv.ops.selection import timing

settings.register_profile(
    "qkv",
    deadline=None,
    max_examples=15,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.load_profile("qkv")

# Without pytest's own plugin for logs (see ``logged``), other libraries would warn among what a test prints.
logging.getLogger().addHandler(logging.NullHandler())

# Under xdist every worker has the cores of one; alone, one thread keeps sums in one order on every machine.
torch.set_num_threads(1)

# Fill what torch.empty and its kin hand out with NaN (integers: largest value), so that a read before a write shows.
torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = True

# A shell starts its background jobs with Ctrl-C ignored, and programs that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def cache_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package keeps what it compiles and measures, empty at the start of a session; workers share it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if hasattr(request.config, "workerinput") else base) / "cache"
    folder.mkdir(exist_ok=True)
    os.environ["QKV_CACHE"] = str(folder)
    return folder


@pytest.fixture(autouse=True, scope="session")
def short_races() -> Iterator[None]:
    """Candidates of a choice run, as each must work, but hardly race: tests that need a winner say which one it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "race", partial(timing.race, repeats=1))
        patch.setattr(timing, "duel", partial(timing.duel, pairs=1))
        yield


@pytest.fixture
def nothing_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every optional path is a candidate, whatever is turned off for the other tests."""
    monkeypatch.delenv("QKV_WITHOUT", raising=False)


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """Messages of warnings and errors that any logger is given.

    pytest's own plugin for this is turned off: around each test it walks through the loggers of all modules six times,
    which takes longer than most tests.
    """
    found = list[str]()
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    yield found
    logging.getLogger().removeHandler(handler)


def pytest_collectstart() -> None:
    """Tests and imports live to the end: no collection among them, now or later, finds anything."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Collect among what the tests leave, and less often than after every 700 objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests on real data run where ``QKV_DATA`` names its folder."""
    if item.get_closest_marker("data") and not os.environ.get("QKV_DATA"):
        pytest.skip("QKV_DATA names no folder of real data")


class NetworkBlocked(RuntimeError):
    """A test reached for another machine."""


def _is_local(address: Any) -> bool:
    if not isinstance(address, tuple):
        return True  # a path of this machine
    host = address[0]
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True, scope="session")
def no_network(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Connections and look-ups beyond this machine raise; no client reads certificates, which takes 20 ms each time."""
    patch = pytest.MonkeyPatch()
    patch.delenv("SSL_CERT_FILE", raising=False)
    patch.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("certificates")))

    def guarded(real: Any) -> Any:
        def connect(self: socket.socket, address: Any) -> Any:
            if not _is_local(address):
                raise NetworkBlocked(f"tests have no network, but {address!r} was asked for")
            return real(self, address)

        return connect

    def look_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name is not None and not _is_local((name, 0)):
            raise NetworkBlocked(f"tests have no network, but {name!r} was looked up")
        return real_look_up(host, *args, **kwargs)

    real_look_up = socket.getaddrinfo
    patch.setattr(socket.socket, "connect", guarded(socket.socket.connect))
    patch.setattr(socket.socket, "connect_ex", guarded(socket.socket.connect_ex))
    patch.setattr(socket, "getaddrinfo", look_up)
    yield
    patch.undo()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What the contract tests have to show: how many checks each mixer passed, and what noticed each fault."""
    properties = [
        item for report in terminalreporter.stats.get("passed", []) for item in getattr(report, "user_properties", [])
    ]
    contracts: dict[str, set[tuple[str, str]]] = {}
    for kind, sample, check in (value for name, value in properties if name == "contract"):
        contracts.setdefault(kind, set()).add((sample, check))
    mutants = sorted({tuple(value) for name, value in properties if name == "mutant"})
    if contracts:
        terminalreporter.section("state contract")
    for kind, passed in contracts.items():
        samples, checks = ({pair[i] for pair in passed} for i in (0, 1))
        terminalreporter.line(
            f"{kind}: {len(passed)} passed, {len(samples)} specs under {len(checks)} checks "
            f"({', '.join(sorted(checks))})"
        )
    if mutants:
        terminalreporter.section(f"{len(mutants)} faults noticed")
    for fault, killer in mutants:
        terminalreporter.line(f"{fault}: {killer}")


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text for small runs."""
    from tests.training.kill_storm import write_text

    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="session")
def straight(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    from tests.training.kill_storm import STEPS, ignore, small_recipe

    from qkv.training.loop import train

    folder = tmp_path_factory.mktemp("runs") / "straight"
    train(small_recipe(text, STEPS), folder, on_event=ignore)
    return folder
