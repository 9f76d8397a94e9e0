// Asks for what is new once a second and keeps the page up to date. Everything that is shown came
// as data and is put on the page as text.

import { element, grouped, own } from "./charts.js";
import * as format from "./format.js";
import { PANELS } from "./panels.js";

const EVERY = 1000;
const HELD = 1500;
const RANGES = [[60, "60"], [300, "300"], [HELD, "all"]];

const page = Object.fromEntries(["queries", "name", "state", "about", "error", "tiles", "panels", "empty", "range", "link", "main"]
  .map((id) => [id, document.getElementById(id)]));
let chosen = new URLSearchParams(location.hash.slice(1)).get("query");
let range = 300;
let records = [];
let generation = 0;
const shown = new Map();

// -- asking ----------------------------------------------------------------------------------

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(8000) });
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.json();
}

async function look() {
  const mine = generation;
  try {
    const queries = await ask("api/queries");
    if (!queries.some((query) => query.id === chosen)) choose(queries[0]?.id ?? null, false);
    listQueries(queries);
    if (chosen && mine === generation) await lookAtChosen();
    else if (!chosen) showNothing();
    say("live", `${queries.filter((query) => query.state === "running").length} running`);
  } catch (error) {
    say("gone", "no answer: the page shows what was last known");
  }
}

async function lookAtChosen() {
  const id = chosen;
  const query = await ask(`api/query/${id}?after=${records.at(-1)?.number ?? 0}`);
  if (id !== chosen) return;
  const last = records.at(-1)?.number ?? 0;
  records = [...records, ...query.records.filter((record) => record.number > last)].slice(-HELD);
  draw(query);
}

let asking = false;
async function turn() {
  if (!asking && document.visibilityState === "visible") {
    asking = true;
    await look();
    asking = false;
  }
}

// -- choosing --------------------------------------------------------------------------------

function choose(id, redraw = true) {
  if (id === chosen && records.length) return;
  chosen = id;
  records = [];
  generation += 1;
  for (const each of PANELS) dropPanel(each);
  if (id) history.replaceState(null, "", `#query=${id}`);
  if (redraw) { asking = false; turn(); }
}

function listQueries(queries) {
  const wanted = new Set(queries.map((query) => query.id));
  for (const item of [...page.queries.children]) if (!wanted.has(item.dataset.id)) item.remove();
  queries.forEach((query, at) => {
    let item = [...page.queries.children].find((each) => each.dataset.id === query.id);
    if (!item) {
      const button = element("button", { type: "button" });
      button.addEventListener("click", () => choose(query.id));
      button.addEventListener("keydown", moveBetweenQueries);
      item = element("li", {}, button);
      item.dataset.id = query.id;
    }
    if (page.queries.children[at] !== item) page.queries.insertBefore(item, page.queries.children[at] ?? null);
    drawQuery(item.firstChild, query);
  });
}

function moveBetweenQueries(event) {
  const buttons = [...page.queries.querySelectorAll("button")];
  const at = buttons.indexOf(event.currentTarget);
  const next = { ArrowDown: at + 1, ArrowUp: at - 1 }[event.key];
  if (next == null || !buttons[next]) return;
  event.preventDefault();
  buttons[next].focus();
}

function drawQuery(button, query) {
  const told = query.last ? own(query.last) : {};
  const part = told.budgetBytes ? Math.min(1, told.stateMemoryBytes / told.budgetBytes) : 0;
  if (query.id === chosen) button.setAttribute("aria-current", "true"); else button.removeAttribute("aria-current");
  const meter = element("span", { class: "meter", role: "img", "aria-label": `memory ${format.percent(part)} of the budget` }, element("i"));
  meter.firstChild.style.width = `${100 * part}%`;
  const note = query.state === "running" && query.last ? `${format.count(query.last.processedRowsPerSecond)} events/s` : query.state;
  button.replaceChildren(
    element("span", { class: "query-name" }, element("i", { class: `light ${query.state}` }), query.name),
    element("span", { class: "query-note" }, note), meter);
}

// -- drawing the chosen query ----------------------------------------------------------------

