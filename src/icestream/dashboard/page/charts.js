// Small charts in SVG. Every chart over versions shares one horizontal scale, so the line that
// follows the pointer, or the arrow keys, stands at the same version in all of them.

import * as format from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 190;
const MARGIN = { left: 62, right: 12, top: 10, bottom: 22 };
const MOST_POINTS = 240;

// what a record tells beside Spark's own fields
export const own = (record) => record.icestream ?? {};

export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function drawn(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value != null && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

// -- versions in groups, when there are more of them than there is room ---------------------

export function grouped(records, most = MOST_POINTS) {
  const stride = Math.max(1, Math.ceil(records.length / most));
  const groups = [];
  for (let at = 0; at < records.length; at += stride) groups.push(records.slice(at, at + stride));
  return groups;
}

const REDUCE = {
  last: (values) => values.at(-1),
  sum: (values) => values.reduce((a, b) => a + b, 0),
  max: (values) => Math.max(...values),
  mean: (values) => values.reduce((a, b) => a + b, 0) / values.length,
};

export function reduced(groups, read, how) {
  return groups.map((group) => {
    const values = group.map(read).filter((value) => Number.isFinite(value));
    return values.length ? REDUCE[how](values) : null;
  });
}

// -- the shared pointer ----------------------------------------------------------------------

const charts = new Set();
let pointed = null; // part of the width, from 0 to 1

function point(part, source) {
  pointed = part;
  for (const chart of charts) chart.follow(part, chart === source);
  if (part == null) tip().hidden = true;
}

function tip() { return document.getElementById("tip"); }

export function showTip(lines, x, y) {
  const box = tip();
  box.replaceChildren(...lines);
  box.hidden = false;
  const width = box.offsetWidth, height = box.offsetHeight;
  box.style.left = `${Math.max(4, Math.min(x + 14, window.innerWidth - width - 8))}px`;
  box.style.top = `${Math.max(4, Math.min(y + 14, window.innerHeight - height - 8))}px`;
}

export function hideTip() { tip().hidden = true; }

export function tipLine(mark, name, value) {
  return element("div", { class: "tip-line" },
    element("i", { class: `swatch ${mark}` }), element("span", {}, name), element("b", {}, value));
}

// -- scales ----------------------------------------------------------------------------------

// Tops of axes, such that a quarter of each reads well too.
const DECIMAL = [1, 2, 4, 6, 8, 10];
const BINARY = [1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024];
const SECONDS = [2, 4, 8, 20, 40, 60, 120, 240, 480, 1200, 2400, 3600, 7200, 14400, 28800, 43200, 86400];

function niceTop(most, unit) {
  if (!(most > 0)) return 1;
  const needed = most * 1.02;
  if (unit === format.milliseconds && needed > 1000 && needed < 86400e3) {
    return 1000 * SECONDS.find((step) => 1000 * step >= needed);
  }
  const [base, steps] = unit === format.bytes ? [1024, BINARY] : [10, DECIMAL];
  const power = base ** Math.floor(Math.log(most) / Math.log(base));
  return (steps.find((step) => step * power >= needed) ?? 2 * base) * power;
}

function ticksOf(top, logarithmic, bottom) {
  if (!logarithmic) return [0, 0.25, 0.5, 0.75, 1].map((part) => part * top);
  const found = [];
  for (let each = bottom; each <= top * 1.0001; each *= 10) found.push(each);
  return found;
}

// -- one chart over versions -----------------------------------------------------------------

// spec: label, groups, unit (a function of format.js), series: [{name, mark, values, kind}] with
// kind line, area, stack or bar; limit: {name, value} a line that is not to be crossed.
export class TimeChart {
  constructor(label) {
    this.label = label;
    this.svg = drawn("svg", { class: "chart", role: "img", tabindex: "0" });
    this.legend = element("ul", { class: "legend" });
    this.node = element("div", { class: "figure" }, this.svg, this.legend);
    this.hidden = new Set();
    charts.add(this);
    this.svg.addEventListener("pointermove", (event) => this.pointerAt(event));
    this.svg.addEventListener("pointerleave", () => point(null, this));
    this.svg.addEventListener("blur", () => point(null, this));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.observer = new ResizeObserver(() => this.spec && this.draw());
    this.observer.observe(this.node);
  }

  remove() {
    this.observer.disconnect();
    charts.delete(this);
    this.node.remove();
  }

  show(spec) { this.spec = spec; this.draw(); }

  draw() {
    const { groups, unit, limit, logarithmic = false } = this.spec;
    const series = this.spec.series.filter((each) => each.values.some((value) => value != null));
    const shown = series.filter((each) => !this.hidden.has(each.name));
    const width = Math.max(260, this.node.clientWidth);
    this.width = width;
    const stacked = this.stack(shown, groups.length);
    const values = shown.flatMap((each) => stacked.get(each)?.tops ?? each.values).filter((v) => v != null);
    const most = Math.max(0, ...values, limit && !logarithmic ? limit.value : 0);
    const least = Math.min(...values.filter((value) => value > 0), most || 1);
    const bottom = logarithmic ? 10 ** Math.floor(Math.log10(least || 1)) : 0;
    const top = logarithmic ? 10 ** Math.max(Math.ceil(Math.log10(most || 1)), Math.log10(bottom) + 1)
      : niceTop(most, unit);
    const low = MARGIN.left, high = width - MARGIN.right;
    const floor = HEIGHT - MARGIN.bottom;
    const step = (high - low) / Math.max(1, groups.length);
    this.x = (at) => low + step * (at + 0.5);
    this.y = logarithmic
      ? (v) => floor - (floor - MARGIN.top) * Math.log(Math.max(v, bottom) / bottom) / Math.log(top / bottom)
      : (v) => floor - (floor - MARGIN.top) * v / top;
    const parts = [];
    for (const tick of ticksOf(top, logarithmic, bottom)) {
      const y = this.y(tick);
      parts.push(drawn("line", { class: "grid", x1: low, x2: high, y1: y, y2: y }),
        drawn("text", { class: "tick", x: low - 6, y: y + 3.5, "text-anchor": "end" }, unit(tick)));
    }
    parts.push(...this.times(groups, low, high));
    for (const each of shown) parts.push(...this.shape(each, stacked.get(each), step, floor));
    if (limit?.value > 0 && this.y(limit.value) >= 0) {
      const y = this.y(limit.value);
      parts.push(drawn("line", { class: "limit", x1: low, x2: high, y1: y, y2: y }),
        drawn("text", { class: "limit-text", x: high - 2, y: y + (y < 24 ? 13 : -5), "text-anchor": "end" },
          `${limit.name} ${unit(limit.value)}`));
    }
    this.cross = drawn("line", { class: "cross", y1: MARGIN.top, y2: floor, visibility: "hidden" });
    parts.push(this.cross);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.setAttribute("height", HEIGHT);
    this.svg.setAttribute("aria-label", this.spoken(series, unit));
    this.svg.replaceChildren(...parts);
    this.drawLegend(series);
    if (pointed != null) this.follow(pointed, false);
  }

  stack(shown, length) {
    const stacked = new Map();
    const floors = new Array(length).fill(0);
    for (const each of shown.filter((one) => one.kind === "stack")) {
      const bottoms = floors.slice();
      each.values.forEach((value, at) => { floors[at] += value ?? 0; });
      stacked.set(each, { bottoms, tops: floors.slice() });
    }
    return stacked;
  }

  shape(series, stacked, step, floor) {
    const mark = series.mark;
    if (series.kind === "stack" || series.kind === "bar") {
      const wide = Math.max(1, step - (step > 5 ? 2 : 0.4));
      const parts = series.values.map((value, at) => {
        if (!value) return "";
        const y = this.y(stacked ? stacked.tops[at] : value);
        const base = stacked ? this.y(stacked.bottoms[at]) : floor;
        return `M${(this.x(at) - wide / 2).toFixed(1)} ${base.toFixed(1)}V${y.toFixed(1)}h${wide.toFixed(1)}V${base.toFixed(1)}Z`;
      });
      return [drawn("path", { class: `bar ${mark}`, d: parts.join("") })];
    }
    let path = "", area = "", open = null;
    series.values.forEach((value, at) => {
      if (value == null) { if (open != null) area += `V${floor}H${open}Z`; open = null; return; }
      const x = this.x(at).toFixed(1), y = this.y(value).toFixed(1);
      path += `${open == null ? "M" : "L"}${x} ${y}`;
      area += `${open == null ? `M${x} ${floor}L` : "L"}${x} ${y}`;
      open ??= x;
    });
    if (open != null) area += `V${floor}H${open}Z`;
    const found = [drawn("path", { class: `line ${mark}${series.kind === "dashed" ? " dashed" : ""}`, d: path })];
    if (series.kind === "area") found.unshift(drawn("path", { class: `area ${mark}`, d: area }));
    const only = series.values.filter((value) => value != null).length === 1;
    if (only) {
      const at = series.values.findIndex((value) => value != null);
      found.push(drawn("circle", { class: `dot ${mark}`, cx: this.x(at), cy: this.y(series.values[at]), r: 3 }));
    }
    return found;
  }

  times(groups, low, high) {
    if (!groups.length) return [];
    const span = timeOf(groups.at(-1)) - timeOf(groups[0]);
    const wanted = Math.max(2, Math.min(5, Math.floor((high - low) / 110)));
    const places = [...new Set(Array.from({ length: wanted }, (_, n) => Math.round(n * (groups.length - 1) / (wanted - 1))))];
    return places.map((at, n) => drawn("text", {
      class: "tick", y: HEIGHT - 6, x: this.x(at),
      "text-anchor": places.length > 1 && n === 0 ? "start" : n === places.length - 1 ? "end" : "middle",
    }, format.clock(timeOf(groups[at]), span)));
  }

  drawLegend(series) {
    const names = series.map((each) => each.name + each.mark + this.hidden.has(each.name)).join("|");
    if (this.names === names) return;
    this.names = names;
    this.legend.replaceChildren(...series.map((each) => {
      const off = this.hidden.has(each.name);
      const button = element("button", { type: "button", "aria-pressed": String(!off) },
        element("i", { class: `swatch ${each.mark}` }), each.name);
      button.addEventListener("click", () => {
        if (off) this.hidden.delete(each.name); else this.hidden.add(each.name);
        this.draw();
        [...this.legend.querySelectorAll("button")].find((other) => other.textContent === each.name)?.focus();
      });
      return element("li", {}, button);
    }));
  }

  spoken(series, unit) {
    const last = series.map((each) => {
      const value = each.values.findLast((one) => one != null);
      return `${each.name} ${unit(value)}`;
    });
    return `${this.label}. Last: ${last.join(", ")}`;
  }

  pointerAt(event) {
    const box = this.svg.getBoundingClientRect();
    const count = this.spec.groups.length;
    const inner = this.width - MARGIN.left - MARGIN.right;
    const part = ((event.clientX - box.left) * this.width / box.width - MARGIN.left) / inner;
    this.at = { x: event.clientX, y: event.clientY };
    point(count && part >= 0 && part <= 1 ? part : null, this);
  }

  key(event) {
    const count = this.spec.groups.length;
    const now = pointed == null ? count : Math.min(count - 1, Math.floor(pointed * count));
    const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: count - 1 }[event.key];
    if (event.key === "Escape") point(null, this);
    if (next == null || !count) return;
    event.preventDefault();
    const box = this.svg.getBoundingClientRect();
    const at = Math.max(0, Math.min(count - 1, next));
    this.at = { x: box.left + this.x(at), y: box.top + 20 };
    point((at + 0.5) / count, this);
  }

  follow(part, tell) {
    if (!this.cross || !this.spec) return;
    const { groups, series, unit } = this.spec;
    if (part == null || !groups.length) { this.cross.setAttribute("visibility", "hidden"); return; }
    const at = Math.min(groups.length - 1, Math.floor(part * groups.length));
    this.cross.setAttribute("visibility", "visible");
    this.cross.setAttribute("x1", this.x(at));
    this.cross.setAttribute("x2", this.x(at));
    if (!tell || !this.at) return;
    const group = groups[at];
    const versions = group.length > 1 ? `versions ${group[0].version}–${group.at(-1).version}` : `version ${group[0].version}`;
    const lines = [element("div", { class: "tip-head" }, `${versions} · ${format.clock(timeOf(group))}`)];
    for (const each of series) {
      if (each.values[at] != null && !this.hidden.has(each.name)) {
        lines.push(tipLine(each.mark, each.name, (each.unit ?? unit)(each.values[at])));
      }
    }
    showTip(lines, this.at.x, this.at.y);
  }
}

