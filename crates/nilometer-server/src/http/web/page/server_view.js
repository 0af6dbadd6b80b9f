// The current state of the server: values of serverStatus, polled every second while the page is visible.

import { command } from "./api.js";
import { card, empty, failure, h } from "./dom.js";
import { LineChart } from "./line_chart.js";
import { decode, numberOf } from "./values.js";
import { bytes, duration, exact, short } from "./scale.js";

const EVERY_MS = 1000;

/** Number of samples kept: five minutes. */
const SAMPLES_MAX = 300;

/** Sections used here; the others are excluded from the answer. */
const STATUS = { serverStatus: 1, asserts: 0, extra_info: 0, logicalSessionRecordCache: 0, globalLock: 0 };

/** Lines of each chart: a name and a path in serverStatus. */
const RATES = {
  ingest: [
    ["inserted", "metrics.document.inserted"],
    ["updated", "metrics.document.updated"],
    ["deleted", "metrics.document.deleted"],
  ],
  reads: [["returned", "metrics.document.returned"]],
  operations: [
    ["queries", "opcounters.query"],
    ["getMores", "opcounters.getmore"],
    ["other commands", "opcounters.command"],
  ],
};

const LATENCIES = [
  ["reads", "opLatencies.reads"],
  ["writes", "opLatencies.writes"],
  ["other commands", "opLatencies.commands"],
];

function at(status, path) {
  let value = status;
  for (const name of path.split(".")) value = value?.[name];
  return numberOf(value);
}

/** Polls the server while the page is visible, and keeps the samples. */
class Sampler {
  constructor() {
    this.samples = [];
    this.listeners = new Set();
    this.timer = null;
    this.error = null;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.start()));
  }

  start() {
    if (this.wanted && this.timer === null && !document.hidden) this.ask();
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = null;
  }

  /** Starts or stops. */
  want(wanted) {
    this.wanted = wanted;
    if (!wanted) this.samples = [];
    return wanted ? this.start() : this.stop();
  }

  async ask() {
    // Set before the answer arrives, so that only one poll runs.
    this.timer = setTimeout(() => {}, 0);
    const before = performance.now();
    try {
      const { reply } = await command("admin", STATUS);
      const status = decode(reply);
      // The largest part, not shown.
      if (status.metrics) delete status.metrics.commands;
      this.samples.push({ at: Date.now(), clock: performance.now(), status });
      if (this.samples.length > SAMPLES_MAX) this.samples.shift();
      this.error = null;
    } catch (error) {
      this.error = error;
    }
    for (const listener of this.listeners) listener();
    if (!this.wanted || document.hidden) return this.stop();
    const pause = this.error ? EVERY_MS * 5 : Math.max(50, EVERY_MS - (performance.now() - before));
    this.timer = setTimeout(() => this.ask(), pause);
    return undefined;
  }

  /** Returns the growth per second of a value between samples. */
  rate(path) {
    return this.between((now, then, seconds) => {
      const grown = at(now, path) - at(then, path);
      return grown >= 0 ? grown / seconds : null;
    });
  }

  /** Returns the mean milliseconds of an operation between samples. */
  latency(path) {
    return this.between((now, then) => {
      const count = at(now, `${path}.ops`) - at(then, `${path}.ops`);
      const time = at(now, `${path}.latency`) - at(then, `${path}.latency`);
      return count > 0 ? time / count / 1000 : null;
    });
  }

  value(read) {
    return this.samples.map(({ at: time, status }) => [time, read(status)]);
  }

  between(figure) {
    const points = [];
    for (let i = 1; i < this.samples.length; i += 1) {
      const [then, now] = [this.samples[i - 1], this.samples[i]];
      const seconds = (now.clock - then.clock) / 1000;
      // The page was hidden for a while: draw a gap.
      if (seconds > (EVERY_MS / 1000) * 8) points.push([then.at + 1, null]);
      else points.push([now.at, figure(now.status, then.status, seconds)]);
    }
    return points;
  }
}

export const sampler = new Sampler();

function tile(name) {
  const value = h("b", null, "–");
  const more = h("small", null, "");
  return { element: h("div", { class: "tile" }, h("span", null, name), value, more), value, more };
}