function draw(query) {
  page.name.textContent = query.name;
  document.title = `${query.name} · Icestream`;
  page.state.textContent = { unknown: "runs on another host?" }[query.state] ?? query.state;
  page.state.className = `badge ${query.state}`;
  const parts = [query.checkpoint, `${format.count(query.versions)} versions`, `since ${when(query.started)}`];
  if (query.ended) parts.push(`ended ${when(query.ended)}`);
  if (query.runs > 1) parts.push(`${query.runs} runs`);
  page.about.textContent = parts.join("  ·  ");
  page.error.hidden = !query.error;
  page.error.textContent = query.error ?? "";
  const seen = records.slice(-range);
  page.empty.hidden = seen.length > 0;
  page.empty.textContent = "No version yet: panels come with the first one.";
  drawTiles(query, seen);
  const groups = grouped(seen);
  for (const panel of PANELS) {
    if (!seen.length && panel.id !== "plan") { dropPanel(panel); continue; }
    const state = shown.get(panel.id)?.state ?? panel.build();
    if (!shown.has(panel.id)) addPanel(panel, state);
    if (!panel.update(state, query, seen, groups)) dropPanel(panel);
  }
}

function when(text) {
  const date = new Date(text);
  return Number.isNaN(date.getTime()) ? "?" : `${date.toLocaleDateString("en-CA")} ${date.toLocaleTimeString("en-GB")}`;
}

function addPanel(panel, state) {
  const title = element("h3", { id: `title-${panel.id}` }, panel.title);
  const node = element("section", { class: `panel${panel.wide ? " wide" : ""}`, id: `panel-${panel.id}`, "aria-labelledby": `title-${panel.id}` },
    title, element("p", { class: "panel-about" }, panel.about), panel.node(state));
  const after = PANELS.slice(PANELS.indexOf(panel) + 1).map((each) => shown.get(each.id)?.node).find(Boolean);
  page.panels.insertBefore(node, after ?? null);
  shown.set(panel.id, { state, node });
}

function dropPanel(panel) {
  const found = shown.get(panel.id);
  if (!found) return;
  panel.drop(found.state);
  found.node.remove();
  shown.delete(panel.id);
}

function drawTiles(query, seen) {
  const last = seen.at(-1);
  const tiles = [];
  if (last) {
    const told = own(last);
    const rates = seen.slice(-10).map((record) => record.processedRowsPerSecond ?? 0);
    const mean = rates.reduce((a, b) => a + b, 0) / rates.length;
    tiles.push(["Events/s", format.count(mean), `${format.count(query.events)} events in all`]);
    tiles.push(["Last version", format.milliseconds(last.durationMs?.triggerExecution ?? 0), `${format.count(last.numInputRows)} events`]);
    tiles.push(["Memory", format.bytes(told.stateMemoryBytes), told.budgetBytes ? `${format.percent(told.stateMemoryBytes / told.budgetBytes)} of ${format.bytes(told.budgetBytes)}` : ""]);
    tiles.push(["Log", format.bytes(told.logBytes), `${format.count(told.segments)} segments`]);
    if (told.groups) tiles.push(["Groups", format.count(told.groups), told.coldState?.returned ? `${format.count(told.coldState.returned)} read back` : ""]);
    if (told.updates) tiles.push(["Staleness", format.milliseconds(told.updates.staleness?.averageMs ?? 0), `${format.count(told.updates.waiting)} keys wait`]);
    if (told.watermark) tiles.push(["Watermark", format.eventTime(told.watermark).slice(11, 19), format.eventTime(told.watermark).slice(0, 10)]);
    if (told.diskBytes) tiles.push(["Disk", format.bytes(told.diskBytes), told.diskBudgetBytes ? `${format.percent(told.diskBytes / told.diskBudgetBytes)} of ${format.bytes(told.diskBudgetBytes)}` : "log, exchange and caches"]);
    if (told.badRows) tiles.push(["Bad rows", format.count(told.badRows), "refused and stored"]);
    if (told.lateEvents) tiles.push(["Late", format.count(told.lateEvents), "events came too late"]);
  }
  page.tiles.replaceChildren(...tiles.map(([name, value, note]) =>
    element("div", { class: "tile" }, element("dt", {}, name), element("dd", {}, value, element("small", {}, note)))));
}

function showNothing() {
  page.name.textContent = "No queries yet";
  page.empty.hidden = false;
  page.empty.textContent = "A query shows here as soon as it has started. Start one with .option(\"ui\", True), or give its checkpoint to icestream ui.";
}

function say(state, text) {
  page.link.className = state;
  if (page.link.textContent !== text) page.link.textContent = text;
}

for (const [value, text] of RANGES) {
  const input = element("input", { type: "radio", name: "range", value });
  input.checked = value === range;
  input.addEventListener("change", () => { range = value; asking = false; turn(); });
  page.range.append(element("label", {}, input, text));
}
page.range.append(element("span", {}, "versions"));
document.addEventListener("visibilitychange", turn);
window.addEventListener("hashchange", () => choose(new URLSearchParams(location.hash.slice(1)).get("query")));
setInterval(turn, EVERY);
turn();
