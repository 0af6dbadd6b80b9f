// The health of a collection: the buckets that are open, full, of mixed types or out of order, what closed them, sizes, indexes and
// their use, latencies, and the rollups over it. Every figure is one that the server gives or that is counted from buckets here;
// what the user may not read is left out, and the view says so.

import { batch, command } from "./api.js";
import { card, failure, h, notice } from "./dom.js";
import { resultTable } from "./result_table.js";
import { bytes, exact } from "./scale.js";
import { compact, dateText, decode, numberOf } from "./values.js";

/** Maximum buckets that are read, the newest. */
const BUCKETS_MAX = 2000;

/** Classes of fill. */
const CLASSES = 10;

/** Counters of `collStats.timeseries` that tell why buckets were left, and what they count. */
const CLOSED = [
  ["numBucketsClosedDueToCount", "full by count"],
  ["numBucketsClosedDueToSize", "full by size"],
  ["numBucketsClosedDueToTimeForward", "the time left their span"],
  ["numBucketsClosedDueToSchemaChange", "a field had another type"],
  ["numBucketsClosedDueToCachePressure", "too many large buckets were open"],
  ["numBucketsArchivedDueToTimeBackward", "a measurement came late (archived)"],
  ["numBucketsArchivedDueToMemoryThreshold", "memory was short (archived)"],
  ["numBucketsFrozen", "their bytes are not readable"],
];

const COUNTERS = [
  ["numBucketInserts", "buckets begun"],
  ["numBucketsReopened", "buckets opened again"],
  ["numCompressedBucketsConvertedToUnsorted", "buckets that took a late measurement"],
  ["numMeasurementsCommitted", "measurements written"],
  ["numCommits", "commits"],
  ["avgNumMeasurementsPerCommit", "measurements per commit"],
];

export function healthView(target) {
  const stop = new AbortController();
  const { signal } = stop;
  const element = h("div", { class: "stack" }, h("p", { class: "quiet" }, "Reading…"));
  const parts = target.timeField ? [overview, newestBuckets, closings, indexes, latencies, rollups] : [overview, indexes, latencies];
  const load = async () => {
    const cards = await Promise.all(parts.map((part) => part(target, signal).catch((error) => trouble(error, target))));
    if (signal.aborted) return;
    const again = h("button", { type: "button", onclick: load }, "Look again");
    element.replaceChildren(...cards.flat().filter(Boolean), h("div", { class: "bar" }, again, h("span", { class: "quiet" }, "Counters begin with the server's start.")));
  };
  load();
  return { element, close: () => stop.abort() };
}

function trouble(error, { name }) {
  // What a router does not have.
  if (error.code === 115) return notice("info", "A part of this view is left out: this server is a node of a cluster.", "Buckets are in the partitions.");
  if (error.code === 13) return notice("info", "A part of this view is not for this user.", `The role clusterMonitor allows figures and indexes, the role backup the buckets of ${name}.`);
  return failure(error);
}

function list(rows) {
  return h("dl", { class: "facts" }, rows.map(([title, value]) => h("div", null, h("dt", null, title), h("dd", null, value))));
}

function numbers(stats, known) {
  return known.filter(([name]) => numberOf(stats[name]) !== null).map(([name, title]) => [title, exact(numberOf(stats[name]))]);
}

async function statistics({ db, name }, signal) {
  const { reply } = await command(db, { collStats: name }, signal);
  return decode(reply);
}

async function overview(target, signal) {
  const stats = await statistics(target, signal);
  const rows = [];
  const series = stats.timeseries;
  if (series) rows.push(["Buckets", exact(numberOf(series.bucketCount))]);
  else rows.push(["Documents", exact(numberOf(stats.count) ?? 0)]);
  const mean = numberOf(series?.avgBucketSize ?? stats.avgObjSize);
  if (mean !== null) rows.push([series ? "Mean bucket" : "Mean document", bytes(mean)]);
  rows.push(["Size", bytes(numberOf(stats.size))], ["On disk", bytes(numberOf(stats.storageSize))], ["Indexes on disk", bytes(numberOf(stats.totalIndexSize))]);
  return [card("Size", list(rows)), series ? card("Open buckets and tails", tails(series)) : null, series ? await openBuckets(signal) : null];
}

/** A tail has the measurements that are not in the bucket document yet. */
function tails(series) {
  return list([
    ...numbers(series, [
      ["numOpenBuckets", "open"],
      ["numArchivedBuckets", "archived"],
      ["numBucketsWithTail", "with a tail"],
      ["numTailMeasurements", "measurements in tails"],
    ]),
    ["size of tails", bytes(numberOf(series.tailBytes))],
  ]);
}

