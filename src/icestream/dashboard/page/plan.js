// The plan as boxes in columns, with arrows from left to right.

import { drawn } from "./charts.js";

const LETTER = 6.7, LINE = 17, PAD = 12, GAP_X = 96, GAP_Y = 18;

export function drawPlan(plan, notes) {
  const columns = [];
  for (const box of plan.boxes) (columns[box.column] ??= []).push(measured(box, notes.get(box.id)));
  const used = columns.filter(Boolean);
  let x = 4;
  const places = new Map();
  const tallest = Math.max(...used.map((column) => column.reduce((sum, box) => sum + box.height + GAP_Y, -GAP_Y)));
  for (const column of used) {
    const wide = Math.max(...column.map((box) => box.width));
    const tall = column.reduce((sum, box) => sum + box.height + GAP_Y, -GAP_Y);
    let y = 4 + (tallest - tall) / 2;
    for (const box of column) {
      places.set(box.id, { ...box, x, y, width: wide });
      y += box.height + GAP_Y;
    }
    x += wide + GAP_X;
  }
  const width = x - GAP_X + 4, height = tallest + 8;
  const svg = drawn("svg", { class: "plan", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": spoken(plan) });
  svg.append(drawn("defs", {}, drawn("marker", { id: "arrow-end", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto" },
    drawn("path", { class: "arrow-head", d: "M0 0L8 4L0 8z" }))));
  for (const arrow of plan.arrows) {
    const from = places.get(arrow.from), to = places.get(arrow.to);
    if (from && to) svg.append(...arrowBetween(from, to, arrow.text, plan.arrows));
  }
  for (const box of places.values()) svg.append(boxOf(box));
  return svg;
}

function measured(box, note) {
  const lines = note ? [...box.lines, note] : box.lines;
  const longest = Math.max(box.id.length + 2, ...lines.map((line) => line.length));
  return { ...box, note, shown: lines, width: longest * LETTER + 2 * PAD, height: LINE * (lines.length + 1) + 2 * PAD - 4 };
}

function boxOf(box) {
  const group = drawn("g", { class: `box ${box.kind}` }, drawn("title", {}, [box.id, ...box.all].join("\n")),
    drawn("rect", { x: box.x, y: box.y, width: box.width, height: box.height, rx: 8 }),
    drawn("text", { class: "box-title", x: box.x + PAD, y: box.y + PAD + 9 }, box.id));
  box.shown.forEach((line, at) => group.append(
    drawn("text", { class: at === box.shown.length - 1 && box.note ? "box-note" : "box-line", x: box.x + PAD, y: box.y + PAD + 9 + LINE * (at + 1) }, line)));
  return group;
}

// arrows that share an end are spread along it
function arrowBetween(from, to, text, arrows) {
  const leaving = arrows.filter((each) => each.from === from.id), coming = arrows.filter((each) => each.to === to.id);
  const out = leaving.findIndex((each) => each.to === to.id && each.text === text), into = coming.findIndex((each) => each.from === from.id && each.text === text);
  const x1 = from.x + from.width, y1 = from.y + from.height * (out + 1) / (leaving.length + 1);
  const x2 = to.x - 2, y2 = to.y + to.height * (into + 1) / (coming.length + 1);
  const bend = Math.max(24, (x2 - x1) / 2);
  const parts = [drawn("path", { class: "arrow", d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`, "marker-end": "url(#arrow-end)" })];
  const room = Math.floor((GAP_X - 12) / 5.6);
  if (text) {
    const short = text.length > room ? `${text.slice(0, room - 1)}…` : text;
    const crowded = coming.length > 1;
    parts.push(drawn("text", { class: "arrow-text", x: crowded ? x1 + 6 : x2 - 10, y: (crowded ? y1 : y2) - 6, "text-anchor": crowded ? "start" : "end" }, short, drawn("title", {}, text)));
  }
  return parts;
}

function spoken(plan) {
  const boxes = plan.boxes.map((box) => `${box.id}: ${box.all.join(", ")}`);
  const arrows = plan.arrows.map((arrow) => `${arrow.from} to ${arrow.to} ${arrow.text}`);
  return `Plan. ${boxes.join(". ")}. ${arrows.join("; ")}`;
}
