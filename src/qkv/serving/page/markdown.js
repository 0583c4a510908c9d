"use strict";
// Markdown of answers as a tree of plain objects, [tag, attributes, children], and the tree as elements.
// Text becomes text nodes only, so that no HTML of a model is ever read; links keep safe protocols only.

const SAFE = /^(https?:\/\/|mailto:)/i;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*?))?(?:\s+#+)?\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( {1,4})(?=\S)| *$)/;
const SEPARATOR = /^ {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const DEEPEST = 12;

function markdown(text) {
  return blocks(text.replace(/\r\n?/g, "\n").replace(/\t/g, "    ").split("\n"), 0);
}

function blocks(lines, depth) {
  if (depth > DEEPEST) return [["p", {}, [lines.join("\n")]]];
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) { at += 1; continue; }
    const read = fence(lines, at) || heading(line, at) || (RULE.test(line) && [["hr", {}, []], at + 1])
      || quote(lines, at, depth) || list(lines, at, depth) || table(lines, at) || paragraph(lines, at);
    found.push(read[0]);
    at = read[1];
  }
  return found;
}

function fence(lines, at) {
  const open = FENCE.exec(lines[at]);
  if (!open) return null;
  const body = [], close = new RegExp("^ {0,3}" + open[1][0] + "{" + open[1].length + ",}\\s*$");
  const indent = /^ */.exec(lines[at])[0].length;
  let next = at + 1;
  while (next < lines.length && !close.test(lines[next])) {
    body.push(lines[next].replace(new RegExp("^ {0," + indent + "}"), ""));
    next += 1;
  }
  return [["pre", { language: open[2].trim().split(/\s/)[0] }, [body.join("\n")]], next + 1];
}

function heading(line, at) {
  const found = HEADING.exec(line);
  return found && [["h" + found[1].length, {}, inline(found[2] || "", 0)], at + 1];
}

function quote(lines, at, depth) {
  const inside = [];
  let next = at;
  while (next < lines.length && QUOTE.test(lines[next])) inside.push(lines[next++].replace(QUOTE, ""));
  return next > at && [["blockquote", {}, blocks(inside, depth + 1)], next];
}

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  if (!first) return null;
  const ordered = /\d/.test(first[2]), mark = first[2].slice(-1), items = [];
  let next = at, loose = false;
  while (next < lines.length) {
    const found = ITEM.exec(lines[next]);
    if (!found || RULE.test(lines[next]) || found[2].slice(-1) !== mark) break;
    if (Math.abs(found[1].length - first[1].length) > 1) break;
    const content = found[0].length + (found[3] ? 0 : 1), inside = [lines[next].slice(found[0].length)];
    next += 1;
    while (next < lines.length) {
      const line = lines[next], indent = /^ */.exec(line)[0].length;
      if (!line.trim()) {
        if (!belongs(lines, next, first[1].length + 2)) break;
        inside.push("");
      } else if (indent > first[1].length + 1) inside.push(line.slice(Math.min(indent, content)));
      else if (begins(line) || !inside[inside.length - 1]) break;
      else inside.push(line.trim());
      next += 1;
    }
    let after = next;
    while (after < lines.length && !lines[after].trim()) after += 1;
    const more = after < lines.length && ITEM.exec(lines[after]);
    if (more && after > next && more[2].slice(-1) === mark) { next = after; loose = true; }
    items.push(inside);
  }
  const tight = !loose && items.every((inside) => !inside.slice(0, -1).includes(""));
  const rows = items.map((inside) => ["li", {}, unwrapped(blocks(inside, depth + 1), tight)]);
  const start = ordered ? Number.parseInt(first[2], 10) : 1;
  return [[ordered ? "ol" : "ul", start === 1 ? {} : { start }, rows], next];
}

function belongs(lines, at, least) {
  let next = at;
  while (next < lines.length && !lines[next].trim()) next += 1;
  return next < lines.length && /^ */.exec(lines[next])[0].length >= least;
}

function begins(line) {
  return ITEM.test(line) || FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line);
}

function unwrapped(found, tight) {
  return tight ? found.flatMap((node) => (node[0] === "p" ? node[2] : [node])) : found;
}

function table(lines, at) {
  if (!lines[at].includes("|") || at + 1 >= lines.length || !SEPARATOR.test(lines[at + 1])) return null;
  const head = cells(lines[at]), marks = cells(lines[at + 1]);
  if (head.length !== marks.length) return null;
  const sides = marks.map((mark) => (mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : "left"));
  const row = (texts, tag) => ["tr", {}, head.map((_, i) => [tag, { align: sides[i] }, inline(texts[i] || "", 0)])];
  const body = [];
  let next = at + 2;
  while (next < lines.length && lines[next].includes("|") && lines[next].trim()) body.push(row(cells(lines[next++]), "td"));
  return [["table", {}, [["thead", {}, [row(head, "th")]], ["tbody", {}, body]]], next];
}