/** Their memory is known for the whole server, not for a collection. */
async function openBuckets(signal) {
  let reply;
  try {
    ({ reply } = await command("admin", { serverStatus: 1, metrics: 0, asserts: 0, globalLock: 0 }, signal));
  } catch (error) {
    if (error.code !== 13) throw error;
    return notice("info", "Open buckets of the server are not for this user.", "The role clusterMonitor allows the server's figures.");
  }
  const { bucketCatalog, mem } = decode(reply);
  if (!bucketCatalog) return card("Open buckets of the whole server", h("p", { class: "quiet" }, "No bucket is open."));
  const memory = numberOf(bucketCatalog.memoryUsage);
  const limit = numberOf(mem?.parts?.openBuckets?.bytesMax);
  return card(
    "Open buckets of the whole server",
    list([
      ["open", exact(numberOf(bucketCatalog.numOpenBuckets))],
      ["idle", exact(numberOf(bucketCatalog.numIdleBuckets))],
      ["archived", exact(numberOf(bucketCatalog.numArchivedBuckets))],
      ["memory", limit === null ? bytes(memory) : `${bytes(memory)} of ${bytes(limit)}`],
    ]),
  );
}

/** What the newest buckets look like. Types of a field are mixed if the least and the greatest value are not of one kind. */
function bucketPipeline({ timeField }) {
  const other = { $getField: { field: "$$one.k", input: "$control.max" } };
  const numeric = { $and: [{ $isNumber: "$$one.v" }, { $isNumber: other }] };
  const mixed = { $and: [{ $ne: [{ $type: "$$one.v" }, { $type: other }] }, { $not: [numeric] }] };
  const isMixed = { $filter: { input: { $objectToArray: "$control.min" }, as: "one", cond: mixed } };
  // Version 1 has no count of measurements.
  const counted = { $size: { $objectToArray: { $ifNull: [`$data.${timeField}`, {}] } } };
  return [
    { $sort: { [`control.max.${timeField}`]: -1 } },
    { $limit: BUCKETS_MAX },
    {
      $project: {
        _id: 0,
        version: "$control.version",
        closed: { $eq: ["$control.closed", true] },
        count: { $cond: [{ $eq: ["$control.version", 1] }, counted, "$control.count"] },
        bytes: { $bsonSize: "$$ROOT" },
        mixed: { $map: { input: isMixed, as: "one", in: "$$one.k" } },
      },
    },
  ];
}

async function newestBuckets(target, signal) {
  const asked = { aggregate: `system.buckets.${target.name}`, pipeline: bucketPipeline(target), cursor: {} };
  const { documents } = await batch(target.db, asked, signal);
  const buckets = documents.map(decode);
  if (buckets.length === 0) return card("Newest buckets", h("p", { class: "quiet" }, "There are no buckets."));
  const full = await fullCount(signal);
  const sizes = buckets.map((one) => one.bytes).sort((a, b) => a - b);
  const at = (part) => bytes(sizes[Math.min(sizes.length - 1, Math.floor(part * sizes.length))]);
  const count = (test) => buckets.filter(test).length;
  const mixed = new Map();
  for (const { mixed: names } of buckets) for (const name of names) mixed.set(name, (mixed.get(name) ?? 0) + 1);
  const fields = [...mixed].sort((a, b) => b[1] - a[1]).map(([name, n]) => `${name} (${exact(n)})`);
  const measurements = buckets.reduce((sum, one) => sum + one.count, 0);
  const rows = [
    ["Read", buckets.length === BUCKETS_MAX ? `the newest ${exact(BUCKETS_MAX)}` : `all ${exact(buckets.length)}`],
    ["Measurements in each", exact(Number((measurements / buckets.length).toPrecision(3)))],
    ["Bytes: median", at(0.5)],
    ["Bytes: 9 of 10 are below", at(0.9)],
    ["Bytes: largest", bytes(sizes.at(-1))],
    ["Closed for good", exact(count((one) => one.closed))],
    ["Out of order of time", exact(count((one) => one.version === 3))],
    ["Not compressed", exact(count((one) => one.version === 1))],
    ["Of mixed types", exact(count((one) => one.mixed.length > 0))],
  ];
  const told = fields.length > 0 ? notice("warn", `Fields of mixed types, with their buckets: ${fields.slice(0, 20).join(", ")}.`, "A predicate on such a field cannot skip these buckets by their bounds.") : null;
  return card("Newest buckets", list(rows), told, fillTable(buckets, full));
}

