// Live demo data: a time series of a small greenhouse, filled by this page until it is stopped or closed. Old measurements expire
// after a day, so that a forgotten tab fills no disk.

import { batch, command } from "./api.js";
import { card, failure, h } from "./dom.js";
import { LineChart } from "./line_chart.js";
import { exact } from "./scale.js";
import { decode, numberOf } from "./values.js";

const DB = "demo";
const NAME = "live";
const OPTIONS = { timeseries: { timeField: "time", metaField: "sensor" }, expireAfterSeconds: 86_400 };

const BEDS = ["roses", "herbs", "tomatoes", "ferns"];

const EVERY_MS = 1000;

/** Time before the start that is filled at once, with one measurement of each bed in each step. */
const BEFORE_MS = 10 * 60_000;
const STEP_MS = 5000;

/** Time that the chart shows. */
const CHART_MS = 5 * 60_000;

/** A measurement of a bed: a slow wave, a fast one, and noise. */
function measurement(bed, at) {
  const wave = (minutes, high) => high * Math.sin((2 * Math.PI * at) / (minutes * 60_000) + bed);
  const rounded = (value) => ({ $numberDouble: String(Math.round(100 * value) / 100) });
  return {
    time: { $date: { $numberLong: String(at) } },
    sensor: BEDS[bed],
    celsius: rounded(20 + 2 * bed + wave(7, 1.5) + wave(0.8, 0.4) + Math.random() * 0.2),
    moisture: rounded(45 - 6 * bed + wave(11, 6) + Math.random()),
  };
}

/** Inserts measurements every second, whichever view is open. */
class DemoData {
  constructor() {
    this.listeners = new Set();
    this.timer = null;
    this.count = 0;
    this.error = null;
  }

  get isRunning() {
    return this.timer !== null;
  }

  async start() {
    if (this.isRunning) return;
    // Set before the first answer arrives, so that it starts once.
    this.timer = setTimeout(() => {}, 0);
    this.count = 0;
    this.error = null;
    this.tell();
    try {
      await this.create();
      const now = Date.now();
      const times = Array.from({ length: BEFORE_MS / STEP_MS }, (_, at) => now - BEFORE_MS + at * STEP_MS);
      await this.insert(times.flatMap((at) => BEDS.map((_, bed) => measurement(bed, at))));
      await this.next();
    } catch (error) {
      this.fail(error);
    }
  }

  async create() {
    const { documents } = await batch(DB, { listCollections: 1, filter: { name: NAME } });
    if (documents.length === 0) await command(DB, { create: NAME, ...OPTIONS });
    else if (decode(documents[0]).options?.timeseries?.timeField !== "time") throw new Error(`${DB}.${NAME} exists and is no time series of the demo.`);
  }

  async insert(documents) {
    const { reply } = await command(DB, { insert: NAME, documents, ordered: false });
    this.count += numberOf(decode(reply.n));
    this.tell();
  }

  async next() {
    if (!this.isRunning) return;
    // If it was dropped meanwhile, an insert would make an ordinary collection. Creating what is there does nothing.
    await command(DB, { create: NAME, ...OPTIONS });
    const now = Date.now();
    await this.insert(BEDS.map((_, bed) => measurement(bed, now)));
    if (this.isRunning) this.timer = setTimeout(() => this.next().catch((error) => this.fail(error)), EVERY_MS);
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = null;
    this.tell();
  }

  fail(error) {
    this.error = error;
    this.stop();
  }

  tell() {
    for (const listener of this.listeners) listener();
  }
}

export const demoData = new DemoData();

/** The card: a button, the number of measurements, and their chart as the server gives them back. */
export function demoCard(address) {
  const stop = new AbortController();
  const button = h("button", { type: "button", onclick: () => (demoData.isRunning ? demoData.stop() : demoData.start()) });
  const sum = h("p", { class: "sum", role: "status" });
  const problem = h("div");
  const chart = new LineChart({ label: "Temperature of each bed", unit: "°C", height: 220 });
  const link = h("a", { href: address(DB, NAME, "query") }, `Open ${DB}.${NAME}`);
  let timer = null;
  const read = async () => {
    const since = { $date: { $numberLong: String(Date.now() - CHART_MS) } };
    const { documents } = await batch(DB, { find: NAME, filter: { time: { $gte: since } }, sort: { time: 1 } }, stop.signal);
    const points = new Map(BEDS.map((bed) => [bed, []]));
    for (const { time, sensor, celsius } of documents.map(decode)) points.get(sensor)?.push([time.getTime(), numberOf(celsius)]);
    chart.show([...points].map(([name, list]) => ({ name, points: list })));
  };
  const poll = async () => {
    await read().catch(() => {});
    if (!stop.signal.aborted && demoData.isRunning) timer = setTimeout(poll, EVERY_MS);
    else timer = null;
  };
  const update = () => {
    const { isRunning, count, error } = demoData;
    button.textContent = isRunning ? "Stop" : "Start live demo data";
    button.className = isRunning ? "" : "main";
    const idle = "Creates demo.live and inserts measurements of four beds every second, until you stop it or close the page. They expire after a day.";
    sum.textContent = count === 0 ? idle : `${exact(count)} measurements inserted into ${DB}.${NAME}${isRunning ? ", four more each second" : ""}.`;
    problem.replaceChildren(...(error ? [failure(error)] : []));
    chart.element.hidden = count === 0;
    link.hidden = count === 0;
    if (count > 0 && timer === null) {
      timer = setTimeout(() => {}, 0);
      poll();
    }
  };
  demoData.listeners.add(update);
  const element = card("Live demo data", sum, button, problem, chart.element, link);
  update();
  const close = () => {
    stop.abort();
    clearTimeout(timer);
    demoData.listeners.delete(update);
  };
  return { element, close };
}
