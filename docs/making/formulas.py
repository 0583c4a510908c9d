"""Sphinx extension: formulas as MathML, converted when the pages are built.

Browsers draw MathML themselves, so that a page needs no script, font or network for its formulas. A formula that cannot
be converted is a warning, hence an error under ``make docs``.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

_log = logging.getLogger(__name__)


def mathml(tex: str, block: bool = False) -> str:
    """MathML element of a formula in LaTeX. Raises ``docutils.utils.math.MathError`` if it cannot be converted."""
    return tex2mathml(tex, as_block=block)


def _converted(node: nodes.math | nodes.math_block, block: bool) -> str:
    try:
        return mathml(node.astext(), block)
    except MathError as error:
        _log.warning("the formula %r cannot be converted: %s", node.astext(), error, location=node)
        return ""


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(_converted(node, block=False))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula">{_converted(node, block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
