// What each panel shows. A panel is told the query, its records and the records in groups; it says
// whether there is anything to show, and shows it. Panels without data are not on the page.

import { TimeChart, drawn, element, grouped, hideTip, legendOf, lyingBars, reduced, showTip, tipLine } from "./charts.js";
import * as format from "./format.js";
import { drawPlan } from "./plan.js";

const own = (record) => record.icestream ?? {};

// -- charts over versions --------------------------------------------------------------------

function overVersions(id, title, about, make) {
  return {
    id, title, about,
    build() { return new TimeChart(title); },
    update(chart, query, records, groups) {
      const spec = make(query, records, groups);
      const any = spec && spec.series.some((each) => each.values.some((value) => value != null));
      if (any) chart.show({ ...spec, groups });
      return Boolean(any);
    },
    node: (chart) => chart.node,
    drop: (chart) => chart.remove(),
  };
}

function series(groups, name, mark, kind, how, read) {
  return { name, mark, kind, values: reduced(groups, read, how) };
}

const memory = overVersions("memory", "Memory against budget",
  "State, buffers and indexes of all shards after each version, and the most during it.",
  (query, records, groups) => ({
    unit: format.bytes,
    limit: { name: "budget", value: own(records.at(-1)).budgetBytes },
    series: [
      series(groups, "held", "s1", "area", "last", (r) => own(r).stateMemoryBytes),
      series(groups, "most during a version", "s3", "dashed", "max", (r) => own(r).peakMemoryBytes),
    ],
  }));

const rate = overVersions("rate", "Events per second",
  "Events of a version by the time it took.",
  (query, records, groups) => ({
    unit: format.count,
    series: [series(groups, "events/s", "s2", "area", "mean", (r) => r.processedRowsPerSecond)],
  }));

const phases = overVersions("phases", "Where a version's time goes",
  "Phases of each version, one on top of the other.",
  (query, records, groups) => {
    const names = [...new Set(records.flatMap((r) => Object.keys(r.durationMs ?? {})))]
      .filter((name) => name !== "triggerExecution")
      .filter((name) => records.some((r) => r.durationMs?.[name] > 0));
    const order = ["ingest", "leave", "component", "commit", "tidy", "sink"];
    names.sort((a, b) => place(order, a) - place(order, b) || a.localeCompare(b, "en", { numeric: true }));
    const kept = names.slice(0, 8);
    const found = kept.map((name, at) =>
      series(groups, name, `s${1 + at % 8}`, "stack", "mean", (r) => r.durationMs?.[name]));
    return { unit: format.milliseconds, series: found };
  });

function place(order, name) {
  const at = order.indexOf(name.split(" ")[0]);
  return at < 0 ? order.length : at;
}

const log = overVersions("log", "The log",
  "Bytes of segments that are still needed.",
  (query, records, groups) => ({
    unit: format.bytes,
    series: [series(groups, "live", "s1", "area", "last", (r) => own(r).logBytes)],
  }));

const cleaning = overVersions("cleaning", "Written and cleaned",
  "What each version added to the log, and what was unlinked because nothing needs it any more.",
  (query, records, groups) => {
    const before = new Map(records.map((record, at) => [record, records[at - 1]]));
    const written = (r) => own(r).shards?.writtenBytes?.reduce((a, b) => a + b, 0) + eventBytes(r, before);
    const cleaned = (r) => {
      const was = before.get(r);
      if (!was || was.version !== r.version - 1) return null;
      return Math.max(0, own(was).logBytes + written(r) - own(r).logBytes);
    };
    return {
      unit: format.bytes,
      series: [
        series(groups, "written", "s2", "area", "sum", (r) => written(r)),
        series(groups, "cleaned", "s5", "line", "sum", cleaned),
      ],
    };
  });

// what a version added to kept raw events shows only as growth
function eventBytes(record, before) {
  const was = before.get(record);
  if (!was || was.version !== record.version - 1) return 0;
  return Math.max(0, (own(record).eventsBytes ?? 0) - (own(was).eventsBytes ?? 0));
}

