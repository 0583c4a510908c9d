"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const NAMES = { answers: "Answer", attention: "Attention", influence: "Influence", lens: "Logit lens", attribution: "Attribution", roles: "Head roles", words: "Words", hidden: "Hidden states", neurons: "Neurons", checkpoints: "Over time" };
  const served = data.row !== null;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let state = { view: "answers", group: 0, layer: 0, head: 0, position: 0, temperature: 1, colour: "probability", from: 0, point: 0, branch: 0, order: "input", role: "induction" };
  state.position = Math.max(0, (data.views.answers?.data?.position ?? data.sides.model.labels.length - 1));
  let before = null;      // answers of the page before the last change
  const arrays = {};      // name of a view -> its decoded bytes

  // ---- elements
  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const key in attributes) {
      if (key.startsWith("on")) made[key] = attributes[key];
      else if (attributes[key] === true) made.setAttribute(key, "");
      else if (attributes[key] !== false && attributes[key] !== null) made.setAttribute(key, attributes[key]);
    }
    made.append(...children);
    return made;
  };
  const shown = (text) => String(text).replaceAll("\n", "↵").replaceAll("\t", "⇥").replace(/^ | $/g, "␣") || "∅";
  const figure = (value) => value === null || Number.isNaN(value) ? "–" : Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5 || value === 0 ? value.toPrecision(3) : value.toExponential(1);
  const tell = (target, text) => {
    target.addEventListener("pointermove", (event) => {
      const words = typeof text === "function" ? text(event) : text, tip = $("tip");
      tip.hidden = !words;
      if (!words) return;
      tip.textContent = words;
      const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8), top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8);
      tip.style.left = Math.max(4, left) + "px";
      tip.style.top = Math.max(4, top) + "px";
    });
    target.addEventListener("pointerleave", () => { $("tip").hidden = true; });
  };

  // ---- colours: one hue for shares, blue and orange for signs; both are told apart without colour vision
  const parse = (name) => {
    const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
  };
  let paper, high, low, ramps;
  const mix = (share, end = high) => paper.map((from, i) => Math.round(from + (end[i] - from) * Math.max(0, Math.min(1, share))));
  const readColours = () => {
    paper = parse("--paper"); high = parse("--s0"); low = parse("--s1");
    // pixels of 256 shares of each sign, since a matrix has many
    ramps = [high, low].map((end) => Uint32Array.from({ length: 256 }, (_, i) => { const [r, g, b] = mix(i / 255, end); return (255 << 24 | b << 16 | g << 8 | r) >>> 0; }));
  };
  const pixel = (share) => ramps[share < 0 ? 1 : 0][Math.min(1, Math.abs(share)) * 255 + 0.5 | 0];
  readColours();
  const css = (colour) => `rgb(${colour.join(",")})`;
  const signed = (share) => css(mix(Math.abs(share), share < 0 ? low : high));
  const inkOn = (colour) => (0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]) > 140 ? "#111" : "#fff";
  const paint = (made, colour) => { made.style.background = css(colour); made.style.color = inkOn(colour); return made; };

  // ---- arrays
  async function decode(name) {
    const view = data.views[name];
    if (!view || !view.block || arrays[name]) return;
    const packed = Uint8Array.from(atob(view.block), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    arrays[name] = await new Response(stream).arrayBuffer();
  }
  const sizeOf = (shape) => shape.reduce((product, n) => product * n, 1);
  const numbers = (name, entry) => {
    if (entry.values) return entry.values;
    const count = sizeOf(entry.shape);
    if (entry.form === "f4") entry.values = new Float32Array(arrays[name], entry.at, count);
    else {
      const bytes = new Uint8Array(arrays[name], entry.at, count), table = Float32Array.from({ length: 256 }, (_, b) => entry.scale * (b / 255) ** 2);
      entry.bytes = bytes;
      entry.values = { length: count, at: (i) => table[bytes[i]], table };
    }
    return entry.values;
  };
  const value = (name, entry, i) => { const all = numbers(name, entry); return all.table ? all.at(i) : all[i]; };

  // ---- parts of the page that several views use
  const labelsOf = (stack, count) => {
    const side = data.sides[stack];
    return side && side.labels.length === count ? side.labels : Array.from({ length: count }, (_, i) => String(i));
  };
  const strip = (stack, count, share, pick, chosen, words) => {
    // positions of one input, each on a colour; images on their grid
    const side = data.sides[stack], labels = labelsOf(stack, count);
    if (side && side.labels.length === count && side.edges.length) return nodes(side, share, pick, chosen, words);
    const buttons = labels.map((label, i) => {
      const made = element("button", { type: "button", "aria-pressed": String(i === chosen), onclick: () => pick(i) }, shown(label));
      const amount = share(i);
      made.style.background = signed(amount);
      made.style.color = inkOn(mix(Math.abs(amount), amount < 0 ? low : high));
      tell(made, () => words(i, label));
      return made;
    });
    if (side && side.grid.length === 2 && count === side.leading + side.grid[0] * side.grid[1]) {
      const grid = element("div", { class: "grid", style: `grid-template-columns: repeat(${side.grid[1]}, max-content)` }, ...buttons.slice(side.leading));
      return element("div", {}, element("div", { class: "tokens" }, ...buttons.slice(0, side.leading)), grid);
    }
    const tokens = element("div", { class: "tokens" }, ...buttons);
    return side && side.series.length && side.labels.length === count ? element("div", {}, overTime(side, share, pick, chosen, words), tokens) : tokens;
  };
  const drawing = (width, height, label) => {
    const NS = "http://www.w3.org/2000/svg", svg = document.createElementNS(NS, "svg");
    for (const [key, text] of Object.entries({ viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": label })) svg.setAttribute(key, text);
    const add = (name, attributes, text) => { const made = document.createElementNS(NS, name); for (const key in attributes) made.setAttribute(key, attributes[key]); if (text) made.textContent = text; svg.append(made); return made; };
    return [svg, add];
  };
  const overTime = (side, share, pick, chosen, words) => {
    // the values of a series, behind them a band of each position: the steps that it reads
    const width = 520, height = 150, [svg, add] = drawing(width, height, side.unit === "s" ? "Sound over time" : "Values over time"), all = side.series.flat().filter(Number.isFinite);
    const low = Math.min(...all), high = Math.max(...all), steps = side.series[0].length, part = height / side.spans.length;
    const sound = side.unit === "s";  // bands of a sound are as high as its outline
    const x = (step) => step / Math.max(1, steps - 1) * width, y = (v) => 8 + (high - v) / Math.max(1e-9, high - low) * (height - 16);
    side.spans.forEach(([from, to], i) => {
      const band = add("rect", { x: x(from), width: Math.max(2, x(to) - x(from)), y: sound ? 0 : i * part, height: sound ? height : Math.max(1, part - 1), style: `fill:${signed(share(i))};stroke:${i === chosen ? "var(--ink)" : "none"};cursor:pointer` });
      band.onclick = () => pick(i);
      tell(band, () => words(i, sound ? side.labels[i] : `steps ${side.labels[i]}`));
    });
    side.series.forEach((values, i) => add("polyline", { points: values.map((v, step) => [x(step), v]).filter(([, v]) => Number.isFinite(v)).map(([at, v]) => `${at},${y(v)}`).join(" "), class: "line", style: `fill:none;stroke:var(--${i ? "muted" : "ink"});pointer-events:none` + (sound ? ";stroke-width:1;opacity:.45" : "") }));
    return svg;
  };
  const layouts = new Map();  // places of the nodes of a graph, which do not change
  const placesOf = (edges, count) => {
    const key = `${count} ${edges.length}`;
    if (layouts.has(key)) return layouts.get(key);
    // Fruchterman and Reingold 1991: nodes repel each other, edges pull
    const place = Array.from({ length: count }, (_, i) => [Math.cos(2 * Math.PI * i / count), Math.sin(2 * Math.PI * i / count)]), ideal = 1.6 / Math.sqrt(count);
    for (let round = 0; round < (count > 150 ? 0 : 120); round++) {
      const moves = place.map(([x, y]) => [-0.02 * x, -0.02 * y]);
      const push = (i, j, force) => { const dx = place[i][0] - place[j][0], dy = place[i][1] - place[j][1], far = Math.hypot(dx, dy) + 1e-3, f = force(far) / far; moves[i][0] += dx * f; moves[i][1] += dy * f; moves[j][0] -= dx * f; moves[j][1] -= dy * f; };
      for (let i = 0; i < count; i++) for (let j = 0; j < i; j++) push(i, j, (far) => ideal ** 2 / far);
      for (const [i, j] of edges) push(i, j, (far) => -(far ** 2) / ideal);
      const heat = 0.1 * (1 - round / 120);
      moves.forEach(([dx, dy], i) => { const far = Math.hypot(dx, dy) || 1; place[i][0] += dx / far * Math.min(far, heat); place[i][1] += dy / far * Math.min(far, heat); });
    }
    const fit = (axis) => { const all = place.map((each) => each[axis]), low = Math.min(...all), high = Math.max(...all); return (v) => (v - low) / Math.max(1e-9, high - low); };
    const [x, y] = [fit(0), fit(1)], placed = place.map((each) => [20 + 400 * x(each[0]), 20 + 260 * y(each[1])]);
    layouts.set(key, placed);
    return placed;
  };
  const nodes = (side, share, pick, chosen, words) => {
    // edges of the graph; lines of the chosen node to what it reads, dashed where there is no edge
    const count = side.labels.length, place = placesOf(side.edges, count), [svg, add] = drawing(440, 300, "Nodes and edges"), linked = new Set(side.edges.map(([i, j]) => `${i} ${j}`));
    const between = (i, j) => ({ x1: place[i][0], y1: place[i][1], x2: place[j][0], y2: place[j][1] });
    for (const [i, j] of side.edges) add("line", { ...between(i, j), style: "stroke:var(--muted);stroke-width:1;opacity:.5" });
    if (chosen >= 0 && chosen < count) for (let i = 0; i < count; i++) {
      const amount = Math.abs(share(i)), edge = linked.has(`${Math.min(i, chosen)} ${Math.max(i, chosen)}`);
      if (i !== chosen && amount > 0.02) add("line", { ...between(chosen, i), style: `stroke:var(--s1);stroke-width:${1 + 4 * amount};opacity:${0.25 + 0.75 * amount}${edge ? "" : ";stroke-dasharray:4 4"}` });
    }
    const radius = count > 60 ? 4 : 9;
    place.forEach(([cx, cy], i) => {
      const node = add("circle", { cx, cy, r: radius, style: `fill:${signed(share(i))};stroke:${i === chosen ? "var(--ink)" : "var(--muted)"};stroke-width:${i === chosen ? 3 : 1};cursor:pointer` });
      node.onclick = () => pick(i);
      tell(node, () => words(i, side.labels[i]));
      if (count <= 60) add("text", { x: cx, y: cy + 4, "text-anchor": "middle", style: `fill:${inkOn(mix(Math.abs(share(i))))};font-size:10px;pointer-events:none` }, side.labels[i]);
    });
    return svg;
  };
  const matrix = (rows, columns, share, words, pick) => {
    const size = Math.max(1, Math.min(24, Math.floor(420 / Math.max(rows, columns, 1))));
    const canvas = element("canvas", { width: columns, height: rows, style: `width:${columns * size}px; aspect-ratio:${columns} / ${rows}`, role: "img", "aria-label": `Matrix of ${rows} by ${columns}` });
    const context = canvas.getContext("2d"), picture = context.createImageData(columns, rows);
    const pixels = new Uint32Array(picture.data.buffer);
    for (let i = 0; i < pixels.length; i++) pixels[i] = pixel(share(i));
    context.putImageData(picture, 0, 0);
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      const column = Math.floor((event.clientX - box.left) / box.width * columns), row = Math.floor((event.clientY - box.top) / box.height * rows);
      return row < 0 || column < 0 || row >= rows || column >= columns ? null : [row, column];
    };
    tell(canvas, (event) => { const at = place(event); return at ? words(...at) : ""; });
    if (pick) canvas.onclick = (event) => { const at = place(event); if (at) pick(...at); };
    return canvas;
  };
  const bars = (entries) => {
    const most = Math.max(1e-12, ...entries.map((e) => Math.abs(e.value)), ...entries.map((e) => Math.abs(e.before ?? 0)));
    const minus = entries.some((e) => e.value < 0);
    const box = element("div", { class: "bars" });
    for (const entry of entries) {
      const share = Math.abs(entry.value) / most * (minus ? 50 : 100), middle = minus ? 50 : 0;
      const fill = element("div", { class: entry.value < 0 ? "fill minus" : "fill", style: `left:${entry.value < 0 ? middle - share : middle}%; width:${share}%` });
      const track = element("div", { class: "track" }, fill);
      if (entry.before !== undefined && entry.before !== null) track.append(element("div", { class: "before", title: `before: ${figure(entry.before)}`, style: `left:${middle + (entry.before / most) * (minus ? 50 : 100)}%` }));
      const name = element("button", { type: "button", class: "name", style: "background:none;border:0;padding:0;text-align:left", onclick: entry.pick ?? null, disabled: !entry.pick }, entry.name);
      name.style.opacity = 1;
      box.append(name, track, element("span", {}, entry.text ?? figure(entry.value)));
    }
    return box;
  };
  const chart = (series, names, label, places = null) => {
    // lines over points or steps; each of values, with a colour (0 to 5) or faint
    const width = 520, height = 150, x0 = 56, count = names.length, all = series.flatMap((each) => each.values).filter((v) => v !== null && !Number.isNaN(v));
    const smallest = Math.min(0, ...all), largest = Math.max(1e-9, ...all), [from, to] = places ? [places[0], places[count - 1]] : [0, count - 1];
    const x = (i) => x0 + ((places ? places[i] : i) - from) / Math.max(1, to - from) * (width - x0 - 10), y = (v) => 10 + (largest - v) / (largest - smallest) * (height - 30);
    const [svg, add] = drawing(width, height, label);
    for (const level of [largest, smallest]) { add("line", { x1: x0, x2: width - 10, y1: y(level), y2: y(level), class: "grid" }); add("text", { x: x0 - 6, y: y(level) + 4, "text-anchor": "end" }, figure(level)); }
    for (const each of [...series].sort((one, two) => Number(one.colour !== undefined) - Number(two.colour !== undefined))) {
      const known = each.values.map((v, i) => [i, v]).filter(([, v]) => v !== null && !Number.isNaN(v)), colour = each.colour === undefined ? "s5 faint" : `s${each.colour}`;
      add("polyline", { points: known.map(([i, v]) => `${x(i)},${y(v)}`).join(" "), class: `line ${colour}`, style: "fill:none" });
      if (each.colour !== undefined) for (const [i, v] of known) tell(add("circle", { cx: x(i), cy: y(v), r: 3, class: `point s${each.colour}` }), `${each.name ?? label}\n${names[i]}: ${figure(v)}`);
    }
    add("text", { x: x(0), y: height - 4 }, String(names[0]));
    if (count > 1) add("text", { x: x(count - 1), y: height - 4, "text-anchor": "end" }, String(names[count - 1]));
    return svg;
  };
  const line = (values, names, label) => chart([{ values, colour: 0 }], names, label);
  const legend = (series) => element("div", { class: "bar" }, ...series.filter((each) => each.colour !== undefined).map((each) => element(each.pick ? "button" : "span", each.pick ? { type: "button", onclick: each.pick } : {}, element("i", { class: "swatch", style: `background:var(--s${each.colour})` }), each.name)));
  const choice = (label, options, chosen, pick) => {
    const select = element("select", { "aria-label": label, onchange: (event) => pick(event.target.value) }, ...options.map(([key, text]) => element("option", { value: key, selected: String(key) === String(chosen) }, text)));
    return element("label", {}, label, select);
  };

  // ---- views
  const draw = {
    answers(view) {
      const boxes = [];
      if (view.values) boxes.push(element("p", {}, `Outputs of the model: ${view.values.map(figure).join(", ")}`));
      else {
        const probabilities = (name, from) => {
          const logits = numbers(name, from.logits);
          let most = -Infinity, total = 0;
          for (const each of logits) most = Math.max(most, each);
          for (const each of logits) total += Math.exp((each - most) / state.temperature);
          return (id) => Math.exp((logits[id] - most) / state.temperature) / total;
        };
        const probable = element("div", {}), shownTemperature = element("span", {});
        // the slider stays while it is dragged: only the bars are drawn anew
        const redraw = () => {
          const now = probabilities("answers", view), then = before && probabilities("before", before);
          shownTemperature.textContent = state.temperature.toFixed(2);
          probable.replaceChildren(bars(view.ids.slice(0, 20).map((id, i) => ({ name: shown(view.names[i]), value: now(id), before: then && then(id), text: (100 * now(id)).toFixed(1) + " %" }))));
        };
        redraw();
        boxes.push(element("p", {}, `Most probable ${data.sides.model && view.logits.shape[0] > 20 ? "tokens" : "classes"} at position ${view.position}. `, element("span", { class: "muted" }, before ? "A line marks the probability before the last change." : "")));
        boxes.push(probable);
        const slider = element("input", { type: "range", min: -1.5, max: 1.5, step: 0.05, value: Math.log(state.temperature), "aria-label": "Temperature", oninput: (event) => { state.temperature = Math.exp(+event.target.value); redraw(); keepAddress(); } });
        boxes.push(element("div", { class: "bar" }, element("label", {}, "Temperature", slider, shownTemperature)));
      }
      boxes.push(element("h2", {}, "Input"));
      for (const stack in data.sides) {
        const side = data.sides[stack];
        if (side.picture) boxes.push(element("img", { class: "picture", src: side.picture, alt: "Input of the model" }));
        boxes.push(strip(stack, side.labels.length, () => 0, (i) => set({ position: i }), stack === "model" ? state.position : -1, (i, label) => `${label}\nposition ${i}`));
      }
      boxes.push(element("h2", {}, "What if"));
      if (!served) boxes.push(element("p", { class: "muted" }, "Move the temperature above. To change a word or to take a head out, open this page with qkv inspect without --out."));
      else boxes.push(...whatIf());
      return boxes;
    },
    attention: (view) => maps(view, "attention"),
    influence(view) {
      return [element("p", { class: "muted" }, "Norm of the Jacobian of each output position with respect to each input position of a branch: one measure for attention, convolutions and recurrences. " + (view.note ?? "")), ...maps(view, "influence")];
    },
    lens(view) {
      const [points, positions] = [view.points.length, view.names[0].length], most = 32;
      state.from = Math.max(0, Math.min(state.from, positions - most));
      const shownAt = Array.from({ length: Math.min(most, positions) }, (_, i) => state.from + i);
      const head = element("tr", {}, element("th", {}, ""), ...shownAt.map((n) => element("td", {}, view.pooled ? "answer" : shown(labelsOf("model", positions)[n]))));
      const measure = { probability: (p, n) => value("lens", view.probabilities, (p * positions + n) * view.probabilities.shape[2]), entropy: (p, n) => 1 - value("lens", view.entropy, p * positions + n) / Math.log(50000), divergence: (p, n) => 1 - Math.min(1, value("lens", view.divergence, p * positions + n) / 8) }[state.colour];
      const rows = Array.from({ length: points }, (_, i) => points - 1 - i).map((p) => element("tr", {}, element("th", { scope: "row" }, view.points[p]), ...shownAt.map((n) => {
        const cell = paint(element("td", {}, shown(view.names[p][n][0])), mix(measure(p, n)));
        tell(cell, () => view.names[p][n].map((name, k) => `${shown(name)}  ${(100 * value("lens", view.probabilities, (p * positions + n) * view.probabilities.shape[2] + k)).toFixed(1)} %`).join("\n") + `\nentropy ${figure(value("lens", view.entropy, p * positions + n))} nats\nKL from the output ${figure(value("lens", view.divergence, p * positions + n))} nats`);
        return cell;
      })));
      const move = positions > most ? [element("label", {}, "From position", element("input", { type: "range", min: 0, max: positions - most, value: state.from, oninput: (event) => set({ from: +event.target.value }) }), String(state.from))] : [];
      return [element("p", { class: "muted" }, view.note + "."), element("div", { class: "bar" }, choice("Colour", [["probability", "probability of the first"], ["entropy", "low entropy"], ["divergence", "near the output"]], state.colour, (colour) => set({ colour })), ...move), element("div", { class: "scroll" }, element("table", { class: "lens" }, ...rows, head))];
    },
    attribution(view) {
      const named = (part) => part.layer < 0 ? part.part : `layer ${part.layer} ${part.part}` + (part.head === null ? "" : ` head ${part.head}`);
      const order = [...view.parts].sort((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, 30);
      return [element("p", {}, `Parts of the logit ${figure(view.logit)} of “${shown(data.views.answers?.data?.target ?? "the answer")}”: what the embedding, each head and each other branch adds. `, element("span", { class: "muted" }, `The parts miss the logit by ${figure(view.error)}.` + (view.capped ? " The model caps this logit afterwards." : ""))), bars(order.map((part) => ({ name: named(part), value: part.value, pick: part.head === null ? null : () => showHead(part.path, part.head) })))];
    },
    roles(view) {
      const columns = view.names.filter((name) => view.heads.some((head) => name in head.scores));
      const head = element("tr", {}, ...["layer", "head", "role", ...columns, "loss without it"].map((name, i) => element("th", { class: i > 2 ? "number" : "" }, name)));
      const order = [...view.heads].sort((a, b) => (b.rise ?? -1) - (a.rise ?? -1) || a.layer - b.layer || a.head - b.head);
      const rows = order.map((each) => element("tr", {}, element("td", {}, (each.stack === "model" ? "" : each.stack + " ") + each.layer), element("td", {}, element("button", { type: "button", onclick: () => showHead(each.path, each.head) }, String(each.head))), element("td", {}, each.role || "–"), ...columns.map((name) => {
        const score = each.scores[name] ?? null, cell = element("td", { class: "number" }, figure(score));
        return score === null ? cell : paint(cell, mix(Math.max(0, Math.min(1, score)) * 0.9));
      }), element("td", { class: "number" }, each.rise === null ? "" : `${each.rise >= 0 ? "+" : ""}${figure(each.rise)} (${figure(each.interval[0])} to ${figure(each.interval[1])})`)));
      return [element("p", { class: "muted" }, `Scores between 0 and 1, on ${view.on}. The last column is the rise of the loss, in nats, when the head is replaced by its mean, with a 95 % interval; it was measured for the highest scores.`), element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)))];
    },
    words(view) {
      const boxes = [element("p", { class: "note" }, view.sentence)];
      for (const name in view.measures) {
        const values = view.measures[name], most = Math.max(1e-12, ...values.map((v) => Math.abs(v ?? 0)));
        const agreed = name in view.agreement ? `rank correlation with ablation ${figure(view.agreement[name])}` : `change of the output without the position${view.ablated ? `, measured at the ${view.ablated} positions with the highest integrated gradients` : ""}`;
        const about = name === "integrated gradients" ? `${agreed}; baseline: ${view.baseline}; completeness error ${figure(view.error)} in ${view.steps} steps` : agreed;
        boxes.push(element("h2", {}, name), element("p", { class: "muted" }, about), strip("model", values.length, (i) => (values[i] ?? 0) / most, (i) => set({ position: i }), state.position, (i, label) => `${label}\n${figure(values[i])}`));
      }
      return boxes;
    },
    hidden(view) {
      const points = view.points.length, count = view.cosines.shape[1], labels = labelsOf("model", count);
      state.point = Math.min(state.point, points - 1);
      const cosine = (i) => value("hidden", view.cosines, state.point * count * count + i), depth = (i) => value("hidden", view.depth, i);
      const pick = element("input", { type: "range", min: 0, max: points - 1, value: state.point, "aria-label": "Point", oninput: (event) => set({ point: +event.target.value }) });
      return [element("p", { class: "muted" }, "Cosines of hidden states. Their mean over pairs of positions rises towards 1 as the positions cluster."), element("h2", {}, "Mean cosine over depth"), line(view.mean, view.points, "Mean cosine over depth"), element("div", { class: "columns" },
        element("div", {}, element("h2", {}, "Between positions"), element("div", { class: "bar" }, element("label", {}, "Point", pick, view.points[state.point])), element("div", { class: "scroll" }, matrix(count, count, (i) => cosine(i) || 0, (r, c) => `${labels[r]} · ${labels[c]}\n${figure(cosine(r * count + c))}`))),
        element("div", {}, element("h2", {}, "Between points"), element("div", { class: "scroll" }, matrix(points, points, (i) => depth(i) || 0, (r, c) => `${view.points[r]} · ${view.points[c]}\n${figure(depth(r * points + c))}`)))), element("h2", {}, "Mean length"), line(view.norms, view.points, "Mean length of hidden states over depth")];
    },
    neurons(view) {
      state.branch = Math.max(0, Math.min(state.branch, view.branches.length - 1));
      const branch = view.branches[state.branch], byInput = state.order !== "rows";
      const order = [...branch.neurons].sort((a, b) => byInput ? b.here - a.here : b.places.at(-1).value - a.places.at(-1).value).slice(0, 24), most = Math.max(1e-12, ...order.map((each) => each.places[0]?.value ?? 0));
      const token = data.sides.model.labels[view.position] ?? view.position, encodes = branch.stack === "encoder";
      const rows = order.map((each) => element("tr", {}, element("td", { class: "number" }, String(each.neuron)), element("td", { class: "number" }, figure(each.here)), element("td", { class: "number" }, (100 * each.share).toFixed(0) + " %"), element("td", { class: "places" }, ...each.places.map((place) => {
        const mark = paint(element("mark", {}, shown(place.token)), mix(Math.max(0, place.value / most)));
        tell(mark, `${figure(place.value)}; mean over all positions ${figure(each.mean)}`);
        return element("div", {}, place.before.replaceAll("\n", "↵"), mark, place.after.replaceAll("\n", "↵"));
      }))));
      const titles = ["neuron", encodes ? "highest in the source" : `at “${shown(token)}”`, "above 0", `fires most at, in ${view.over}`].map((name, i) => element("th", { class: i < 3 ? "number" : "" }, name));
      return [element("p", { class: "muted" }, `Neurons of feed-forward networks and slots of memories: ${encodes ? "their highest value in the source" : `their value at position ${view.position} of the input`}, the share of positions where it is above 0, and the ${order[0]?.places.length ?? 0} tokens with the highest values, of ${branch.read.toLocaleString("en")} positions of ${view.over}.`),
        element("div", { class: "bar" }, choice("Layer", view.branches.map((each, i) => [i, `${each.layer} (${each.path}), ${each.count.toLocaleString("en")} ${each.part.replaceAll("_", " ")}`]), state.branch, (branch) => set({ branch: +branch })), choice("First", [["input", "highest for this input"], ["rows", "highest over all rows"]], state.order, (order) => set({ order }))),
        element("div", { class: "scroll" }, element("table", { class: "neurons" }, element("thead", {}, element("tr", {}, ...titles)), element("tbody", {}, ...rows)))];
    },
    checkpoints(view) {
      const steps = view.steps, names = steps.map((step) => `step ${step.toLocaleString("en")}`), boxes = [element("p", { class: "muted" }, `The same measures at ${steps.length} checkpoints of this run; heads are scored on ${view.on}.`)];
      boxes.push(element("div", { class: "charts" }, ...Object.entries(view.lines).map(([name, values]) => element("div", {}, element("h2", {}, name), chart([{ name, values, colour: 0 }], names, name, steps)))));
      if (!view.heads.length) return boxes;
      const strongest = (role) => Math.max(...Array.from({ length: count }, (_, i) => value("checkpoints", view.scores, view.names.indexOf(role) * count + i) || 0)), count = view.heads.length * steps.length;
      if (!view.names.includes(state.role)) state.role = view.names.includes("induction") ? "induction" : view.names[0];
      const first = view.names.indexOf(state.role) * count, at = (h, s) => value("checkpoints", view.scores, first + h * steps.length + s), reached = view.reached[state.role];
      const series = view.heads.map((head, h) => ({ name: `layer ${head.layer} head ${head.head}`, values: steps.map((_, s) => at(h, s)), pick: () => showHead(head.path, head.head) }));
      const high = (each) => Math.max(0, ...each.values.filter((v) => !Number.isNaN(v)));
      [...series].sort((a, b) => high(b) - high(a)).slice(0, 6).forEach((each, i) => { each.colour = i; });
      boxes.push(element("h2", {}, "Roles of heads"), element("div", { class: "bar" }, choice("Role", view.names.map((name) => [name, `${name} (highest ${figure(strongest(name))})`]), state.role, (role) => set({ role }))),
        element("p", {}, reached ? `The score of “${state.role}” first reaches ${view.threshold} at step ${reached.step.toLocaleString("en")}, in layer ${reached.layer}, head ${reached.head}.` : `No head reaches a score of ${view.threshold} for “${state.role}”.`),
        chart(series, names, `Score of ${state.role}`, steps), legend(series),
        element("h2", {}, "All heads: rows are heads, columns checkpoints"), element("div", { class: "scroll" }, matrix(series.length, steps.length, (i) => Math.min(1, at(Math.floor(i / steps.length), i % steps.length) || 0), (h, s) => `${series[h].name}, ${names[s]}\n${figure(at(h, s))}`, (h) => series[h].pick())));
      return boxes;
    },
  };

  // ---- maps of heads or branches, for attention and influence
  const groupsOf = (view) => {
    const groups = new Map();
    for (const map of view.maps) {
      const key = `${map.stack} ${map.kind}`;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(map);
    }
    return [...groups];
  };
  const sidesOf = (map) => {
    const [, rows, columns] = map.weights.shape, own = map.stack === "latents" ? "" : map.stack === "encoder" ? "encoder" : "model";
    const other = map.kind === "cross" ? "encoder" : own;
    return [own, rows, other, columns];
  };
  const thumbnail = (name, map, head) => {
    const [, rows, columns] = map.weights.shape, size = 34, canvas = element("canvas", { width: size, height: size, "aria-hidden": "true" });
    numbers(name, map.weights);
    const context = canvas.getContext("2d"), picture = context.createImageData(size, size), first = head * rows * columns, bytes = map.weights.bytes, pixels = new Uint32Array(picture.data.buffer);
    for (let y = 0; y < size; y++) for (let x = 0; x < size; x++) {
      let most = 0;
      const top = Math.floor(y * rows / size), bottom = Math.max(top + 1, Math.floor((y + 1) * rows / size)), left = Math.floor(x * columns / size), right = Math.max(left + 1, Math.floor((x + 1) * columns / size));
      for (let r = top; r < bottom && r < rows; r++) for (let c = left; c < right && c < columns; c++) most = Math.max(most, bytes[first + r * columns + c]);
      pixels[y * size + x] = ramps[0][most];
    }
    context.putImageData(picture, 0, 0);
    return canvas;
  };
  const cache = new Map();  // drawn thumbnails, which a change of head or position leaves as they are
  const maps = (view, name) => {
    const groups = groupsOf(view);
    state.group = Math.min(state.group, groups.length - 1);
    const [label, group] = groups[state.group];
    state.layer = Math.max(0, Math.min(state.layer, group.length - 1));
    const map = group[state.layer], heads = map.weights.shape[0];
    state.head = Math.max(0, Math.min(state.head, heads - 1));
    const [own, rows, other, columns] = sidesOf(map), first = state.head * rows * columns;
    numbers(name, map.weights);
    const { bytes } = map.weights, table = map.weights.values.table;
    let most = 0;
    for (let i = first; i < first + rows * columns; i++) most = Math.max(most, bytes[i]);
    const scale = Math.max(1e-12, table[most]);
    const row = Math.max(0, Math.min(state.position, rows - 1)), rowLabels = labelsOf(own, rows), columnLabels = labelsOf(other, columns);
    const at = (r, c) => table[bytes[first + r * columns + c]];
    const key = `${name} ${state.group} ${dark.matches}`;
    if (!cache.has(key)) {
      const width = Math.max(...group.map((each) => each.weights.shape[0]));
      const grid = element("div", { class: "heads", style: `grid-template-columns: max-content repeat(${width}, max-content)` });
      group.forEach((each, layer) => {
        grid.append(element("span", {}, `${each.layer} ${each.part.replaceAll("_", " ")}`));
        for (let head = 0; head < width; head++) {
          const button = head < each.weights.shape[0] ? element("button", { type: "button", "aria-label": `Layer ${each.layer}, head ${head}`, onclick: () => set({ layer, head }) }, thumbnail(name, each, head)) : element("span", {});
          button.dataset.place = `${layer} ${head}`;
          grid.append(button);
        }
      });
      cache.set(key, grid);
    }
    const grid = cache.get(key);
    for (const each of grid.children) if (each.tagName === "BUTTON") each.setAttribute("aria-pressed", String(each.dataset.place === `${state.layer} ${state.head}`));
    const controls = element("div", { class: "bar" },
      ...(groups.length > 1 ? [choice("Of", groups.map(([text], i) => [i, text]), state.group, (g) => set({ group: +g, layer: 0, head: 0 }))] : []),
      choice("Layer", group.map((each, i) => [i, `${each.layer} (${each.path})`]), state.layer, (layer) => set({ layer: +layer })),
      ...(heads > 1 ? [choice("Head", Array.from({ length: heads }, (_, i) => [i, String(i)]), state.head, (head) => set({ head: +head }))] : []),
      ...(served && name === "attention" ? [element("button", { type: "button", onclick: () => takeOut(map.path, state.head) }, isOut(map.path, state.head) ? "Put the head back" : "Take the head out")] : []));
    const words = (r, c) => `${shown(rowLabels[r])} ${name === "attention" ? "reads" : "depends on"} ${shown(columnLabels[c])}\n${figure(at(r, c))}`;
    const about = name === "attention" ? `What position ${row}, “${shown(rowLabels[row] ?? row)}”, reads` : `How much output ${row}, “${shown(rowLabels[row] ?? row)}”, depends on each input` + (map.probes ? `, estimated by ${map.probes} probes` : "");
    return [
      controls,
      element("div", { class: "scroll" }, grid),
      element("div", { class: "columns" },
        element("div", {}, element("h2", {}, `Layer ${map.layer}${heads > 1 ? `, head ${state.head}` : ""}: rows are positions, columns what they ${name === "attention" ? "read" : "depend on"}`), element("div", { class: "scroll" }, matrix(rows, columns, (i) => table[bytes[first + i]] / scale, words, (r) => set({ position: r })))),
        element("div", {}, element("h2", {}, about),
          own !== other || data.sides[own]?.grid.length ? strip(own, rows, (i) => (i === row ? 0.25 : 0), (i) => set({ position: i }), row, (i, text) => text) : "",
          strip(other, columns, (i) => at(row, i) / scale, (i) => (own === other ? set({ position: i }) : null), own === other ? row : -1, (i) => words(row, i)),
          arcs(rows, columns, rowLabels, columnLabels, at, scale, row))),
      element("p", { class: "muted" }, name === "attention" ? "Weights are not explanations: the view “Words” sets them beside what happens when a position is taken out, and “Head roles” what happens without a head." : ""),
    ];
  };
  const arcs = (rows, columns, rowLabels, columnLabels, at, scale, chosen) => {
    const most = 64, from = Math.max(0, Math.min(chosen - most / 2, rows - most)), left = Math.max(0, Math.min(chosen - most / 2, columns - most));
    const r = Math.min(most, rows), c = Math.min(most, columns), step = 15, width = 380, height = Math.max(r, c) * step + 8, ratio = devicePixelRatio || 1;
    const canvas = element("canvas", { class: "arcs", width: width * ratio, height: height * ratio, style: `width:${width}px;aspect-ratio:${width} / ${height}`, role: "img", "aria-label": "Lines from positions to what they read" }), context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink"), muted = getComputedStyle(document.documentElement).getPropertyValue("--muted");
    context.font = "12px ui-monospace, monospace";
    context.textBaseline = "middle";
    const fit = (text) => { const s = shown(text); return s.length > 14 ? s.slice(0, 13) + "…" : s; };
    for (let i = 0; i < r; i++) { context.fillStyle = from + i === chosen ? ink : muted; context.textAlign = "right"; context.fillText(fit(rowLabels[from + i]), 112, i * step + 10); }
    for (let j = 0; j < c; j++) { context.fillStyle = muted; context.textAlign = "left"; context.fillText(fit(columnLabels[left + j]), width - 112, j * step + 10); }
    const curve = (i, j, share, colour) => {
      const y0 = (i - from) * step + 10, y1 = (j - left) * step + 10;
      context.strokeStyle = colour; context.globalAlpha = share; context.lineWidth = 0.5 + 2 * share;
      context.beginPath(); context.moveTo(116, y0); context.bezierCurveTo(190, y0, 190, y1, width - 116, y1); context.stroke();
    };
    for (let i = from; i < from + r; i++) if (i !== chosen) for (let j = left; j < left + c; j++) { const share = at(i, j) / scale; if (share > 0.15) curve(i, j, share * 0.25, css(high)); }
    for (let j = left; j < left + c; j++) { const share = at(chosen, j) / scale; if (share > 0.02) curve(chosen, j, Math.min(1, 0.2 + share), css(low)); }
    context.globalAlpha = 1;
    canvas.onclick = (event) => { const box = canvas.getBoundingClientRect(), i = Math.floor((event.clientY - box.top) / box.height * height / step); if (i >= 0 && i < r) set({ position: from + i }); };
    return canvas;
  };
  const showHead = (path, head) => {
    const view = data.views.attention && data.views.attention.data;
    if (!view) return set({ view: "attention" });
    groupsOf(view).forEach(([, group], number) => { const layer = group.findIndex((map) => map.path === path); if (layer >= 0) set({ view: "attention", group: number, layer, head }); });
  };

  // ---- changes, which the server computes
  const isOut = (path, head) => data.ablated.some(([p, h]) => p === path && h === head);
  const takeOut = (path, head) => change({ ablated: isOut(path, head) ? data.ablated.filter(([p, h]) => p !== path || h !== head) : [...data.ablated, [path, head]] });
  const whatIf = () => {
    const fields = Object.entries(data.row).map(([name, text]) => element("label", { style: "display:block" }, name, element("textarea", { name, "aria-label": name }, text)));
    const out = data.ablated.map(([path, head]) => element("button", { type: "button", onclick: () => takeOut(path, head) }, `${path} head ${head} is out: put it back`));
    const form = element("form", { onsubmit: (event) => { event.preventDefault(); change({ row: Object.fromEntries([...form.querySelectorAll("textarea")].map((area) => [area.name, area.value])) }); } }, ...fields, element("div", { class: "bar" }, element("button", { type: "submit" }, "Compute"), ...out));
    return [form];
  };
  async function request(body) {
    const response = await fetch("view", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    return answer;
  }
  async function change(changed) {
    const old = data.views.answers && data.views.answers.data, asked = { row: data.row, ablated: data.ablated, ...changed };
    busy("Computing …");
    try {
      const answer = await request({ ...asked, views: ["answers", ...(state.view === "answers" ? [] : [state.view])] });
      if (old && old.logits) { before = { ...old, logits: { ...old.logits, values: null } }; arrays.before = arrays.answers; }
      for (const name of Object.keys(arrays)) if (name !== "before") delete arrays[name];
      cache.clear();
      Object.assign(data, { sides: answer.sides, views: answer.views, row: asked.row, ablated: asked.ablated, title: answer.title });
      await show();
    } catch (error) { refuse(error.message); }
  }

  // ---- the page
  const busy = (text) => $("view").replaceChildren(element("p", { class: "muted" }, text));
  const refuse = (text) => $("view").replaceChildren(element("p", { class: "note refused", role: "alert" }, text), ...(state.view === "answers" && served ? whatIf() : []));
  async function show() {
    const name = state.view;
    for (const tab of $("tabs").children) tab.setAttribute("aria-selected", String(tab.dataset.view === name));
    if (!data.views[name]) {
      if (!served) return refuse("This file was written without this view.");
      busy("Computing …");
      try { data.views[name] = (await request({ row: data.row, ablated: data.ablated, views: [name] })).views[name]; } catch (error) { return refuse(error.message); }
    }
    await decode(name);
    if (name !== "answers" && data.views.answers) await decode("answers");
    if (state.view === name) render();
  }
  const keepAddress = () => history.replaceState(null, "", "#" + new URLSearchParams(Object.entries(state).filter(([key, each]) => key === "view" || each !== first[key])));
  function render() {
    const began = performance.now(), view = data.views[state.view];
    $("title").textContent = data.title;
    document.title = data.title;
    if (view.refused) refuse(view.refused);
    else $("view").replaceChildren(...draw[state.view](view.data));
    keepAddress();
    document.documentElement.dataset.milliseconds = (performance.now() - began).toFixed(1);
  }
  const first = { ...state };
  const set = (changes) => {
    const other = changes.view && changes.view !== state.view;
    Object.assign(state, changes);
    $("tip").hidden = true;
    if (other) show(); else render();
  };
  const restore = () => {
    for (const [key, text] of new URLSearchParams(location.hash.slice(1))) if (key in first) state[key] = typeof first[key] === "number" ? Number(text) || first[key] : text;
    if (!data.order.includes(state.view)) state.view = "answers";
  };
  data.order.forEach((name, i) => $("tabs").append(element("button", { type: "button", role: "tab", "data-view": name, title: `key ${(i + 1) % 10}`, onclick: () => set({ view: name }) }, NAMES[name] ?? name)));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(TEXTAREA|INPUT|SELECT)$/.test(event.target.tagName)) return;
    const moves = { ArrowUp: { layer: state.layer - 1 }, ArrowDown: { layer: state.layer + 1 }, ArrowLeft: { head: state.head - 1 }, ArrowRight: { head: state.head + 1 }, ",": { position: Math.max(0, state.position - 1) }, ".": { position: state.position + 1 } };
    if (/^[0-9]$/.test(event.key) && data.order[(+event.key + 9) % 10]) set({ view: data.order[(+event.key + 9) % 10] });
    else if (event.key in moves && ["attention", "influence"].includes(state.view)) { event.preventDefault(); set(moves[event.key]); }
  });
  dark.addEventListener("change", () => { readColours(); cache.clear(); render(); });
  addEventListener("hashchange", () => { restore(); show(); });
  restore();
  show();
})();
