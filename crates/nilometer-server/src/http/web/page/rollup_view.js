// A rollup over its source: the bins of one series as a line, the measurements behind them as another, and dirty bins shaded.
// It is read again every few seconds, so that a refresh is seen.

import { batch, command } from "./api.js";
import { card, empty, failure, field, h } from "./dom.js";
import { LineChart } from "./line_chart.js";
import { exact } from "./scale.js";
import { compact, dateText, decode, numberOf } from "./values.js";

/** Maximum bins and measurements of a chart, the newest. */
const BINS_MAX = 300;
const MEASUREMENTS_MAX = 5000;

/** Maximum series to choose from. */
const SERIES_MAX = 100;

const PERIOD_MS = 5000;

/** Accumulators whose results are values of their argument, so that both fit on one axis. */
const SAME_SCALE = ["$avg", "$min", "$max", "$first", "$last", "$median"];

export function rollupView(target) {
  const view = new RollupView(target);
  return { element: view.element, close: () => view.stop.abort() };
}

/** Returns the parts of a definition: the time, the other parts of the key, the fields. All values stay extended JSON. */
function definitionOf({ options }) {
  const { source, pipeline } = options.rollup;
  const { _id: key, ...fields } = pipeline.at(-1).$group;
  const isTime = (part) => part?.$dateTrunc !== undefined;
  const time = Object.entries(key).find(([, part]) => isTime(part));
  return {
    source,
    filter: pipeline.length > 1 ? pipeline[0].$match : {},
    time: { name: time[0], source: time[1].$dateTrunc.date },
    parts: Object.entries(key).filter(([, part]) => !isTime(part)),
    fields: Object.entries(fields).map(([name, spec]) => ({ name, operator: Object.keys(spec)[0], argument: Object.values(spec)[0] })),
  };
}

class RollupView {
  constructor(target) {
    this.target = target;
    this.definition = definitionOf(target.raw);
    this.stop = new AbortController();
    this.chosen = { series: 0, field: this.definition.fields[0]?.name };
    this.controls = h("div", { class: "controls" });
    this.chart = new LineChart({ label: `${target.name} over ${this.definition.source}`, height: 320 });
    this.told = h("p", { class: "quiet" });
    this.status = h("div");
    this.body = h("div", { class: "result card" }, this.controls, this.chart.element, this.told);
    this.element = h("div", { class: "stack" }, h("p", { class: "quiet" }, "Reading bins…"));
    this.begin();
  }

  async begin() {
    try {
      this.series = await this.keys();
      this.drawControls();
      this.element.replaceChildren(this.body, this.status);
    } catch (error) {
      if (!this.stop.signal.aborted) this.element.replaceChildren(failure(error));
      return;
    }
    while (!this.stop.signal.aborted) {
      await this.load();
      await new Promise((resolve) => {
        setTimeout(resolve, PERIOD_MS);
        this.stop.signal.addEventListener("abort", resolve, { once: true });
      });
    }
  }

  /** Returns the keys of all series, without the time: documents of extended JSON. */
  async keys() {
    const { parts } = this.definition;
    if (parts.length === 0) return [{}];
    const key = Object.fromEntries(parts.map(([name]) => [name, `$${name}`]));
    const pipeline = [{ $group: { _id: key } }, { $sort: { _id: 1 } }, { $limit: SERIES_MAX + 1 }];
    const asked = { aggregate: this.target.name, pipeline, cursor: { batchSize: SERIES_MAX + 1 } };
    const { documents } = await batch(this.target.db, asked, this.stop.signal);
    this.isCut = documents.length > SERIES_MAX;
    return documents.slice(0, SERIES_MAX).map(({ _id }) => _id);
  }

  drawControls() {
    const pick = (label, options, name) => {
      const select = h("select", null, options);
      select.value = String(this.chosen[name]);
      select.addEventListener("change", () => {
        this.chosen[name] = select.value;
        this.load();
      });
      return field(label, select);
    };
    const { fields, parts } = this.definition;
    const titles = this.series.map((key, at) => h("option", { value: at }, compact(decode(key))));
    this.controls.replaceChildren(
      ...(parts.length > 0 ? [pick("Series", titles, "series")] : []),
      pick("Field", fields.map(({ name }) => h("option", { value: name }, name)), "field"),
    );
  }

