"""Measures of the package's source, as a table: ``python -m tests.house.measures``.

``--list`` also names what is counted. Lines and files, imports in both directions between folders, cycles of modules,
long functions, docstrings that begin with a question word, and places that ask for a kind of part by name.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from tests.house.source import PACKAGE, Source, package, walked
from tests.house.test_imports import FOR_ALL, imported
from tests.house.test_style import MOST_LINES_OF_A_FUNCTION, size

MOST_FILES_OF_A_FOLDER = 16
RIDDLES = ("What", "Which", "Those", "That", "How", "Where", "The one")
PATTERNS = {
    "isinstance(…, Text)": re.compile(
        r"isinstance\([^()]*(?:\([^()]*\)[^()]*)*,\s*(?:\w+\.)*(?:Text\)|\([^()]*\bText\b)"
    ),
    "model.frontend.table": re.compile(r"model\.frontend\.table"),
    'startswith("blocks.")': re.compile(r"""startswith\(\(?["']blocks\.["']"""),
    'getattr(module, "qkv")': re.compile(r"""getattr\(module, ["']qkv["']"""),
}


def code_lines(source: Source) -> int:
    """Lines that hold code: no blank, no comment, no docstring."""
    silent = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    )
    tokens = tokenize.generate_tokens(io.StringIO(source.text).readline)
    lines = {line for token in tokens if token.type not in silent for line in range(token.start[0], token.end[0] + 1)}
    texts = {line for node in described(source) for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return len(lines - texts)


def described(source: Source) -> Iterator[ast.Expr]:
    """Every bare string: docstrings, and those below a field."""
    for node in walked(source.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node


def riddles() -> list[str]:
    """Docstrings whose first word is one of ``RIDDLES``, those below a field included, by place."""
    texts = [(source, node, ast.literal_eval(node.value).strip()) for source in package() for node in described(source)]
    found = [(source, node, text) for source, node, text in texts if re.match(rf"({'|'.join(RIDDLES)})\b", text)]
    return sorted(f"{source.name}:{node.lineno}: {text.splitlines()[0]}" for source, node, text in found)


def mutual() -> list[str]:
    """Pairs of folders, neither of them inside the other, whose modules import each other's."""
    folders = {".".join(s.path.relative_to(PACKAGE.parent).parts[:-1]) for s in package()}
    edges = set()
    for source in package():
        own = ".".join(source.path.relative_to(PACKAGE.parent).parts[:-1])
        names = [name for name in imported(source.tree) if name.split(".")[0] == "qkv" and not name.startswith(FOR_ALL)]
        edges |= {(own, _folder(name, folders)) for name in names}
    pairs = [(a, b) for a, b in sorted(edges) if a < b and (b, a) in edges]
    return [f"{a} and {b}" for a, b in pairs if not b.startswith(f"{a}.")]


def module_imports() -> dict[str, set[str]]:
    """Modules of the package that each module imports, lazily and for type checking too; a package is no module."""
    names = {source: ".".join(source.path.relative_to(PACKAGE.parent).with_suffix("").parts) for source in package()}
    targets = {name: set(imported(source.tree)) for source, name in names.items()}
    named = {name: own | {target.rpartition(".")[0] for target in own} for name, own in targets.items()}
    return {name: (own & targets.keys()) - {name} for name, own in named.items()}


def import_cycle(imports: Mapping[str, set[str]]) -> list[str]:
    """Modules of one cycle of ``imports``, the first one again at the end; empty if there is no cycle."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def crowded(most: int = MOST_FILES_OF_A_FOLDER) -> list[str]:
    """Folders with more than ``most`` modules of their own, with the number."""
    counts = Counter(source.path.parent for source in package() if source.path.name != "__init__.py")
    return [f"{folder.relative_to(PACKAGE.parent)}: {n}" for folder, n in sorted(counts.items()) if n > most]


def _folder(module: str, folders: set[str]) -> str:
    parts = module.split(".")
    return next(".".join(parts[:n]) for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in folders)


def long_functions() -> list[str]:
    """Functions longer than the house allows, by place."""
    most = MOST_LINES_OF_A_FUNCTION
    return [f"{s.name}: {f.name} ({size(f)})" for s in package() for f in s.functions if size(f) > most]


def places(pattern: re.Pattern[str]) -> list[str]:
    """Where a pattern is found, by file and line."""
    return [f"{s.name}:{s.text.count(chr(10), 0, m.start()) + 1}" for s in package() for m in pattern.finditer(s.text)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measures of the package's source.")
    parser.add_argument("--list", action="store_true", help="name what is counted")
    asked = parser.parse_args()
    listed = {
        "folders that import each other": mutual(),
        "modules of an import cycle": import_cycle(module_imports()),
        f"folders with over {MOST_FILES_OF_A_FOLDER} files": crowded(),
        f"functions over {MOST_LINES_OF_A_FUNCTION} lines": long_functions(),
        f"docstrings that begin with {', '.join(RIDDLES)}": riddles(),
        **{f"{name}, places": places(pattern) for name, pattern in PATTERNS.items()},
    }
    rows = {
        "lines of code": sum(map(code_lines, package())),
        "lines": sum(s.text.count("\n") for s in package()),
        "files": len(package()),
    }
    rows |= {name: len(found) for name, found in listed.items()}
    rows |= {
        f"{name}, files": len({place.split(":")[0] for place in places(pattern)}) for name, pattern in PATTERNS.items()
    }
    for name, value in rows.items():
        print(f"{name:60}{value:>8,}")
    for name, found in listed.items() if asked.list else ():
        print("", name, *found, sep="\n  ")


if __name__ == "__main__":
    sys.exit(main())