const lag = overVersions("lag", "Watermark and lag",
  "How far the watermark is behind the newest event, and the newest event behind the clock.",
  (query, records, groups) => {
    const mark = (r) => Date.parse(own(r).watermark);
    const newest = (r) => Date.parse(own(r).latestEventTime);
    const behind = series(groups, "newest event behind the clock", "s4", "line", "last",
      (r) => Math.max(0, Date.parse(r.timestamp) - newest(r)));
    const replayed = behind.values.some((value) => value > 30 * 86400e3);
    const found = [series(groups, "watermark behind the newest event", "s1", "area", "last",
      (r) => (own(r).latestEventTime ? Math.max(0, newest(r) - mark(r)) : null))];
    return { unit: format.milliseconds, series: replayed ? found : [...found, behind] };
  });

const staleness = overVersions("staleness", "Staleness of answers",
  "How old answers were, over all keys and the time since the version before.",
  (query, records, groups) => {
    const read = (name) => (r) => own(r).updates?.staleness?.[name];
    return {
      unit: format.milliseconds,
      logarithmic: true,
      series: [
        series(groups, "longest", "s5", "line", "max", read("maxMs")),
        series(groups, "99 of 100", "s3", "line", "max", read("p99Ms")),
        series(groups, "average", "s1", "line", "mean", read("averageMs")),
        series(groups, "half", "s2", "line", "mean", read("p50Ms")),
      ],
    };
  });

const waiting = overVersions("waiting", "Updates served and waiting",
  "Keys served in a version, keys that wait for their turn, and updates that newer ones replaced.",
  (query, records, groups) => ({
    unit: format.count,
    series: [
      series(groups, "waiting", "s3", "area", "last", (r) => own(r).updates?.waiting),
      series(groups, "served", "s2", "line", "sum", (r) => own(r).updates?.served),
      series(groups, "replaced", "s6", "line", "sum", (r) => {
        const told = own(r).updates;
        return told && (told.superseded ?? 0) + (told.supersededInTransit ?? 0);
      }),
    ],
  }));

const spills = overVersions("spills", "Spills and clean-up",
  "Bytes that joins put aside in each version, and what they hold in memory.",
  (query, records, groups) => ({
    unit: format.bytes,
    series: [
      series(groups, "held by joins", "s1", "area", "last",
        (r) => own(r).joins?.reduce((sum, each) => sum + each.residentBytes, 0)),
      series(groups, "spilled", "s5", "bar", "sum", (r) => own(r).bytesSpilled),
    ],
  }));

const owed = overVersions("owed", "Results of joins, early and late",
  "Rows that joins made as events came, and in clean-ups.",
  (query, records, groups) => {
    const sum = (name) => (r) => own(r).joins?.reduce((all, each) => all + each[name], 0);
    return {
      unit: format.count,
      series: [
        series(groups, "at once", "s2", "stack", "sum", sum("earlyRows")),
        series(groups, "by clean-up", "s4", "stack", "sum", sum("lateRows")),
      ],
    };
  });

const owing = overVersions("owing", "Partitions that owe results",
  "Partitions of joins with results that a clean-up is still to make, and generations put aside.",
  (query, records, groups) => {
    const sum = (name) => (r) => own(r).joins?.reduce((all, each) => all + each[name], 0);
    return {
      unit: format.count,
      series: [
        series(groups, "partitions that owe", "s5", "area", "last", sum("owingPartitions")),
        series(groups, "generations", "s6", "line", "last", sum("generations")),
      ],
    };
  });

const cold = overVersions("cold", "Groups leaving memory and coming back",
  "Groups that became cold and groups that were read back from the log.",
  (query, records, groups) => {
    const change = (name) => {
      const grown = new Map(records.map((record, at) => {
        const now = own(record).coldState?.[name], was = own(records[at - 1] ?? {}).coldState?.[name];
        return [record, now == null ? null : was == null || now < was ? now : now - was];
      }));
      return (r) => grown.get(r);
    };
    const quiet = !records.some((r) => own(r).coldState?.left > 0 || own(r).coldState?.returned > 0);
    if (quiet) return null;
    return {
      unit: format.count,
      series: [
        series(groups, "left", "s6", "line", "sum", change("left")),
        series(groups, "read back", "s5", "line", "sum", change("returned")),
      ],
    };
  });

// -- hot, cold and on disk -------------------------------------------------------------------

const MEMORY = { name: "in memory", mark: "s1" };
const INDEX = { name: "index in memory", mark: "s4" };
const DISK = { name: "on disk", mark: "s6" };

