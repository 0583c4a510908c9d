"""A language model of characters, from a few lines of text to new ones, in a few seconds.

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

# A recipe is everything that decides a run: text, tokenizer, model, training. It is data; written to YAML and read back
# it is the same recipe. The model is given here in the form that stands in YAML files.
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
    steps=120, batch_size=16, optimizer=AdamW(lr=5e-3), schedule=Cosine(warmup=10), validation=Validation(every=40, batches=None), seed=0
)

with tempfile.TemporaryDirectory() as folder:
    text = Path(folder) / "rhyme.txt"
    text.write_text(RHYME * 20, encoding="utf-8")
    recipe = qkv.Recipe(name="rhyme", data=Data(source=str(text)), model=model, training=training)

    # The run folder holds the recipe, the weights, the tokenizer, the figures of every step and a report. Called again,
    # train goes on from its last checkpoint.
    run = qkv.train(recipe, out=Path(folder) / "run")
    print("the run folder holds", ", ".join(sorted(path.name for path in run.folder.iterdir())))

    found = qkv.evaluate(run)
    print(f"held-out loss {found['loss']:.2f} nats, {found['bits_per_character']:.2f} bits a character")

    # The last tenth of the text is the rhyme once more, so a low loss says only that it was learned by heart. Temperature
    # 0 takes the most probable character each time.
    print("The bat" + qkv.generate(run, "The bat", max_new_tokens=200, temperature=0, stop=["\n"]))
