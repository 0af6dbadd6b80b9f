// The series of a time series by the fields of their metadata: how many values each field has, the most first, and how many series
// each value of a chosen field has. A field with many values is what makes series many.
//
// The server counts over all series; the paths come from a sample of them. The view says what is cut off.

import { batch } from "./api.js";
import { card, empty, failure, h } from "./dom.js";
import { exact } from "./scale.js";
import { decode, isNested, textOf } from "./values.js";

/** Maximum series that are counted. */
const SERIES_MAX = 500_000;

/** Series that the paths are taken from. */
const SAMPLED = 1000;

/** Maximum paths, and maximum values listed for a path. */
const PATHS_MAX = 40;
const VALUES_MAX = 100;

/** Maximum depth of a path. */
const DEPTH_MAX = 4;

/** The view; `query(filter)` opens the query tab with a filter in extended JSON. */
export function cardinalityView(target, query) {
  const view = new CardinalityView(target, query);
  return { element: view.element, close: () => view.stop.abort() };
}

/** Adds the paths of the values in a document; values of one document have different paths. */
function addPaths(value, path, found) {
  const names = isNested(value) && !Array.isArray(value) ? Object.keys(value) : [];
  if (names.length === 0 || path.length === DEPTH_MAX) {
    found.set(JSON.stringify(path), path);
    return;
  }
  for (const name of names) addPaths(value[name], [...path, name], found);
}

/** The expression of a path in the metadata `_id` of a series. Names with dots or dollar signs have no other form. */
function expressionOf(path) {
  return path.reduce((input, name) => ({ $getField: { field: { $literal: name }, input } }), "$_id");
}

/** A bar as long as the share of the largest. */
function share(part, whole) {
  const bar = h("span", { class: "share" });
  bar.style.width = `${whole > 0 ? Math.max(1, (100 * part) / whole) : 0}%`;
  return h("span", { class: "shareframe", "aria-hidden": "true" }, bar);
}

class CardinalityView {
  constructor(target, query) {
    this.target = target;
    this.query = query;
    this.stop = new AbortController();
    this.paths = h("div");
    this.values = h("div", { "aria-live": "polite" });
    this.element = h("div", { class: "stack" }, h("p", { class: "quiet" }, "Counting series…"));
    this.load();
  }

  /** Runs a pipeline over the series, each a document with the metadata as `_id`. */
  async read(stages) {
    const { db, name, metaField } = this.target;
    const pipeline = [{ $group: { _id: `$${metaField}` } }, { $limit: SERIES_MAX }, ...stages];
    const { documents } = await batch(db, { aggregate: name, pipeline, allowDiskUse: true, cursor: {} }, this.stop.signal);
    return documents;
  }

  async load() {
    try {
      const sample = (await this.read([{ $limit: SAMPLED }])).map(decode);
      if (sample.length === 0) {
        this.element.replaceChildren(empty("No series", h("p", null, "A series begins with its first measurement.")));
        return;
      }
      const found = new Map();
      for (const { _id } of sample) addPaths(_id, [], found);
      const paths = [...found.values()];
      // A series without the field has no value of it.
      const count = (path) => [{ $group: { _id: expressionOf(path), n: { $sum: 1 } } }, { $match: { _id: { $ne: null } } }, { $group: { _id: null, n: { $sum: 1 }, series: { $sum: "$n" } } }];
      const counts = paths.slice(0, PATHS_MAX).map((path, at) => [`p${at}`, count(path)]);
      const [facets] = await this.read([{ $facet: { series: [{ $count: "n" }], ...Object.fromEntries(counts) } }]);
      const number = (name, part) => Number(decode(facets[name])[0]?.[part] ?? 0);
      const series = number("series", "n");
      const rows = counts.map(([name], at) => ({ path: paths[at], values: number(name, "n"), having: number(name, "series") }));
      rows.sort((a, b) => b.values - a.values);
      this.draw(series, rows, { isSampled: sample.length === SAMPLED, left: paths.length - rows.length });
    } catch (error) {
      if (!this.stop.signal.aborted) this.element.replaceChildren(failure(error));
    }
  }

  titleOf(path) {
    return [this.target.metaField, ...path].join(".");
  }

