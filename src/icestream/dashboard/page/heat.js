// Heat maps: which key groups get how much, in which shard and task, and what each shard takes over time.

import { drawn, element, grouped, hideTip, legendOf, own, showTip, tipLine } from "./charts.js";
import * as format from "./format.js";

// -- key groups by shard ---------------------------------------------------------------------

const RECENT = 10;
const TOLD = 4;

const markOf = (task) => `s${1 + (task ?? 0) % 8}`;

// shard of each key group, from runs of [shard, how many]
function ownersOf(runs) {
  return runs.flatMap(([shard, many]) => Array(Math.min(many, 65536)).fill(shard));
}

function movesIn(records) {
  return records.flatMap((record, at) => {
    const was = own(records[at - 1] ?? {}).taskOfShard, is = own(record).taskOfShard;
    if (!Array.isArray(was) || !Array.isArray(is)) return [];
    return is.flatMap((task, shard) => (was[shard] != null && was[shard] !== task
      ? [{ shard, from: was[shard], to: task, version: record.version }] : []));
  });
}

export const keyGroups = {
  id: "key-groups",
  title: "Key groups by shard",
  about: "Each cell is a key group: the more the last batch sent to it, the stronger; its colour is the task, a bar begins a shard, a frame is a shard that changed its task lately.",
  wide: true,
  build() { return element("div", { class: "figure" }, element("div", { class: "heat" })); },
  update(node, query, records) {
    const last = records.findLast((record) => Array.isArray(own(record).keyGroups?.entries));
    if (!last) return false;
    const { entries, owners: runs } = own(last).keyGroups;
    const owners = ownersOf(Array.isArray(runs) ? runs : []);
    const order = entries.map((_, group) => group).sort((a, b) => owners[a] - owners[b] || a - b);
    const tasks = own(last).taskOfShard ?? [];
    const moves = movesIn(records);
    const recent = new Set(moves.filter((move) => move.version > last.version - RECENT).map((move) => move.shard));
    const total = entries.reduce((a, b) => a + b, 0), most = Math.max(1, ...entries);
    const width = Math.max(320, node.clientWidth), across = width > 640 ? 64 : 32;
    const wide = width / across, tall = Math.min(18, Math.max(10, wide));
    const height = Math.ceil(order.length / across) * (tall + 2) + 2;
    const heaviest = entries.indexOf(Math.max(...entries));
    const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, height, class: "chart", role: "img", tabindex: "0", "aria-label":
      `${keyGroups.title}. Last: ${format.count(total)} entries, most in key group ${heaviest} of shard ${owners[heaviest]}: ${format.count(entries[heaviest])}` });
    order.forEach((group, at) => {
      const shard = owners[group], task = tasks[shard];
      const x = at % across * wide, y = Math.floor(at / across) * (tall + 2) + 1;
      const cell = drawn("rect", { class: `key-group ${markOf(task)}`, x: x + 2, y, width: wide - 3, height: tall, rx: 2,
        "fill-opacity": (0.07 + 0.93 * entries[group] / most).toFixed(3) });
      cell.addEventListener("pointermove", (event) => showTip([
        element("div", { class: "tip-head" }, `key group ${group} · version ${last.version}`),
        tipLine(markOf(task), "task", String(task ?? "?")), tipLine("none", "shard", String(shard)),
        tipLine("none", "entries", format.count(entries[group])),
        tipLine("none", "of all", total ? format.percent(entries[group] / total) : "-"),
      ], event.clientX, event.clientY));
      cell.addEventListener("pointerleave", hideTip);
      svg.append(cell);
      if (shard !== owners[order[at - 1]]) svg.append(drawn("rect", { class: "shard-begins", x, y, width: 1.5, height: tall }));
      if (recent.has(shard)) svg.append(drawn("rect", { class: "moved", x: x + 2, y, width: wide - 3, height: tall, rx: 2 }));
    });
    const told = moves.slice(-TOLD).map((move) => `shard ${move.shard} from task ${move.from} to ${move.to} at version ${move.version}`);
    node.firstChild.replaceChildren(svg,
      legendOf([...new Set(tasks)].sort((a, b) => a - b).slice(0, 16).map((task) => ({ name: `task ${task}`, mark: markOf(task) }))),
      element("p", { class: "said" }, told.length ? `last moves: ${told.join("; ")}` : "no shard has changed its task"));
    return true;
  },
  node: (node) => node,
  drop: (node) => node.remove(),
};

// -- shards by load --------------------------------------------------------------------------

