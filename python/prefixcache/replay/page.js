"use strict";
// Draws the charts of the report at the width that they have. Each is an element with
// data-chart, the index of its numbers in the JSON beside this script.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const HEIGHT = 240, LEFT = 52, RIGHT = 12, TOP = 22, BOTTOM = 40;
  const charts = JSON.parse(document.getElementById("charts").textContent);

  const element = (name, attributes, parent) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (parent) parent.append(node);
    return node;
  };
  const text = (parent, x, y, anchor, what) => {
    element("text", { x, y, "text-anchor": anchor }, parent).textContent = what;
  };

  // ---------------------------------------------------------------- numbers

  const digits = (value) => (value !== 0 && Math.abs(value) < 10 ? String(+value.toPrecision(2)) : String(Math.round(value)));
  const scaled = (value, steps) => {
    const [size, unit] = steps.find(([least]) => Math.abs(value) >= least) || steps[steps.length - 1];
    return digits(value / size) + unit;
  };
  const FORMATS = {
    percent: (value) => `${+(100 * value).toFixed(100 * value < 10 ? 1 : 0)} %`,
    count: (value) => scaled(value, [[1e9, "G"], [1e6, "M"], [1e4, "k"], [1, ""]].map(([n, u]) => [n === 1e4 ? 1e3 : n, u])),
    us: (value) => scaled(value, [[1e6, " s"], [1e3, " ms"], [1, " µs"], [1e-3, " ns"]]),
  };
  const exact = {
    percent: (value) => `${(100 * value).toFixed(2)} %`,
    count: (value) => value.toLocaleString("en", { maximumFractionDigits: 1 }),
    us: FORMATS.us,
  };

  // ------------------------------------------------------------------ axes

  const linear = (low, high, from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);
  const logarithmic = (low, high, from, to) => {
    const place = linear(Math.log(low), Math.log(high), from, to);
    return (value) => place(Math.log(value));
  };
  const steps = (low, high, count) => {
    const raw = (high - low) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
    const ticks = [];
    for (let k = Math.ceil(low / step); k * step <= high * (1 + 1e-9); k += 1) ticks.push(k * step);
    return ticks;
  };
  const apart = (ticks, place) => {
    const kept = [];
    for (const tick of ticks) if (!kept.length || place(tick) - place(kept[kept.length - 1]) >= 52) kept.push(tick);
    return kept;
  };
  const decades = (low, high, place) => {
    for (const digits of [[1, 2, 5], [1, 3], [1]]) {
      const ticks = [];
      for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high) + 1; e += 1) {
        for (const d of digits) if (d * 10 ** e >= low && d * 10 ** e <= high) ticks.push(d * 10 ** e);
      }
      if (ticks.every((tick, i) => i === 0 || place(tick) - place(ticks[i - 1]) >= 52)) return ticks;
    }
    return [low, high];
  };

  // ----------------------------------------------------------------- chart

  const style = (line) => `line colour${line.colour}${line.wide ? " wide" : ""}${line.dashed ? " dashed" : ""}`;

  const draw = (plot) => {
    const spec = charts[plot.dataset.chart];
    const width = Math.max(220, Math.floor(plot.clientWidth));
    const points = spec.lines.flatMap((line) => line.points);
    plot.textContent = "";
    if (points.length === 0) return;
    key(plot, spec);
    const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
    let low = spec.x.scale === "log" ? Math.min(...xs) : 0, high = Math.max(...xs);
    if (spec.x.scale === "log" && low === high) [low, high] = [low / 2, high * 2];
    const most = Math.max(...ys, spec.y.top || 0) || 1;
    const marks = steps(0, most, 4);
    if (marks[marks.length - 1] < most * (1 - 1e-9)) marks.push(marks[marks.length - 1] + marks[1]);
    const top = marks[marks.length - 1];
    const x = (spec.x.scale === "log" ? logarithmic : linear)(low, high, LEFT, width - RIGHT);
    const y = linear(0, top, HEIGHT - BOTTOM, TOP);

    const svg = element("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img" }, plot);
    svg.setAttribute("aria-label", `${plot.dataset.title}: ${spec.y.label} by ${spec.x.label}; the numbers are in the table`);
    for (const tick of marks) {
      element("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }, svg);
      text(svg, LEFT - 6, y(tick) + 4, "end", FORMATS[spec.y.format](tick));
    }
    text(svg, 0, 12, "start", spec.y.label);
    const ticks = spec.x.ticks ? apart(spec.x.ticks, x)
      : spec.x.scale === "log" ? decades(low, high, x) : steps(low, high, width / 90);
    for (const tick of ticks) {
      const at = x(tick), label = FORMATS[spec.x.format](tick);
      element("line", { class: "grid", x1: at, x2: at, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4 }, svg);
      text(svg, Math.min(at, width - 4 * label.length), HEIGHT - BOTTOM + 17, "middle", label);
    }
    text(svg, width - RIGHT, HEIGHT - 4, "end", spec.x.label);
    for (const line of [...spec.lines].reverse()) { // the first one on top
      const path = line.points.map((p, i) => `${i ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`).join("");
      element("path", { class: style(line), d: path }, svg);
      if (spec.marks) {
        for (const p of line.points) element("circle", { class: `colour${line.colour}`, cx: x(p[0]), cy: y(p[1]), r: 3 }, svg);
      }
    }
    follow(plot, svg, spec, x, width);
  };

  const key = (plot, spec) => {
    if (spec.lines.length < 2) return;
    const list = document.createElement("ul");
    list.className = "key";
    for (const line of spec.lines) {
      const item = document.createElement("li");
      const swatch = element("svg", { viewBox: "0 0 28 10", "aria-hidden": "true" });
      element("line", { class: style(line), x1: 0, x2: 28, y1: 5, y2: 5 }, swatch);
      item.append(swatch, line.name);
      list.append(item);
    }
    plot.append(list);
  };

  // The values under the pointer, in words below the chart.
  const follow = (plot, svg, spec, x, width) => {
    const read = document.createElement("div");
    read.className = "read";
    plot.append(read);
    const cursor = element("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" }, svg);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const at = ((event.clientX - box.left) * width) / box.width;
      const near = (line) => line.points.reduce((a, b) => (Math.abs(x(b[0]) - at) < Math.abs(x(a[0]) - at) ? b : a));
      const lines = spec.lines.filter((line) => line.points.length);
      const place = lines.map(near).reduce((a, b) => (Math.abs(x(b[0]) - at) < Math.abs(x(a[0]) - at) ? b : a))[0];
      cursor.setAttribute("x1", x(place));
      cursor.setAttribute("x2", x(place));
      cursor.setAttribute("visibility", "visible");
      const values = lines.map((line) => `${line.name} ${exact[spec.y.format](near(line)[1])}`);
      read.textContent = `${spec.x.label} ${exact[spec.x.format](place)}: ${values.join(", ")}`;
    });
    svg.addEventListener("pointerleave", () => {
      cursor.setAttribute("visibility", "hidden");
      read.textContent = "";
    });
  };

  const widths = new Map();
  const observer = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (widths.get(target) === target.clientWidth) continue; // drawing changes the height only
      widths.set(target, target.clientWidth);
      draw(target);
    }
  });
  for (const plot of document.querySelectorAll("[data-chart]")) observer.observe(plot);
})();