function cells(line) {
  const parts = line.trim().replace(/^\|/, "").replace(/\|$/, "").split(/(?<!\\)\|/);
  return parts.map((part) => part.trim().replaceAll("\\|", "|"));
}

function paragraph(lines, at) {
  const inside = [lines[at]];
  let next = at + 1;
  while (next < lines.length && lines[next].trim() && !begins(lines[next]) && !table(lines, next)) inside.push(lines[next++]);
  return [["p", {}, inline(inside.map((line) => line.trimStart()).join("\n"), 0)], next];
}

const SPANS = [
  [/^\\([!-/:-@[-`{-~])/, (m) => m[1]],
  [/^(`+)(?!`)([^]*?[^`])\1(?!`)/, (m) => ["code", {}, [m[2].replace(/\n/g, " ").replace(/^ (.*\S.*) $/, "$1")]]],
  [/^!?\[((?:\\.|[^\]\\]){0,999})\]\(\s*<?([^\s<>()]*(?:\([^\s()]*\)[^\s<>()]*)*)>?(?:\s+["'][^"'\n]*["'])?\s*\)/, link],
  [/^<((?:https?:\/\/|mailto:)[^\s<>]*)>/i, (m) => ["a", { href: m[1] }, [m[1]]]],
  [/^https?:\/\/[^\s<>"'`|]*[^\s<>"'`|.,:;!?*_~)\]}]/i, (m) => ["a", { href: m[0] }, [m[0]]]],
  [/^(\*\*\*)(?=\S)([^]*?\S)\*\*\*/, (m, depth) => ["strong", {}, [["em", {}, inline(m[2], depth)]]]],
  [/^(\*\*|__)(?=\S)([^]*?\S)\1(?!\*)/, (m, depth) => ["strong", {}, inline(m[2], depth)]],
  [/^~~(?=\S)([^]*?\S)~~/, (m, depth) => ["s", {}, inline(m[1], depth)]],
  [/^([*_])(?=[^\s*_])((?:(?!\1)[^]|\1\1)*?[^\s*_])\1(?!\1)/, (m, depth) => ["em", {}, inline(m[2], depth)]],
  [/^(?: {2,}|\\)\n/, () => ["br", {}, []]],
];
const WORD = /[\p{L}\p{N}]/u;
const LONGEST = 20000, REACH = 2000; // characters of a paragraph, and of a span: the time of a text stays linear

function inline(text, depth) {
  if (depth > DEEPEST || text.length > LONGEST) return [text];
  const found = [];
  let plain = "", at = 0;
  while (at < text.length) {
    const read = span(text, at, depth + 1);
    if (!read) { plain += text[at]; at += 1; continue; }
    if (typeof read[0] === "string") plain += read[0];
    else { if (plain) found.push(plain); plain = ""; found.push(read[0]); }
    at += read[1];
  }
  return plain ? [...found, plain] : found;
}

function span(text, at, depth) {
  if (!/[\\`!\[<h*_~ ]/i.test(text[at])) return null;
  const inWord = at > 0 && WORD.test(text[at - 1]), rest = text.slice(at, at + REACH);
  if (inWord && (text[at] === "_" || /h/i.test(text[at]))) return null; // snake_case, and words that hold an address
  for (const [pattern, make] of SPANS) {
    const match = pattern.exec(rest);
    if (!match) continue;
    if (text[at] === "_" && WORD.test(rest[match[0].length] || "")) continue;
    const made = make(match, depth);
    if (made !== null) return [made, match[0].length];
  }
  return null;
}

function link(match, depth) {
  const label = match[1] || match[2];
  return SAFE.test(match[2]) ? ["a", { href: match[2] }, inline(label, depth)] : ["span", {}, inline(label, depth)];
}

function element(node) {
  if (typeof node === "string") return document.createTextNode(node);
  const [tag, attributes, children] = node;
  if (tag === "pre") return codeBlock(attributes.language, children[0]);
  const made = document.createElement(tag);
  if (attributes.href) { made.href = attributes.href; made.target = "_blank"; made.rel = "noopener noreferrer"; }
  if (attributes.start !== undefined) made.start = attributes.start;
  if (attributes.align) made.style.textAlign = attributes.align;
  made.append(...children.map(element));
  if (tag !== "table") return made;
  const box = document.createElement("div");
  box.className = "wide";
  box.tabIndex = 0;
  box.append(made);
  return box;
}

function codeBlock(language, text) {
  const figure = document.createElement("div"), bar = document.createElement("div"), name = document.createElement("span");
  const pre = document.createElement("pre"), code = document.createElement("code");
  figure.className = "code";
  bar.className = "bar";
  name.textContent = language || "text";
  code.textContent = text;
  pre.tabIndex = 0;
  pre.append(code);
  bar.append(name, copyButton("Copy code", () => text));
  figure.append(bar, pre);
  return figure;
}

if (typeof module !== "undefined") module.exports = { markdown };