  draw(series, rows, { isSampled, left }) {
    const most = rows[0].values;
    const buttons = [];
    const row = ({ path, values, having }) => {
      const choose = () => {
        for (const one of buttons) one.setAttribute("aria-pressed", one === button);
        this.show(path, values, series);
      };
      const button = h("button", { type: "button", class: "link", "aria-pressed": false, onclick: choose }, this.titleOf(path));
      buttons.push(button);
      const each = exact(Number((having / Math.max(1, values)).toPrecision(3)));
      return h("tr", null, h("td", null, button), h("td", { class: "number" }, exact(values)), h("td", { class: "number" }, each), h("td", { class: "wide" }, share(values, most)));
    };
    const head = h(
      "tr",
      null,
      h("th", { scope: "col" }, "Field"),
      h("th", { scope: "col", class: "number" }, "Values"),
      h("th", { scope: "col", class: "number" }, "Series per value"),
      h("th", { scope: "col", class: "wide" }, ""),
    );
    const body = h("tbody", null, rows.map(row));
    const notes = [];
    if (series === SERIES_MAX) notes.push(`Only ${exact(SERIES_MAX)} series are counted.`);
    if (isSampled) notes.push(`Fields are those of ${exact(SAMPLED)} series.`);
    if (left > 0) notes.push(`${exact(left)} more fields are left out.`);
    notes.push("A series is one value of the metadata. Choose a field to see its values.");
    this.element.replaceChildren(
      h("p", { class: "sum" }, `${exact(series)} series`),
      card("Values of each field", h("div", { class: "tablescroll", tabindex: "0", role: "region", "aria-label": "Fields of the metadata" }, h("table", { class: "cardinality" }, h("thead", null, head), body)), h("p", { class: "quiet" }, notes.join(" "))),
      this.values,
    );
    buttons[0].click();
  }

  /** Shows the values of a path with the most series. */
  async show(path, count, series) {
    this.shown = path;
    this.values.replaceChildren(card(this.titleOf(path), h("p", { class: "quiet" }, "Counting series…")));
    try {
      const group = { $group: { _id: expressionOf(path), series: { $sum: 1 } } };
      const documents = await this.read([group, { $sort: { series: -1, _id: 1 } }, { $limit: VALUES_MAX }]);
      // Another path may have been chosen meanwhile.
      if (this.shown === path) this.values.replaceChildren(this.valueCard(path, documents, count, series));
    } catch (error) {
      if (!this.stop.signal.aborted) this.values.replaceChildren(failure(error));
    }
  }

  valueCard(path, documents, count, series) {
    const most = Number(decode(documents[0]?.series ?? 0));
    const row = (json) => {
      const { _id, series: number } = decode(json);
      const name = _id === undefined || _id === null ? "(none)" : textOf(_id);
      const open = () => this.query({ [this.titleOf(path)]: json._id ?? null });
      return h(
        "tr",
        null,
        h("td", null, h("button", { type: "button", class: "link", title: "Query its measurements", onclick: open }, name)),
        h("td", { class: "number" }, exact(Number(number))),
        h("td", { class: "number" }, `${exact(Number(((100 * number) / series).toPrecision(3)))} %`),
        h("td", { class: "wide" }, share(Number(number), most)),
      );
    };
    const head = h(
      "tr",
      null,
      h("th", { scope: "col" }, "Value"),
      h("th", { scope: "col", class: "number" }, "Series"),
      h("th", { scope: "col", class: "number" }, "of all"),
      h("th", { scope: "col", class: "wide" }, ""),
    );
    const table = h("table", { class: "cardinality" }, h("thead", null, head), h("tbody", null, documents.map(row)));
    const shown = documents.filter(({ _id }) => _id !== undefined && _id !== null).length;
    const cut = count > shown ? `The ${exact(shown)} values with the most series, of ${exact(count)}.` : `${count === 1 ? "The only value" : `All ${exact(count)} values`}.`;
    return card(
      this.titleOf(path),
      h("div", { class: "tablescroll", tabindex: "0", role: "region", "aria-label": `Values of ${this.titleOf(path)}` }, table),
      h("p", { class: "quiet" }, `${cut} A value opens a query of its measurements.`),
    );
  }
}