const MEASURES = [
  ["seconds", "time", format.seconds], ["memoryBytes", "memory", format.bytes],
  ["writtenBytes", "written", format.bytes], ["resultRows", "rows", format.count], ["groups", "groups", format.count],
];
const COLUMNS = 60;

export const shards = {
  id: "shards",
  title: "Shards by load",
  about: "Each row is a shard, each column some versions; a ring is a shard that changed its task.",
  wide: true,
  build() {
    const state = { chosen: null, head: element("fieldset", { class: "choices" }), figure: element("div", { class: "heat" }) };
    state.root = element("div", { class: "figure" }, state.head, state.figure);
    return state;
  },
  update(state, query, records) {
    const last = own(records.at(-1)).shards;
    if (!last) return false;
    const names = MEASURES.filter(([name]) => Array.isArray(last[name]) && records.some((r) => own(r).shards?.[name]?.some((v) => v > 0)));
    if (!names.length) return false;
    if (!names.some(([name]) => name === state.chosen)) state.chosen = names[0][0];
    const redraw = () => shards.draw(state, records, names);
    const key = names.map(([name]) => name).join();
    if (state.key !== key) {
      state.key = key;
      state.head.replaceChildren(element("legend", { class: "hidden" }, "Measure"), ...names.map(([name, text]) => {
        const input = element("input", { type: "radio", name: "measure", value: name });
        input.checked = name === state.chosen;
        input.addEventListener("change", () => { state.chosen = name; state.redraw(); });
        return element("label", {}, input, text);
      }));
    }
    state.redraw = redraw;
    redraw();
    return true;
  },
  draw(state, records, names) {
    const [name, text, unit] = names.find(([each]) => each === state.chosen);
    const groups = grouped(records, COLUMNS);
    const count = own(records.at(-1)).shards[name].length;
    const jobs = own(records.at(-1)).operators?.length || 1, per = Math.max(1, count / jobs);
    const width = Math.max(320, state.root.clientWidth);
    const tall = Math.max(8, Math.min(24, 340 / count)), wide = (width - 60) / Math.max(groups.length, 24);
    const values = groups.map((group) => Array.from({ length: count }, (_, shard) =>
      group.reduce((sum, r) => sum + (own(r).shards?.[name]?.[shard] ?? 0), 0) / group.length));
    const most = Math.max(1e-9, ...values.flat());
    const height = count * tall + 4;
    const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, height, class: "chart", role: "img", tabindex: "0", "aria-label":
      `${shards.title} by ${text}. Last: ${values.at(-1).map((value, shard) => `shard ${shard} ${unit(value)}`).join(", ")}` });
    for (let shard = 0; shard < count; shard += 1) {
      const every = Math.ceil(12 / tall);
      if (shard % every === 0) {
        const label = jobs > 1 ? `${Math.floor(shard / per)}.${shard % per}` : `${shard}`;
        svg.append(drawn("text", { class: "tick", x: 44, y: (shard + 0.5) * tall + 4, "text-anchor": "end" }, label));
      }
      values.forEach((column, at) => {
        const rect = drawn("rect", { class: "cell", x: 52 + at * wide, y: shard * tall + 1, width: Math.max(1, wide - 1), height: tall - 1, rx: 2,
          "fill-opacity": (0.07 + 0.93 * column[shard] / most).toFixed(3) });
        rect.addEventListener("pointermove", (event) => showTip([
          element("div", { class: "tip-head" }, `shard ${shard} · version ${groups[at].at(-1).version}`),
          tipLine("s1", text, unit(column[shard])),
          ...MEASURES.filter(([other]) => other !== name && own(groups[at].at(-1)).shards?.[other]).map(([other, words, shown]) =>
            tipLine("none", words, shown(own(groups[at].at(-1)).shards[other][shard]))),
          ...(own(groups[at].at(-1)).taskOfShard ? [tipLine("none", "task", String(own(groups[at].at(-1)).taskOfShard[shard % per]))] : []),
        ], event.clientX, event.clientY));
        rect.addEventListener("pointerleave", hideTip);
        svg.append(rect);
        const before = groups[at - 1]?.at(-1), now = groups[at].at(-1);
        const was = before && own(before).taskOfShard?.[shard % per], is = own(now).taskOfShard?.[shard % per];
        if (was != null && is != null && was !== is) {
          svg.append(drawn("circle", { class: "moved", cx: 52 + (at + 0.5) * wide, cy: (shard + 0.5) * tall, r: Math.min(4, tall / 3) }));
        }
      });
    }
    state.figure.replaceChildren(svg, element("p", { class: "said" }, `darkest: ${unit(most)}`));
  },
  node: (state) => state.root,
  drop: (state) => state.root.remove(),
};