export function timeOf(group) { return Date.parse(group.at(-1).timestamp); }

// -- bars that lie: one for each thing, cut into parts ---------------------------------------

// rows: [{name, note, parts: [{name, mark, value}]}]
export function lyingBars(rows, unit, label) {
  const most = Math.max(1, ...rows.map((row) => row.parts.reduce((sum, part) => sum + part.value, 0)));
  const list = element("div", { class: "lying", role: "img", tabindex: "0", "aria-label":
    `${label}. ${rows.map((row) => `${row.name}: ${row.parts.map((part) => `${part.name} ${unit(part.value)}`).join(", ")}`).join("; ")}` });
  for (const row of rows) {
    const bar = drawn("svg", { class: "bar-row", viewBox: "0 0 1000 22", preserveAspectRatio: "none" });
    let from = 0;
    for (const part of row.parts) {
      const wide = 1000 * part.value / most;
      const rect = drawn("rect", { class: `bar ${part.mark}`, x: from, y: 2, width: Math.max(0, wide - (wide > 6 ? 2 : 0)), height: 18 });
      rect.addEventListener("pointermove", (event) => showTip(
        [element("div", { class: "tip-head" }, row.name), ...row.parts.map((one) => tipLine(one.mark, one.name, unit(one.value)))],
        event.clientX, event.clientY));
      rect.addEventListener("pointerleave", hideTip);
      bar.append(rect);
      from += wide;
    }
    list.append(element("div", { class: `lying-row${row.chosen ? " chosen" : ""}` },
      element("span", { class: "lying-name" }, row.name), bar,
      element("span", { class: "lying-note" }, row.note)));
  }
  return list;
}

export function legendOf(parts) {
  return element("ul", { class: "legend plain" }, ...parts.map((part) =>
    element("li", {}, element("i", { class: `swatch ${part.mark}` }), part.name)));
}
