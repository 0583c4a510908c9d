"""Odd input to every command: ``python -m tests.fuzz.commands``.

``--only evaluate`` takes some commands, ``--show`` prints every answer.

Each option and argument of each command line in turn is replaced by paths, numbers and texts that nobody should give,
and each file of a run and of a published folder is damaged before every command that reads it. A command must end
within a time limit with code 0, or with code 2 and one sentence; it must leave no file half-written, and nothing where
it failed to write.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, get_type_hints

from tests.cli.tables import write_tables
from tests.fuzz.odd import DAMAGES, FILES, NUMBERS, OUTPUTS, OVERRIDES, PATHS, RUNS, TEXT, TEXTS

RECIPE = """\
name: tiny
data: {source: text.txt, tokenizer: characters}
model: {width: 16, context_length: 16, blocks: [{branches: [attention(2), feed_forward]}]}
training: {steps: 2, batch_size: 2, schedule: constant, validation: {every: 2, batches: 2}}
sample: {max_new_tokens: 4}
"""
SHORT = (
    "training.steps=2",
    "training.validation.every=2",
    "model.width=16",
    "model.num_layers=1",
    "training.minutes=null",
)
ALARM = 3
"""Exit code of qkv health if something is wrong with the run."""
LINES: dict[str, tuple[str, ...]] = {
    "train": ("tiny.yaml", "--out", "out"),
    "train classify": (
        "classify",
        "--data",
        "reviews.csv",
        "--text",
        "review",
        "--label",
        "stars",
        "--out",
        "out",
        *SHORT,
    ),
    "train translate": ("translate", "--source", "a.txt", "--target", "b.txt", "--out", "out", *SHORT),
    "train tag": ("tag", "--data", "names.conll", "--out", "out", *SHORT),
    "train answer": ("answer", "--data", "squad.json", "--out", "out", *SHORT),
    "train regress": ("regress", "--data", "prices.csv", "--out", "out", *SHORT),
    "train transcribe": ("transcribe", "--data", "songs.jsonl", "--out", "out", *SHORT),
    "train finetune": ("finetune", "--from", "lm", "--data", "reviews.csv", "--adapt", "head", "--out", "out", *SHORT),
    "predict": ("stars", "a good film"),
    "predict data": ("stars", "--data", "reviews.csv", "--out", "out.csv"),
    "generate": ("lm", "the", "--max-new-tokens", "4", "--no-stream"),
    "generate ids": ("hf", "--ids", "1 2", "--max-new-tokens", "4"),
    "chat": ("lm", "the fox", "--max-new-tokens", "4"),
    "ask": ("lm", "the fox", "--template", "{text} {label}", "--option", "dog", "--option", "fox"),
    "ask data": ("lm", "--data", "reviews.csv", "--template", "{review} {label}", "--column", "label=stars"),
    "quantize": ("lm", "out"),
    "bench": ("lm", "--batch", "1", "--prompt", "4", "--precision", "fp32", "--new", "2", "--repeats", "1"),
    "serve": ("lm", "--host", "203.0.113.1", "--pictures", "lm"),  # an address of no machine, so that it ends
    "evaluate": ("lm",),
    "evaluate data": ("stars", "--data", "reviews.csv", "--report", "out.html"),
    "record": ("lm", "tiny.yaml"),
    "recipes": ("sorting",),
    "compare": ("tiny.yaml", "plain", "gru: blocks.*.mixer=gru", "--seeds", "2", "--rates", "1", "--out", "out"),
    "compare-runs": ("lm", "stars", "--report", "out.html"),
    "embed": ("lm", "the fox", "--out", "out.npy"),
    "embed published": ("hf", "the fox"),
    "search": ("lm", "text.txt", "the fox"),
    "search published": ("hf", "text.txt", "the fox"),
    "transcribe": ("lm", "text.txt", "--format", "srt"),
    "say": ("lm", "the fox", "--out", "out.wav"),
    "compress": ("lm", "text.txt", "--out", "out.npz"),
    "rerank": ("lm", "the fox", "a dog", "text"),
    "rerank published": ("hf", "the fox", "--data", "text.txt"),
    "health": ("lm", "--no-page"),
    "inspect": ("lm", "the fox", "--views", "answers,attention", "--over", "text.txt", "--out", "out.html"),
    "explain": ("lm", "the fox", "--out", "out.html"),
    "subleq": ("add", "--input", "x=3", "--bits", "6", "--out", "out.html"),
    "particles": ("--count", "4", "--time", "1", "--out", "out.html"),
    "show": ("chats.jsonl", "--from", "lm", "--chat-template", "chat.jinja", "--out", "out.html"),
    "cost": ("tiny.yaml",),
    "why": ("tiny.yaml",),
    "load": ("hf",),
    "export": ("lm", "--out", "out", "--no-check"),
    "swap": ("lm", "blocks.0.mixer=gru", "--heal", "0", "--out", "out"),
    "where": ("blocks.0.branches.1.body.up.weight", "lm"),
    "tokenizer train": ("train", "text.txt", "--vocab-size", "300", "--out", "out.json"),
    "tokenizer show": ("show", "lm/tokenizer.json", "the fox"),
    "fixtures": ("lm", "--out", "out.safetensors"),
    "fixtures published": ("hf", "--text", "the fox"),
    "info": ("lm",),
    "accept": ("lm",),
    "schema": ("model",),
    "demo": (
        "--out",
        "out",
        "data.source=text.txt",
        "data.tokenizer=characters",
        *SHORT,
        "model.width=20",
        "model.context_length=16",
    ),
}
FILES_NAMED = ("--data", "--validation", "--test", "--from")
"""Options that name a file to read."""
LIMIT = 40
"""Seconds that a command may take."""


class Answer(NamedTuple):
    """How one command line ended; ``code`` None: not within the limit."""

    code: int | None
    out: str
    err: str
    seconds: float


def make(folder: Path) -> None:
    """Valid input for every line of ``LINES``, and odd files beside it."""
    (folder / "text.txt").write_text(TEXT)
    (folder / "tiny.yaml").write_text(RECIPE)
    write_tables(folder)
    turns = [{"role": role, "content": "the fox"} for role in ("user", "assistant")]
    (folder / "chats.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    (folder / "chat.jinja").write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    from qkv.cli.main import main

    with quiet(folder / "made.log"):
        assert main(["train", "tiny.yaml", "--out", "lm"]) == 0
        assert main(["train", *LINES["train classify"][:-7], "--out", "stars", *SHORT]) == 0
        assert main(["export", "lm", "--out", "hf", "--no-check"]) == 0
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    (folder / "folder").mkdir()
    os.mkfifo(folder / "fifo")
    (folder / "broken").symlink_to("nowhere")
    (folder / "circle").symlink_to("circle")


@contextlib.contextmanager
def quiet(log: Path) -> Iterator[None]:
    """What is printed goes to a file."""
    with log.open("w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        yield


def warm_up() -> None:
    """Import here what commands import, so that their processes need not."""
    from qkv.cli.main import main

    with quiet(Path("made.log")):
        for name in ("evaluate", "predict", "embed", "cost", "load", "where", "info", "tokenizer show"):
            main([name.split()[0], *LINES[name]])
    for path in ("embed.npy", "out.npy"):
        Path(path).unlink(missing_ok=True)


def lines(asked: Sequence[str], most: int | None, seed: int) -> Iterator[tuple[str, list[str], Callable[[], object]]]:
    """(what is odd, command line, what is done before) for each command that is asked for."""
    for name, base in LINES.items():
        if name in asked or name.split()[0] in asked or not asked:
            command = [name.split()[0], *base]
            yield "nothing", command, lambda: None
            found = [*replaced(command), *damaged(command)]
            yield from found if most is None else random.Random(seed).sample(found, min(most, len(found)))


def replaced(command: list[str]) -> Iterator[tuple[str, list[str], Callable[[], object]]]:
    """An option added with an odd value, or an argument replaced by one."""
    for place in range(1, len(command)):
        is_option = command[place].startswith("-")
        odd = OUTPUTS if command[place - 1] in ("--out", "--report") else _odd_for(command[place])
        for value in () if is_option or command[place] in SHORT else dict.fromkeys(odd):
            yield repr(value[:40]), [*command[:place], value, *command[place + 1 :]], lambda: None
    for option, kind in options(command[0]):
        values = {"number": NUMBERS, "flag": ()}.get(kind, (*TEXTS, *PATHS) if option in FILES_NAMED else TEXTS[:8])
        for value in OUTPUTS if option in ("--out", "--report") else values:
            yield f"{option} {value[:40]!r}", [*command, option, value], lambda: None
        if kind == "flag":
            yield option, [*command, option], lambda: None
    for change in OVERRIDES:
        yield change[:40], [*command, change], lambda: None


def _odd_for(value: str) -> tuple[str, ...]:
    if value in ("lm", "hf", "stars"):
        return RUNS
    return (*PATHS, "", "x" * 5000, "\ud800") if Path("../made", value).exists() else (*TEXTS, *NUMBERS)


def options(name: str) -> list[tuple[str, str]]:
    """Options of a command, and the kind of their values: "number", "flag" or "text"."""
    import importlib

    from qkv.cli.main import ROOMS

    room = next(room for room, commands in ROOMS.items() if name in commands)
    name = name.replace("-", "_")
    command = getattr(importlib.import_module(f"qkv.cli.{room}.{name}"), f"{name}_command")
    found = []
    for parameter, hint in get_type_hints(command, include_extras=True).items():
        said = next(
            (extra for extra in getattr(hint, "__metadata__", ()) if type(extra).__name__ == "OptionInfo"), None
        )
        if said is not None and parameter != "probe":
            words = [word.split("/")[0] for word in (said.default, *(said.param_decls or ())) if isinstance(word, str)]
            option = next((word for word in words if word.startswith("--")), f"--{parameter.replace('_', '-')}")
            named = str(hint.__origin__)
            found.append(
                (option, "flag" if "bool" in named else "number" if "int" in named or "float" in named else "text")
            )
    return found


def damaged(command: list[str]) -> Iterator[tuple[str, list[str], Callable[[], object]]]:
    """A damaged file in a run or a published folder that the command line names."""
    for folder in {"lm", "hf", "stars"} & set(command):
        for path in sorted(path for path in Path("../made", folder).rglob("*") if path.is_file()):
            for how, damage in DAMAGES.items():
                target = path.relative_to("../made")
                yield f"{target}: {how}", command, lambda damage=damage, target=target: damage(target)


def call(command: list[str], limit: float = LIMIT) -> Answer:
    """``qkv`` in a process of its own, with what is imported here."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        from qkv.cli.main import main

        code = 70
        with contextlib.suppress(BaseException):
            for number, name in ((1, "../stdout"), (2, "../stderr")):
                os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            code = main(command)
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    status = None
    while status is None and time.monotonic() - began < limit:
        found, state = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(state) if found else time.sleep(0.002)
    if status is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    out, err = (Path("..", name).read_text(errors="replace") for name in ("stdout", "stderr"))
    return Answer(status, out, err, time.monotonic() - began)