/** The view; `close` is called when it is closed. */
export function serverView() {
  const tiles = Object.fromEntries(
    ["Ingest", "Collections", "Open buckets", "On disk", "Memory", "Connections", "Running for"].map((name) => [name, tile(name)]),
  );
  const figures = h("div", { class: "tiles" }, Object.values(tiles).map((one) => one.element));
  const chart = (label, unit) => new LineChart({ label, unit, height: 200, format: short, zero: true });
  const ingest = chart("Documents written per second", "documents/s");
  const reads = chart("Documents returned per second", "documents/s");
  const latency = chart("Mean time per operation", "ms");
  const operations = chart("Commands in a second", "commands/s");
  const problem = h("div");
  const first = h("div");
  const charts = h(
    "div",
    { class: "grid2" },
    card("Ingest", ingest.element),
    card("Latency", latency.element),
    card("Reads", reads.element),
    card("Commands", operations.element),
  );
  const update = () => {
    const { samples, error } = sampler;
    problem.replaceChildren(...(error ? [trouble(error)] : []));
    for (const part of [figures, charts]) part.hidden = samples.length === 0 && error?.code === 13;
    if (samples.length === 0) return;
    const kinds = ["collections", "timeseries", "views"].map((kind) => at(samples.at(-1).status, `catalogStats.${kind}`) ?? 0);
    const isNew = kinds.every((count) => count === 0);
    if (isNew !== first.hasChildNodes()) first.replaceChildren(...(isNew ? [firstSteps()] : []));
    const now = samples.at(-1).at;
    const domain = [Math.min(samples[0].at, now - 60_000), now];
    const lines = (list, read) => list.map(([name, path]) => ({ name, points: read(path) }));
    ingest.show(lines(RATES.ingest, (path) => sampler.rate(path)), domain);
    reads.show(lines(RATES.reads, (path) => sampler.rate(path)), domain);
    operations.show(lines(RATES.operations, (path) => sampler.rate(path)), domain);
    latency.show(lines(LATENCIES, (path) => sampler.latency(path)), domain);
    fillTiles(tiles, samples.at(-1).status);
  };
  sampler.listeners.add(update);
  const element = h(
    "div",
    { class: "view" },
    h("h1", null, "Server"),
    problem,
    first,
    figures,
    charts,
    h("p", { class: "quiet" }, "The last five minutes, one value per second while this page is visible. Requests of this page count as commands."),
  );
  update();
  return { element, close: () => sampler.listeners.delete(update) };
}

/** Commands to start with an empty server. */
function firstSteps() {
  const lines = [
    "use garden",
    'db.createCollection("soil", {timeseries: {timeField: "time", metaField: "bed"}})',
    'db.soil.insertOne({time: new Date(), bed: "roses", moisture: 31.5})',
  ];
  return empty(
    "There is no data yet",
    h("p", null, "Connect with mongosh or any driver of MongoDB, and type:"),
    h("pre", { tabindex: "0" }, lines.join("\n")),
    h("p", null, "The collection then appears in the list on the left."),
    h("p", null, "Or ", h("a", { href: "#/import" }, "import a CSV file, or start live demo data"), "."),
  );
}

function fillTiles(tiles, status) {
  const set = (name, value, more = "") => {
    tiles[name].value.textContent = value;
    tiles[name].more.textContent = more;
  };
  const rate = sampler.rate("metrics.document.inserted").at(-1)?.[1] ?? null;
  set("Ingest", rate === null ? "–" : short(rate), "documents/s");
  const series = at(status, "catalogStats.timeseries") ?? 0;
  set("Collections", exact((at(status, "catalogStats.collections") ?? 0) + series), `${series} time series`);
  set("Open buckets", exact(at(status, "bucketCatalog.numOpenBuckets") ?? 0), bytes(at(status, "bucketCatalog.memoryUsage") ?? 0));
  set("On disk", bytes(at(status, "storageEngine.diskBytes")), `log ${bytes(at(status, "storageEngine.log.bytes"))}`);
  set("Memory", bytes((at(status, "mem.resident") ?? 0) * 1024 * 1024), "of the process");
  set("Connections", exact(at(status, "connections.current")), `${exact(at(status, "connections.active"))} busy`);
  set("Running for", duration(at(status, "uptimeMillis") ?? 0), "");
}

function trouble(error) {
  if (error.code !== 13) return failure(error);
  return empty(
    "Figures of the server are not for this user",
    h("p", null, "The role clusterMonitor in admin allows them; so do clusterAdmin and root. Collections you may read are in the list."),
  );
}
