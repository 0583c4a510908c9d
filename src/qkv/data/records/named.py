"""Named data sets: their files and readers. A named data set defines its splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from qkv.data.corpora.named import PublishedFile
from qkv.data.corpora.sources import published
from qkv.data.corpora.text import TextSource
from qkv.data.reading import cached
from qkv.data.records.images.moving import moving_garments
from qkv.data.records.model import BadRow
from qkv.data.records.readers.conll import conll
from qkv.data.records.readers.delimited import delimited
from qkv.data.records.readers.graph_arrays import arrays_of
from qkv.data.records.readers.graph_tables import graph_table
from qkv.data.records.readers.idx import idx_images
from qkv.data.records.readers.jsonl import jsonl
from qkv.data.records.readers.parallel import parallel
from qkv.data.records.readers.sound_archives import spoken_digits
from qkv.data.records.readers.squad import squad
from qkv.data.records.table import Row, Table

MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"
FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
GARMENTS = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
ETT = "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small/"
WNUT17 = "https://raw.githubusercontent.com/leondz/emerging_entities_17/master/"


class KnownTable(NamedTuple):
    """Table of examples known by name.

    splits: published files of each split. read: function from the files of a split to a ``Table``, or a mapping from
    splits to such functions.
    """

    splits: Mapping[str, tuple[PublishedFile, ...]]
    read: Callable[..., Table] | Mapping[str, Callable[..., Table]]
    folder: str = ""
    """Folder of the files, if several data sets share it; default: the name of the data set."""


def named_tables(name: str) -> dict[str, Table]:
    """Read the tables of the known data set ``name``, by split.

    Raises ``UserError`` if a file is neither present nor downloadable.
    """
    return {split: cached((name, split), partial(_named_table, name, split)) for split in TABLES[name].splits}


def _named_table(name: str, split: str) -> Table:
    entry = TABLES[name]
    read = entry.read if callable(entry.read) else entry.read[split]
    return read(*(published(entry.folder or name, file) for file in entry.splits[split]))


def _multi30k(english: TextSource, german: TextSource) -> Table:
    return parallel(english, german, ("en", "de"))


def _sst2(text: TextSource) -> Table:
    return delimited(text, "tsv")


def _comma_separated(text: TextSource) -> Table:
    return delimited(text, "csv")


def _scitldr(text: TextSource) -> Table:
    """Read SciTLDR (summaries of papers): joined sentences as source, the first summary as target; ``targets`` holds
    all summaries.
    """
    table = jsonl(text)

    def parse() -> Iterator[Row | BadRow]:
        for row in table.parse():
            if isinstance(row, Row):
                targets = list(row.values["target"])
                row = row._replace(
                    values={"source": " ".join(row.values["source"]), "target": targets[0], "targets": targets}
                )
            yield row

    return replace(
        table, columns=("source", "target"), parse=parse, defaults={"text": ("source", "target")}, extra=("targets",)
    )


def _graphs(text: TextSource) -> Table:
    return graph_table(text, arrays_of(text))


def _fashion(stem: str) -> tuple[PublishedFile, ...]:
    files = (f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte")
    return tuple(PublishedFile(name, f"{FASHION}{name}.gz", *_GARMENTS[name]) for name in files)


_GARMENTS = {
    "train-images-idx3-ubyte": (47040016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
    "train-labels-idx1-ubyte": (60008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
    "t10k-images-idx3-ubyte": (7840016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
    "t10k-labels-idx1-ubyte": (10008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
}
"""Size and checksum of the unpacked files of Fashion-MNIST."""


def _raw(stem: str, english: tuple[int, str], german: tuple[int, str]) -> tuple[PublishedFile, PublishedFile]:
    first, second = (
        PublishedFile(f"{stem}.{language}", f"{MULTI30K}{stem}.{language}.gz", *content)
        for language, content in (("en", english), ("de", german))
    )
    return first, second


_MUTAG = "2f231c66793473e9c7755484c01ed74e3dbeec2a58c701e939427c384c1c74cf"
_DIGITS = PublishedFile(
    "recordings.tar", "", 14151680, "eecb4c770145eff9a7249fbef8fbde83c34ce92e61053b12cc4601fa225fa081"
)
"""Recordings of the Free Spoken Digit Dataset, packed in one archive."""
_OFFICIAL_TEST = range(5)
"""Takes of the test part; the others are for training."""
_PROTEINS = "6a7f011e6f26be4f91e744e98994c7be170fc62c6b8ef16e97edda6f06390457"

TABLES = {
    "fashion-mnist": KnownTable(
        {"train": _fashion("train"), "test": _fashion("t10k")}, partial(idx_images, names=GARMENTS)
    ),
    "moving-garments": KnownTable(
        {"train": _fashion("train")[:1], "test": _fashion("t10k")[:1]}, moving_garments, folder="fashion-mnist"
    ),
    "multi30k-en-de": KnownTable(
        {
            "train": _raw(
                "train",
                (1801238, "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6"),
                (2110398, "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72"),
            ),
            "validation": _raw(
                "val",
                (63297, "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227"),
                (75981, "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660"),
            ),
            "test": _raw(
                "test_2016_flickr",
                (62076, "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182"),
                (70649, "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16"),
            ),
        },
        _multi30k,
    ),
    "fsdd": KnownTable(
        {"train": (_DIGITS,), "test": (_DIGITS,)},
        {"train": partial(spoken_digits, takes=range(5, 1000)), "test": partial(spoken_digits, takes=_OFFICIAL_TEST)},
    ),
    "mutag": KnownTable({"train": (PublishedFile("mutag.npz", "", 13615, _MUTAG),)}, _graphs),
    "proteins": KnownTable({"train": (PublishedFile("proteins.npz", "", 335032, _PROTEINS),)}, _graphs),
    "sst2": KnownTable(
        {
            "train": (
                PublishedFile(
                    "train.tsv", "", 738859, "cd45f1cdd4adcd66563b8116669136877f7b9525697cb486b2d46b960231f94d"
                ),
            ),
            "validation": (
                PublishedFile("dev.tsv", "", 94415, "f7271f7a919ea884ca8563e13ed03028aa44296d1f738c003af3142b9a2188f8"),
            ),
            "test": (
                PublishedFile(
                    "test.tsv", "", 193577, "1da6e04ccd65c1ade32864afa62129b3b3d5df0f1b314961ec345af304274093"
                ),
            ),
        },
        _sst2,
    ),
    "wnut17": KnownTable(
        {
            "train": (
                PublishedFile(
                    "train.conll",
                    WNUT17 + "wnut17train.conll",
                    493781,
                    "731820e13f71af324c6b55a1575ec2ce59fbaa2a0806f8f0400b98d56cd6a7a5",
                ),
            ),
            "validation": (
                PublishedFile(
                    "dev.conll",
                    WNUT17 + "emerging.dev.conll",
                    114749,
                    "e053b752b8155113ca66e7db08af5f2f5f43ab993694e4774f1ec5bad42312d8",
                ),
            ),
            "test": (
                PublishedFile(
                    "test.conll",
                    WNUT17 + "emerging.test.annotated",
                    192425,
                    "2aa79b764e56ec9264a1b30fdd9b70195bd00ff400b62edd8f399d5f13c178f0",
                ),
            ),
        },
        conll,
    ),
    "squad": KnownTable(
        {
            "train": (
                PublishedFile(
                    "train-new_wiki.json",
                    "",
                    3461320,
                    "831a16eda3c3e91d53779bf7ec25c9821dbfa057818503aca72222a58936ae0e",
                ),
                PublishedFile(
                    "train-amazon.json", "", 4010928, "e3b23e25eccf57cc93cc5db9dbad98cec67bb6e4c06b47d01956a5b0f0a38e76"
                ),
            ),
            "test": (
                PublishedFile(
                    "dev-v1.1.json", "", 4644703, "83cee08835e339ed0d9a084558e9c6388a0909070a3bc432d13101fa41f5404e"
                ),
            ),
        },
        squad,
    ),
    "scitldr": KnownTable(
        {
            "train": (
                PublishedFile(
                    "train.jsonl", "", 2754655, "42f29edc0090eb67da82415e2803f9ae2f5eb2877490d1e961d0731b582c02d4"
                ),
            ),
            "validation": (
                PublishedFile(
                    "dev.jsonl", "", 999628, "4db054f15cd66a5175bfac8b5bee43813346f1654ef4c72df264db31926d1415"
                ),
            ),
            "test": (
                PublishedFile(
                    "test.jsonl", "", 1072961, "72a0411738cd58151e8515fa4fc59214de7c90bbea166d5518ccfc81596d53d4"
                ),
            ),
        },
        _scitldr,
    ),
    "etth1": KnownTable(
        {
            "train": (
                PublishedFile(
                    "ETTh1.csv",
                    ETT + "ETTh1.csv",
                    2589657,
                    "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066",
                ),
            )
        },
        _comma_separated,
        "ett",
    ),
    "ettm1": KnownTable(
        {
            "train": (
                PublishedFile(
                    "ETTm1.csv",
                    ETT + "ETTm1.csv",
                    10360719,
                    "6ce1759b1a18e3328421d5d75fadcb316c449fcd7cec32820c8dafda71986c9e",
                ),
            )
        },
        _comma_separated,
        "ett",
    ),
}
"""Named data sets. Files without a URL differ from the published files: a header was added, columns were dropped, or
the file was replaced.
"""