def wrong(answer: Answer, before: dict[str, bytes], after: dict[str, bytes]) -> str:
    """What is wrong with an answer, or ""."""
    last = answer.err.strip().splitlines()[-1:] or [""]
    if answer.code is None:
        return "it does not end"
    if answer.code not in (0, 2, ALARM):
        return f"code {answer.code}"
    if answer.code == 2 and not last[0].startswith("qkv: "):
        return "no sentence"
    if "Traceback" in answer.err or "Warning" in answer.err:
        return "a traceback or a warning"
    if answer.code == 2 and len(last[0]) > 900:
        return f"a sentence of {len(last[0])} characters"
    if any(name.endswith(".partial") or "/.partial" in name for name in after):
        return "something half-written"
    lost = [name for name, content in before.items() if answer.code == 2 and after.get(name) != content]
    new = [name for name in after if name not in before and answer.code == 2 and not name.startswith(("runs/", "out/"))]
    if lost or new:
        return f"changed {', '.join(sorted(lost)[:4])}; made {', '.join(sorted(new)[:4])}"
    return ""


def contents(folder: Path) -> dict[str, bytes]:
    """Every file, except where choices and data are kept."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description="Odd input to every command.")
    parser.add_argument("--only", nargs="+", default=[], metavar="COMMAND")
    parser.add_argument("--full", type=Path, metavar="FOLDER", help="a folder on a file system that is full")
    parser.add_argument(
        "--count", type=int, metavar="N", help="so many of each command line's, drawn at random; default: all"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--made", type=Path, metavar="FOLDER", help="valid input of an earlier call")
    parser.add_argument("--show", action="store_true", help="print every answer")
    return parser.parse_args()


def main() -> int:
    """Try everything; the exit code is 1 if there is a fault."""
    import torch  # noqa: F401

    asked = arguments()
    faults = count = 0
    with tempfile.TemporaryDirectory() as place:
        top = Path(place)
        os.environ["QKV_CACHE"], os.environ["HF_HUB_OFFLINE"] = str(top / "cache"), "1"
        for name in ("made", "work"):
            (top / name).mkdir()
        os.chdir(top / "made")
        if asked.made:
            shutil.copytree(asked.made, ".", symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns("fifo"))
        else:
            make(Path())
        warm_up()
        os.chdir(top / "work")
        for trial in lines(asked.only, asked.count, asked.seed):
            os.chdir(top)
            copy_made(asked.full)
            os.chdir("work")
            faults, count = faults + tried(*trial, show=asked.show), count + 1
        os.chdir("/")
    print(f"{count} command lines, {faults} faults")
    return 1 if faults else 0


def tried(odd: str, command: list[str], prepare: Callable[[], object], show: bool) -> bool:
    """True if the command line is answered wrongly, which is printed."""
    prepare()
    before = contents(Path())
    answer = call(command)
    found = wrong(answer, before, contents(Path()))
    if found or show:
        said = (answer.err.strip().splitlines() or [""])[-1][:400]
        print(
            f"{found or 'fine'} | {odd} | {answer.seconds:.1f} s | qkv {' '.join(command)[:200]!r}\n"
            f"    {answer.code}: {said}",
            flush=True,
        )
    return bool(found)


def copy_made(full: Path | None) -> None:
    """``made`` again as ``work``; pipes cannot be copied, and are made."""
    shutil.rmtree("work")
    shutil.copytree(
        "made", "work", symlinks=True, ignore=lambda folder, names: [name for name in names if name == "fifo"]
    )
    os.mkfifo("work/fifo")
    if full:
        Path("work/full").symlink_to(full)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads do not survive a fork
    sys.exit(main())
