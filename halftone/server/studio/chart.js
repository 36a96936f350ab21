// The curve of a training: every step faint, the smoothed line over it, held-out points beside it.
// The axes do not jump: steps reach to the end from the start, and the height only grows.

import { h, fill, svg, unique } from "./dom.js";
import { loss as lossText, number } from "./format.js";

const HEIGHT = 260;
const EDGE = { left: 52, right: 14, top: 12, bottom: 28 };
const ROWS = 40;

function niceStep(span, parts) {
  const raw = span / parts;
  const power = 10 ** Math.floor(Math.log10(raw || 1));
  return power * ([1, 2, 2.5, 5, 10].find((f) => f * power >= raw) ?? 10);
}

function smooth(points, total) {
  const n = Math.min(200, Math.max(5, total / 25));
  const keep = 1 - 2 / (n + 1);
  let mean = 0;
  let weight = 0;
  return points.map(([step, value]) => {
    mean = keep * mean + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    return [step, mean / weight];
  });
}

export function makeChart() {
  const clip = unique("clip");
  const clipBox = svg("rect", {});
  const grid = svg("g", { class: "grid" });
  const raw = svg("path", { class: "raw", "clip-path": `url(#${clip})` });
  const line = svg("path", { class: "smooth", "clip-path": `url(#${clip})` });
  const held = svg("g", { class: "held", "clip-path": `url(#${clip})` });
  const cursor = svg("g", { class: "cursor", visibility: "hidden" },
    svg("line", {}), svg("circle", { r: 4 }));
  const drawing = svg("svg", { class: "plot", height: HEIGHT, "aria-hidden": "true" },
    svg("defs", {}, svg("clipPath", { id: clip }, clipBox)), grid, raw, line, held, cursor);
  const tip = h("div.tip", { hidden: true });
  const said = h("output.only-read", { "aria-live": "polite" });
  const stage = h("div.chart-stage", { tabIndex: 0, role: "group", "aria-label": "Loss" }, drawing, tip, said);
  const heldKey = h("span.key.held-key", { hidden: true }, "on pictures that it does not learn from");
  const table = h("tbody");
  const asTable = h("details.as-table", null, h("summary", null, "As a table"),
    h("div.scroll", { tabIndex: 0, role: "group", "aria-label": "Loss as a table" }, h("table", null,
      h("thead", null, h("tr", null, ["Step", "Loss", "Smoothed", "Held out"].map((t) => h("th", { scope: "col" }, t)))), table)));
  const node = h("figure.chart", null,
    h("figcaption", null, h("span.key.smooth-key", null, "loss, smoothed"),
      h("span.key.raw-key", null, "every step"), heldKey), stage, asTable);

  let data = { points: [], held: [], total: 1 };
  let lines = [];
  let width = 600;
  let top = 0;
  let at = -1;

  const x = (step) => EDGE.left + (step / Math.max(1, data.total)) * (width - EDGE.left - EDGE.right);
  const y = (value) => HEIGHT - EDGE.bottom - (value / (top || 1)) * (HEIGHT - EDGE.top - EDGE.bottom);

  function grow() {
    if (!data.points.length && !data.held.length) return;
    const values = data.points.map((p) => p[1]).filter(Number.isFinite).sort((a, b) => a - b);
    const most = Math.max(values[Math.floor((values.length - 1) * 0.985)] ?? 0,
      ...lines.map((p) => p[1]), ...data.held.map((p) => p[1]).filter(Number.isFinite));
    if (most <= top) return;
    const step = niceStep(most * 1.08, 4);
    top = Math.ceil((most * 1.08) / step) * step;
  }

  /// At most two points per column of pixels, the least and the most, so that spikes stay.
  function rawPath() {
    const columns = new Map();
    for (const [step, value] of data.points) {
      if (!Number.isFinite(value)) continue;
      const column = Math.round(x(step));
      const known = columns.get(column);
      if (!known) columns.set(column, [value, value]);
      else { known[0] = Math.min(known[0], value); known[1] = Math.max(known[1], value); }
    }
    return [...columns].map(([cx, [lo, hi]], i) =>
      `${i ? "L" : "M"}${cx} ${y(hi).toFixed(1)}${lo === hi ? "" : `L${cx} ${y(lo).toFixed(1)}`}`).join("");
  }

  function drawGrid() {
    const parts = [];
    if (top) {
      const step = niceStep(top, 4);
      for (let v = 0; v <= top * 1.0001; v += step) {
        parts.push(svg("line", { x1: EDGE.left, x2: width - EDGE.right, y1: y(v), y2: y(v) }),
          svg("text", { x: EDGE.left - 8, y: y(v) + 4, "text-anchor": "end" }, String(Number(v.toPrecision(4)))));
      }
    }
    const step = Math.max(1, niceStep(data.total, Math.max(3, Math.floor(width / 110))));
    for (let s = 0; s <= data.total * 1.0001; s += step) {
      parts.push(svg("text", { x: x(s), y: HEIGHT - 8, "text-anchor": "middle" }, number(s)));
    }
    fill(grid, parts);
  }

  function draw() {
    drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    drawing.setAttribute("width", width);
    for (const [k, v] of Object.entries({ x: EDGE.left, y: EDGE.top - 6, width: Math.max(0, width - EDGE.left - EDGE.right + 6),
      height: HEIGHT - EDGE.top - EDGE.bottom + 8 })) clipBox.setAttribute(k, v);
    lines = smooth(data.points.filter((p) => Number.isFinite(p[1])), data.total);
    grow();
    drawGrid();
    raw.setAttribute("d", rawPath());
    const every = Math.max(1, Math.floor(lines.length / (2 * width)));
    line.setAttribute("d", lines.filter((_, i) => i % every === 0 || i === lines.length - 1)
      .map(([s, v], i) => `${i ? "L" : "M"}${x(s).toFixed(1)} ${y(v).toFixed(1)}`).join(""));
    fill(held, data.held.map(([s, v]) => svg("circle", { cx: x(s), cy: y(v), r: 4.5 })));
    heldKey.hidden = !data.held.length;
    const last = lines.at(-1);
    stage.setAttribute("aria-label", last
      ? `Loss: ${lossText(lines[0][1])} at step ${lines[0][0]}, ${lossText(last[1])} at step ${last[0]} of ${data.total}. Arrow keys read it.`
      : "Loss: no step yet");
    if (asTable.open) drawTable();
    if (at >= 0) point(at, false);
  }

  function drawTable() {
    const every = Math.max(1, Math.ceil(lines.length / ROWS));
    const heldAt = new Map(data.held);
    const steps = lines.map((p, i) => [p[0], data.points[i]?.[1], p[1]])
      .filter((r, i) => i % every === 0 || i === lines.length - 1 || heldAt.has(r[0]));
    fill(table, steps.map(([step, value, mean]) => h("tr", null, h("th", { scope: "row" }, number(step)),
      h("td", null, lossText(value)), h("td", null, lossText(mean)),
      h("td", null, heldAt.has(step) ? lossText(heldAt.get(step)) : ""))));
  }

  function point(index, speak) {
    at = Math.max(0, Math.min(lines.length - 1, index));
    const p = lines[at];
    if (!p) return;
    const [step, mean] = p;
    const value = data.points.find((q) => q[0] === step)?.[1];
    const near = data.held.find((q) => q[0] === step);
    const text = [`Step ${number(step)}`, `smoothed ${lossText(mean)}`, `this step ${lossText(value)}`,
      near ? `held out ${lossText(near[1])}` : ""].filter(Boolean);
    fill(tip, h("b", null, text[0]), text.slice(1).map((t) => h("span", null, t)));
    tip.hidden = false;
    const cx = x(step);
    tip.classList.toggle("flip", cx > width - 170);
    tip.style.setProperty("--x", `${cx}px`);
    tip.style.setProperty("--y", `${Math.min(y(mean), HEIGHT - 110)}px`);
    cursor.setAttribute("visibility", "visible");
    const [rule, dot] = cursor.children;
    for (const k of ["x1", "x2"]) rule.setAttribute(k, cx);
    rule.setAttribute("y1", EDGE.top);
    rule.setAttribute("y2", HEIGHT - EDGE.bottom);
    dot.setAttribute("cx", cx);
    dot.setAttribute("cy", y(mean));
    if (speak) said.textContent = text.join(", ");
  }

  function away() {
    at = -1;
    tip.hidden = true;
    cursor.setAttribute("visibility", "hidden");
  }

  stage.addEventListener("pointermove", (event) => {
    if (!lines.length) return;
    const px = event.clientX - stage.getBoundingClientRect().left;
    const step = ((px - EDGE.left) / (width - EDGE.left - EDGE.right)) * data.total;
    let lo = 0;
    let hi = lines.length - 1;
    while (lo < hi) {
      const mid = (lo + hi) >> 1;
      if (lines[mid][0] < step) lo = mid + 1; else hi = mid;
    }
    if (lo && step - lines[lo - 1][0] < lines[lo][0] - step) --lo;
    point(lo, false);
  });
  stage.addEventListener("pointerleave", away);
  stage.addEventListener("blur", away);
  stage.addEventListener("keydown", (event) => {
    const big = Math.max(1, Math.round(lines.length / 20));
    const to = { ArrowLeft: at < 0 ? lines.length - 1 : at - 1, ArrowRight: at < 0 ? 0 : at + 1, PageUp: at - big,
      PageDown: at + big, Home: 0, End: lines.length - 1 }[event.key];
    if (to === undefined || !lines.length) return;
    event.preventDefault();
    point(to, true);
  });
  asTable.addEventListener("toggle", () => { if (asTable.open) drawTable(); });
  new ResizeObserver(([entry]) => {
    const now = Math.max(260, Math.round(entry.contentRect.width));
    if (now !== width) { width = now; draw(); }
  }).observe(stage);

  return {
    node,
    /// points and held: [[step, loss]…] in order; `fresh` forgets the height of another run.
    set(next, fresh = false) {
      if (fresh) { top = 0; away(); }
      data = next;
      draw();
    },
  };
}
