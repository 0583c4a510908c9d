"""Character-level language model trained on a few lines of text in a few seconds.

python examples/char_model.py
"""

import tempfile
from pathlib import Path

import qkv
from qkv.spec.data import Data
from qkv.spec.training import AdamW, Cosine, Training, Validation

RHYME = """\
The cat sat on the mat and looked at the rat.
The rat ran to the hat and hid from the cat.
The bat hung from the beam and looked at the hat.
The cat ran to the hat and sat on the rat.
"""

# A recipe defines a run completely: text, tokenizer, model, training. It is data, and survives a round trip through
# YAML. The model is given here in the form used in YAML files.
model = qkv.Model.parse(
    {
        "width": 64,
        "num_layers": 2,
        "context_length": 64,
        "frontend": {"kind": "text", "positions": "none"},
        "blocks": [{"branches": ["attention(4, relative=rope)", "gated_feed_forward"], "norm": "rms_norm"}],
        "norm": "rms_norm",
    }
)
training = Training(
    steps=120,
    batch_size=16,
    optimizer=AdamW(lr=5e-3),
    schedule=Cosine(warmup=10),
    validation=Validation(every=40, batches=None),
    seed=0,
)

with tempfile.TemporaryDirectory() as folder:
    text = Path(folder) / "rhyme.txt"
    text.write_text(RHYME * 20, encoding="utf-8")
    recipe = qkv.Recipe(name="rhyme", data=Data(source=str(text)), model=model, training=training)

    # The run folder contains the recipe, weights, tokenizer, metrics of every step and a report. Called again, train
    # resumes from the last checkpoint.
    run = qkv.train(recipe, out=Path(folder) / "run")
    print("the run folder contains", ", ".join(sorted(path.name for path in run.folder.iterdir())))

    found = qkv.evaluate(run)
    print(f"held-out loss {found['loss']:.2f} nats, {found['bits_per_character']:.2f} bits per character")

    # The held-out last tenth repeats the rhyme, so a low loss only shows memorisation. Temperature 0 takes the most
    # probable character at each step.
    print("The bat" + qkv.generate(run, "The bat", max_new_tokens=200, temperature=0, stop=["\n"]))
