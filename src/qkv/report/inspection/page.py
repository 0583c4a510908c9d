"""Page that shows what a model does with one input, in one file with its data, style and script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from qkv.report.charts.frame import asset
from qkv.report.markup import Markup, script_json, tag


def inspection_page(data: Mapping[str, Any]) -> str:
    """Return the HTML page of an inspection.

    Keys of ``data``: "title"; "sides", labels of positions by stack; "order", names of all views; "views", contents of
    the views computed so far; "row", the input, which the user can change if a server computes further views, else
    None. The page loads no other files, and sends requests only to its own server, if it has one.
    """
    script = asset("inspection/inspection.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    server = "'none'" if data["row"] is None else "'self'"
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'; "
        f"base-uri 'none'; form-action 'none'; connect-src {server}"
    )
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", data["title"]),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup(asset("theme.css") + asset("inspection/inspection.css"))),
    ]
    content = tag("script", script_json(dict(data)), type="application/json", id="data")
    body = tag("body", Markup(asset("inspection/inspection.html")), content, "\n", tag("script", Markup(script)))
    return f"<!DOCTYPE html>\n{tag('html', tag('head', *head), body, lang='en')}\n"