  /** Reads and draws what is chosen. */
  async load() {
    const { db, name } = this.target;
    const chosen = `${this.chosen.series} ${this.chosen.field}`;
    try {
      const { reply } = await command(db, { rollupStatus: name }, this.stop.signal);
      const bins = await this.bins();
      const measurements = bins.length > 0 ? await this.measurements(bins[0][0]) : [];
      // Another choice may have been made meanwhile.
      if (chosen === `${this.chosen.series} ${this.chosen.field}`) this.draw(decode(reply), bins, measurements);
    } catch (error) {
      if (!this.stop.signal.aborted) this.status.replaceChildren(failure(error));
    }
  }

  /** Returns the newest bins of the series as points, in order of time. */
  async bins() {
    const { db, name } = this.target;
    const { time, parts } = this.definition;
    const key = this.series[this.chosen.series] ?? {};
    // A part that is missing compares as null.
    const filter = Object.fromEntries(parts.map(([part]) => [part, key[part] ?? null]));
    const asked = { find: name, filter, sort: { [time.name]: -1 }, limit: BINS_MAX, projection: { [time.name]: 1, [this.chosen.field]: 1 } };
    const { documents } = await batch(db, { ...asked, batchSize: BINS_MAX }, this.stop.signal);
    return points(documents, time.name, this.chosen.field);
  }

  /** Returns the newest measurements of the series from `from` on as points, in order of time; none if they have another scale. */
  async measurements(from) {
    const { source, filter, time, parts, fields } = this.definition;
    const { operator, argument } = fields.find(({ name }) => name === this.chosen.field);
    if (!SAME_SCALE.includes(operator)) return [];
    const value = operator === "$median" ? argument.input : argument;
    const key = this.series[this.chosen.series] ?? {};
    const ofSeries = parts.map(([name, part]) => {
      const known = key[name] ?? null;
      if (typeof part === "string" && part.startsWith("$")) return { [part.slice(1)]: known };
      return { $expr: { $eq: [part, { $literal: known }] } };
    });
    const since = { [time.source.slice(1)]: { $gte: { $date: { $numberLong: String(from) } } } };
    const pipeline = [
      { $match: { $and: [filter, since, ...ofSeries] } },
      { $sort: { [time.source.slice(1)]: -1 } },
      { $limit: MEASUREMENTS_MAX },
      { $project: { _id: 0, t: time.source, v: value } },
    ];
    const asked = { aggregate: source, pipeline, cursor: { batchSize: MEASUREMENTS_MAX } };
    const { documents } = await batch(this.target.db, asked, this.stop.signal);
    return points(documents, "t", "v");
  }

  draw(status, bins, measurements) {
    const { name } = this.target;
    const { source } = this.definition;
    const dirty = status.dirty.map(({ from, to }) => [from.getTime(), to.getTime()]);
    if (bins.length === 0) {
      this.told.textContent = "";
      this.status.replaceChildren(empty("No bins", h("p", null, `${source} has no measurements of this series.`)));
      return;
    }
    const lines = [{ name: `${name}.${this.chosen.field}`, points: bins }];
    if (measurements.length > 0) lines.push({ name: source, points: measurements });
    this.chart.show(lines, undefined, dirty);
    const told = ["A bin is drawn at its start.", "Shaded bins are dirty: they are computed when they are read.", "Times are UTC."];
    if (bins.length === BINS_MAX) told.unshift(`The newest ${BINS_MAX} bins are drawn.`);
    if (measurements.length === MEASUREMENTS_MAX) told.unshift(`The newest ${exact(MEASUREMENTS_MAX)} measurements are drawn.`);
    if (this.isCut) told.unshift(`The first ${SERIES_MAX} series can be chosen.`);
    this.told.textContent = told.join(" ");
    const rows = [
      ["Source", status.source],
      ["Stored before", textOfTime(status.storedBefore)],
      ["Frozen before", textOfTime(status.frozenBefore)],
      ["Dirty spans", status.isEveryDirtySpanShown ? exact(dirty.length) : `more than ${exact(dirty.length)}`],
    ];
    this.status.replaceChildren(card("Progress", h("dl", { class: "facts" }, rows.map(([title, value]) => h("div", null, h("dt", null, title), h("dd", null, value))))));
  }
}

function textOfTime(time) {
  return time === null ? "–" : dateText(time);
}

/** Returns documents, newest first, as points in order of time; those without a time are left out. */
function points(documents, timeName, valueName) {
  const all = documents.map(decode).map((one) => [one[timeName], numberOf(one[valueName])]);
  return all
    .filter(([time]) => time instanceof Date)
    .map(([time, value]) => [time.getTime(), value])
    .reverse();
}