/** Returns the maximum measurements of a bucket; 1000, the default, if the user may not read it. */
async function fullCount(signal) {
  const { reply } = await command("admin", { getParameter: 1, timeseriesBucketMaxCount: 1 }, signal).catch((error) => {
    if (error.code === 13) return { reply: {} };
    throw error;
  });
  return numberOf(decode(reply.timeseriesBucketMaxCount ?? null)) ?? 1000;
}

/** Buckets by how full they are, as bars. */
function fillTable(buckets, full) {
  const classes = Array.from({ length: CLASSES }, () => 0);
  for (const { count } of buckets) classes[Math.min(CLASSES - 1, Math.floor((CLASSES * Math.max(0, count - 1)) / full))] += 1;
  const most = Math.max(...classes);
  const row = (count, at) => {
    const bar = h("span", { class: "share" });
    bar.style.width = `${(100 * count) / most}%`;
    const [from, to] = [Math.floor((at * full) / CLASSES) + 1, Math.floor(((at + 1) * full) / CLASSES)];
    return h("tr", null, h("td", null, `${exact(from)}–${exact(to)}`), h("td", { class: "number" }, exact(count)), h("td", { class: "wide" }, h("span", { class: "shareframe", "aria-hidden": "true" }, bar)));
  };
  const head = h("tr", null, h("th", { scope: "col" }, "Measurements"), h("th", { scope: "col", class: "number" }, "Buckets"), h("th", { scope: "col", class: "wide" }, ""));
  return h("div", { class: "tablescroll", tabindex: "0", role: "region", "aria-label": "Buckets by their measurements" }, h("table", { class: "cardinality" }, h("thead", null, head), h("tbody", null, classes.map(row))));
}

async function closings(target, signal) {
  const { timeseries } = await statistics(target, signal);
  const left = numbers(timeseries, CLOSED).filter(([, value]) => value !== "0");
  return [
    card("Written", list(numbers(timeseries, COUNTERS))),
    card("Buckets left because", left.length > 0 ? list(left) : h("p", { class: "quiet" }, "No bucket was left: each series still has its first.")),
  ];
}

async function indexes({ db, name }, signal) {
  const { documents } = await batch(db, { aggregate: name, pipeline: [{ $indexStats: {} }], cursor: {} }, signal);
  const { reply } = await command(db, { collStats: name }, signal);
  const { indexSizes, indexBuilds } = decode(reply);
  const building = new Set(indexBuilds);
  const rows = documents.map(decode).map(({ name: title, key, accesses }) => ({
    name: title,
    key: compact(key),
    "on disk": bytes(numberOf(indexSizes?.[title]) ?? 0),
    used: exact(numberOf(accesses?.ops) ?? 0),
    since: accesses?.since ? dateText(accesses.since) : "",
    state: building.has(title) ? "in build" : "ready",
  }));
  return card("Indexes", rows.length > 0 ? resultTable(rows) : h("p", { class: "quiet" }, "None."));
}

async function latencies({ db, name }, signal) {
  const { documents } = await batch(db, { aggregate: name, pipeline: [{ $collStats: { latencyStats: {} } }], cursor: {} }, signal);
  const { latencyStats } = decode(documents[0]);
  const rows = ["reads", "writes", "commands"].map((kind) => {
    const [ops, micros] = [numberOf(latencyStats[kind].ops), numberOf(latencyStats[kind].latency)];
    return [kind, ops > 0 ? `${exact(ops)}, ${exact(Number((micros / ops / 1000).toPrecision(3)))} ms each` : "0"];
  });
  return card("Operations", list(rows));
}

async function rollups({ db, name }, signal) {
  const { documents } = await batch(db, { listCollections: 1, filter: { "options.rollup.source": name } }, signal);
  if (documents.length === 0) return null;
  const rows = await Promise.all(
    documents.map(async ({ name: rollup }) => {
      const { reply } = await command(db, { rollupStatus: rollup }, signal);
      const { dirty, storedBefore, isEveryDirtySpanShown } = decode(reply);
      return {
        rollup,
        "stored before": storedBefore === null ? "–" : dateText(storedBefore),
        "dirty spans": `${isEveryDirtySpanShown ? "" : "more than "}${exact(dirty.length)}`,
        "oldest dirty bin": dirty.length > 0 ? dateText(dirty[0].from) : "–",
      };
    }),
  );
  return card("Rollups over it", resultTable(rows));
}
