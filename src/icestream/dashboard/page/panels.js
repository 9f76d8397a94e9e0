// What each panel shows. A panel is told the query, its records and the records in groups; it says
// whether there is anything to show, and shows it. Panels without data are not on the page.

import { TimeChart, element, legendOf, lyingBars, own, reduced } from "./charts.js";
import * as format from "./format.js";
import { keyGroups, shards } from "./heat.js";
import { drawPlan } from "./plan.js";

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
    const order = ["ingest", "leave", "component", "sinkWait", "commit", "tidy", "sink"];
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

const requests = overVersions("requests", "Requests to the object store",
  "What each version asked of the store that has its state.",
  (query, records, groups) => {
    const asked = (name) => (r) => own(r).storageRequests?.[name];
    const kinds = ["ingest", "shards", "commit", "cleaning"];
    if (!records.some((r) => kinds.some((name) => asked(name)(r) > 0))) return null;
    return {
      unit: format.count,
      series: kinds.map((name, at) => series(groups, name, `s${at + 1}`, "stack", "sum", asked(name))),
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

// -- the rows that hold ----------------------------------------------------------------------

const board = {
  id: "board",
  title: "Now",
  about: "Rows of this query as they hold now; those of update streams with their age in seconds.",
  wide: true,
  build() { return element("div", { class: "figure scrolls", tabindex: "0", role: "region", "aria-label": "Rows that hold" }); },
  update(node, query) {
    if (!query.now?.length) return false;
    const names = Object.keys(query.now[0]);
    const text = (name, value) => name === "age" ? value.toFixed(1) : value === null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
    // what begins with a digit in every row is read from the right
    const side = Object.fromEntries(names.map((name) => [name,
      query.now.every((row) => row[name] === null || /^-?\d/.test(String(row[name]))) ? { class: "number" } : {}]));
    node.replaceChildren(element("table", { class: "rows" },
      element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col", ...side[name] }, name)))),
      element("tbody", {}, ...query.now.map((row) => element("tr", {}, ...names.map((name) => element("td", side[name], text(name, row[name]))))))));
    return true;
  },
  node: (node) => node,
  drop: (node) => node.remove(),
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

export const PANELS = [board, memory, rate, phases, log, cleaning, requests, lag, staleness, waiting, spills, owed, owing, cold, operators, choice, keyGroups, shards, plan];
