"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("data").textContent).charts;
  const NS = "http://www.w3.org/2000/svg";

  const figure = (v) => {
    if (v === null) return "NaN or infinite";
    const size = Math.abs(v);
    if (Number.isInteger(v) && size < 1e15) return v.toLocaleString("en");
    return size >= 1e-3 && size < 1e6 ? v.toPrecision(4).replace(/e.*/, "") : v.toExponential(2);
  };

  const axis = (text) => {
    const [kind, low, high] = text.split(" ");
    const f = kind === "log" ? Math.log : Number;
    const inverse = kind === "log" ? Math.exp : Number;
    const a = f(+low), b = f(+high);
    return { place: (v) => (f(v) - a) / (b - a), value: (p) => inverse(a + p * (b - a)) };
  };

  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle + 1; else high = middle;
    }
    return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
  };

  const element = (parent, name, attributes) => {
    const made = document.createElementNS(NS, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    return parent.appendChild(made);
  };

  const watch = (holder, svg, chart) => {
    const [left, top, width, height] = svg.dataset.plot.split(" ").map(Number);
    const x = axis(svg.dataset.x), y = axis(svg.dataset.y);
    const lines = chart.lines.filter((line) => line.x.length);
    const places = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    let group = null, tip = null, at = -1;

    const hide = () => { group?.remove(); tip?.remove(); group = tip = null; at = -1; };

    const away = (line, j, i) => Math.abs(x.place(line.x[j]) - x.place(places[i]));

    const row = (line, j, i) => {
      const div = document.createElement("div"), mark = document.createElement("i"), value = document.createElement("b");
      mark.style.background = `var(--s${line.colour % 6})`;
      value.textContent = ` ${figure(line.y[j])}`;
      div.append(mark, line.name, value, away(line, j, i) > 0.004 ? ` at ${figure(line.x[j])}` : "");
      return div;
    };

    const show = (i) => {
      hide();
      at = i;
      const px = left + x.place(places[i]) * width;
      group = element(svg, "g", { class: "cursor" });
      element(group, "line", { x1: px, x2: px, y1: top, y2: top + height });
      tip = document.createElement("div");
      tip.className = "tip";
      tip.append(`${chart.x} ${figure(places[i])}`.trim());
      for (const line of lines) {
        const j = nearest(line.x, places[i]);
        // A line that was measured rarely answers only near its own places.
        if (away(line, j, i) > 0.02) continue;
        tip.append(row(line, j, i));
        const py = top + (1 - y.place(line.y[j])) * height;
        if (line.y[j] !== null && isFinite(py)) {
          element(group, "circle", { cx: left + x.place(line.x[j]) * width, cy: py, r: 4, class: `point s${line.colour % 6}` });
        }
      }
      holder.append(tip);
      const scale = svg.clientWidth / svg.viewBox.baseVal.width, beside = px * scale + 14;
      const fits = beside + tip.offsetWidth < holder.clientWidth;
      tip.style.left = `${Math.max(0, fits ? beside : px * scale - tip.offsetWidth - 14)}px`;
      tip.style.top = `${top * scale + 6}px`;
    };

    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const px = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      if (px < left - 8 || px > left + width + 8) return hide();
      show(nearest(places, x.value((px - left) / width)));
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -25, PageDown: 25 }[event.key];
      if (event.key === "Escape") hide();
      if (!step || !places.length) return;
      event.preventDefault();
      show(at < 0 ? places.length - 1 : Math.min(places.length - 1, Math.max(0, at + step)));
    });
  };

  for (const holder of document.querySelectorAll("figure[data-chart]")) {
    for (const svg of holder.querySelectorAll("svg[data-plot]")) {
      // The browser would show the chart's title beside the pointer; the name stays for screen readers.
      const title = svg.querySelector(":scope > title");
      svg.setAttribute("aria-label", title.textContent);
      title.remove();
      svg.setAttribute("tabindex", "0");
      watch(holder, svg, charts[+holder.dataset.chart]);
    }
  }
  addEventListener("beforeprint", () => { for (const fold of document.querySelectorAll("details")) fold.open = true; });
})();