const operators = {
  id: "operators",
  title: "Hot, cold and on disk",
  about: "What each part of the plan holds after the last version.",
  build() { return element("div", { class: "figure" }); },
  update(node, query, records) {
    const told = own(records.at(-1));
    if (!told.operators?.length) return false;
    const rows = told.operators.map((each, at) => ({
      name: told.operators.length > 1 ? `component ${at}` : "state",
      note: [`${format.bytes(each.memoryBytes)} in memory, ${format.bytes(each.logBytes)} on disk`,
        each.groups ? `${format.count(each.groups)} groups${each.coldGroups ? `, and ${format.count(each.coldGroups)} known on disk only` : ""}` : ""]
        .filter(Boolean).join("; "),
      parts: [
        { ...MEMORY, value: Math.max(0, each.memoryBytes - each.indexBytes) },
        ...(each.indexBytes ? [{ ...INDEX, value: each.indexBytes }] : []),
        { ...DISK, value: each.logBytes },
      ],
    }));
    if (told.eventsBytes) rows.push({ name: "raw events", note: "", parts: [{ ...DISK, value: told.eventsBytes }] });
    const parts = told.operators.some((each) => each.indexBytes) ? [MEMORY, INDEX, DISK] : [MEMORY, DISK];
    node.replaceChildren(lyingBars(rows, format.bytes, operators.title), legendOf(parts));
    return true;
  },
  node: (node) => node,
  drop: (node) => node.remove(),
};

// -- what the log keeps of windows: estimate against reality ---------------------------------

const choice = {
  id: "choice",
  title: "Panes or tuples",
  about: "What the log was estimated to take with either, when the first events came, and what it takes.",
  build() { return element("div", { class: "figure" }); },
  update(node, query, records) {
    const told = own(records.at(-1));
    const sizes = told.estimatedBytes;
    if (!sizes || !told.store) return false;
    const most = Math.max(...records.map((r) => own(r).logBytes ?? 0));
    const rows = [["panes", "panes (2LA)"], ["tuples", "tuples (1W)"]].filter(([key]) => sizes[key] != null).map(([key, name]) => ({
      name, chosen: told.store === key,
      note: `${format.bytes(sizes[key])} estimated${told.store === key ? "; chosen" : ""}`,
      parts: [{ name: "estimate", mark: told.store === key ? "s1" : "s6", value: sizes[key] }],
    }));
    rows.push({ name: "the log now", note: format.bytes(told.logBytes), parts: [{ name: "now", mark: "s2", value: told.logBytes }] });
    rows.push({ name: "the log at most", note: format.bytes(most), parts: [{ name: "at most", mark: "s2", value: most }] });
    const estimated = told.estimatedLogBytes, ratio = told.logToEstimate;
    node.replaceChildren(lyingBars(rows, format.bytes, choice.title),
      element("p", { class: "said" }, estimated == null ? "" :
        `The log: estimated ${format.bytes(estimated)}, logged ${format.bytes(told.logBytes)}, ` +
        (ratio == null ? "before the longest window is full." : `${ratio.toFixed(2)} times the estimate.`)));
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

const shards = {
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

// -- the plan --------------------------------------------------------------------------------

const plan = {
  id: "plan",
  title: "Plan",
  about: "Sources, components and results. A component is what runs without sending anything to other shards; several may share tasks.",
  wide: true,
  build() { return element("div", { class: "figure scrolls", tabindex: "0", role: "region", "aria-label": "Plan" }); },
  update(node, query, records) {
    if (!query.plan?.boxes?.length) return false;
    const last = own(records.at(-1) ?? {}), told = last.operators ?? [];
    const beside = (at) => (last.fusedComponents?.find((group) => group.includes(at)) ?? []).filter((each) => each !== at);
    const notes = new Map(told.map((each, at) => [`component ${at}`,
      `${format.bytes(each.memoryBytes)} in memory, ${format.bytes(each.logBytes)} on disk`
      + (beside(at).length ? `, in one task with ${beside(at).join(", ")}` : "")]));
    node.replaceChildren(drawPlan(query.plan, notes));
    return true;
  },
  node: (node) => node,
  drop: (node) => node.remove(),
};

export const PANELS = [memory, rate, phases, log, cleaning, lag, staleness, waiting, spills, owed, owing, cold, operators, choice, shards, plan];
export { own };
