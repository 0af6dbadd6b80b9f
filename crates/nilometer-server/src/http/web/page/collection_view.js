// One collection: queries, buckets or bins, series by their metadata, health, facts.

import { batch, command } from "./api.js";
import { bucketsView } from "./buckets_view.js";
import { cardinalityView } from "./cardinality_view.js";
import { card, failure, h, tabs } from "./dom.js";
import { healthView } from "./health_view.js";
import { queryView, setFilter } from "./query_view.js";
import { rollupView } from "./rollup_view.js";
import { resultTable } from "./result_table.js";
import { bytes, exact } from "./scale.js";
import { compact, decode, numberOf, textOf } from "./values.js";

/** Number of example documents. */
const EXAMPLES = 5;

/** The view of `db.name`; `tab` is the open tab, `go` is called for another one. */
export async function collectionView(db, name, tab, go) {
  const { documents } = await batch(db, { listCollections: 1, filter: { name } });
  const info = documents.length > 0 ? decode(documents[0]) : null;
  if (!info) return { element: h("div", { class: "view" }, h("h1", null, `${db}.${name}`), missing()), close() {} };
  const series = info.options?.timeseries ?? null;
  const target = { db, name, type: info.type, timeField: series?.timeField ?? null, metaField: series?.metaField ?? null, info, raw: documents[0] };
  const list = [
    { name: "query", title: "Query" },
    ...(series ? [{ name: "buckets", title: "Buckets" }] : []),
    ...(series?.metaField ? [{ name: "cardinality", title: "Series" }] : []),
    ...(info.options?.rollup ? [{ name: "rollup", title: "Rollup" }] : []),
    ...(info.type === "view" || info.options?.rollup ? [] : [{ name: "health", title: "Health" }]),
    { name: "about", title: "About" },
  ];
  const chosen = list.some((one) => one.name === tab) ? tab : "query";
  const body = h("div", { class: "tabbody", role: "tabpanel" });
  let open = null;
  const show = (which) => {
    open?.close?.();
    open = views[which](target);
    body.replaceChildren(open.element);
  };
  const views = { query: queryView, buckets: bucketsView, cardinality: cardinalityOf, rollup: rollupView, health: healthView, about: aboutView };
  const bar = tabs("Parts of the collection", list, chosen, (which) => {
    go(which);
    show(which);
  });
  function cardinalityOf() {
    return cardinalityView(target, (filter) => {
      setFilter(target, filter);
      bar.choose("query");
    });
  }
  const element = h("div", { class: "view" }, heading(target), bar.bar, body);
  show(chosen);
  return { element, close: () => open?.close?.() };
}

function missing() {
  return h("div", { class: "empty" }, h("h2", null, "This collection is not there"), h("p", null, "It was dropped or renamed."));
}

const KINDS = { timeseries: "time series", collection: "collection", view: "view" };

function heading({ db, name, type, timeField, metaField, info }) {
  const badge = (text) => h("span", { class: "badge" }, text);
  return h(
    "div",
    { class: "heading" },
    h("h1", null, h("span", { class: "quiet" }, `${db}.`), name),
    badge(info.options?.rollup ? "rollup" : (KINDS[type] ?? type)),
    timeField ? badge(`time: ${timeField}`) : null,
    metaField ? badge(`series: ${metaField}`) : null,
  );
}

/** Facts: sizes, options, indexes, example documents. */
function aboutView(target) {
  const element = h("div", { class: "stack" }, h("p", { class: "quiet" }, "Loading…"));
  const stop = new AbortController();
  const parts = [facts(target, stop.signal), indexes(target, stop.signal), examples(target, stop.signal)];
  Promise.all(parts.map((part) => part.catch((error) => failure(error)))).then((done) => {
    if (!stop.signal.aborted) element.replaceChildren(...done.filter(Boolean));
  });
  return { element, close: () => stop.abort() };
}

async function facts({ db, name, type, info }, signal) {
  const rows = [];
  const row = (title, value) => rows.push(h("div", null, h("dt", null, title), h("dd", null, value)));
  if (type !== "view") {
    const { reply } = await command(db, { collStats: name }, signal);
    const stats = decode(reply);
    const number = (path) => numberOf(path.split(".").reduce((value, part) => value?.[part], stats));
    const [count, size, stored] = [number("count"), number("size"), number("storageSize")];
    if (count !== null) row("Documents", exact(count));
    const buckets = number("timeseries.bucketCount");
    if (buckets !== null) row("Buckets", exact(buckets));
    if (size !== null) row("Size", bytes(size));
    if (stored !== null) row("On disk", bytes(stored));
    const indexed = number("totalIndexSize");
    if (indexed !== null) row("Indexes", `${exact(number("nindexes") ?? 0)}, ${bytes(indexed)}`);
    const each = number("timeseries.avgBucketSize");
    if (each !== null) row("Mean bucket", bytes(each));
  }
  for (const [option, value] of Object.entries(info.options ?? {})) {
    if (option === "timeseries") for (const [inner, v] of Object.entries(value)) row(inner, textOf(v));
    else row(option, textOf(value));
  }
  return card("Facts", rows.length > 0 ? h("dl", { class: "facts" }, rows) : h("p", { class: "quiet" }, "No facts are available."));
}

async function indexes({ db, name, type }, signal) {
  if (type === "view") return null;
  const { documents } = await batch(db, { listIndexes: name }, signal);
  const rows = documents.map(decode).map(({ name: title, key, v, ...options }) => ({ name: title, key: compact(key), options: Object.keys(options).length > 0 ? compact(options) : "" }));
  return card("Indexes", rows.length > 0 ? resultTable(rows) : h("p", { class: "quiet" }, "None."));
}

async function examples({ db, name, timeField }, signal) {
  const sort = timeField ? { [timeField]: -1 } : {};
  const { documents } = await batch(db, { find: name, sort, limit: EXAMPLES }, signal);
  const title = timeField ? "Newest measurements" : "Some documents";
  const none = h("p", { class: "quiet" }, `It is empty. Insert into it with mongosh: db.${name}.insertOne({…})`);
  return card(title, documents.length > 0 ? resultTable(documents.map(decode)) : none);
}

