// Operations of all databases: those that run now, and those that the profiler recorded, added up by the shape of their command,
// the longest in total first.
//
// The server does not add them up: it keeps the newest entries of `system.profile` of each database where the profiler is on. The
// view reads at most ENTRIES_MAX of each and says where it is off.

import { batch, command } from "./api.js";
import { card, empty, failure, field, h, notice } from "./dom.js";
import { setQuery } from "./query_view.js";
import { duration, exact } from "./scale.js";
import { compact, dateText, decode, numberOf, textOf } from "./values.js";

/** Maximum entries that are read of a database, the newest, and maximum databases. */
const ENTRIES_MAX = 4000;
const DATABASES_MAX = 50;

/** Maximum shapes in the table. */
const SHAPES_MAX = 100;

const EVERY_MS = 3000;

/** The name under which this page sends commands. */
const OWN = "Nilometer web page";

/** Fields of a command that say nothing about its shape. */
const NOT_SHAPE = new Set(["$db", "lsid", "cursor", "$clusterTime", "txnNumber", "autocommit", "startTransaction", "$readPreference", "maxTimeMS", "batchSize", "ordered", "writeConcern", "readConcern", "comment", "$truncated"]);

/** Commands that the query tab can show and explain. */
const EXPLAINED = ["find", "aggregate"];

export function topQueriesView(address) {
  const view = new TopQueries(address);
  return { element: view.element, close: () => view.close() };
}

/** True for a document that wraps one value in extended JSON. */
function isValue(json) {
  const names = Object.keys(json);
  return names.length === 1 && /^\$(number|date$|oid|uuid|binary|regularExpression|timestamp|symbol|undefined|minKey|maxKey)/.test(names[0]);
}

/** Values of these fields are part of the shape: a sort by another field is another query. */
const KEPT = new Set(["sort", "projection", "$sort", "$project", "hint", "key"]);

/** Returns extended JSON with a question mark for each value, and one for a list of values. Field paths stay. */
export function shapeOf(json, kept = false) {
  if (Array.isArray(json)) {
    const shapes = json.map((one) => shapeOf(one, kept));
    const distinct = [...new Map(shapes.map((one) => [JSON.stringify(one), one])).values()];
    return shapes.every((one) => one === "?") && shapes.length > 0 ? ["?"] : distinct.length === 1 && shapes.length > 3 ? distinct : shapes;
  }
  if (json !== null && typeof json === "object" && !isValue(json)) {
    return Object.fromEntries(Object.entries(json).map(([name, value]) => [name, shapeOf(value, kept || KEPT.has(name))]));
  }
  if (typeof json === "string" && json.startsWith("$")) return json;
  return kept ? decode(json) : "?";
}

/** The command of an entry without its name and its generic fields: [name, shape]. */
function commandShape(given) {
  const [[name], ...rest] = Object.entries(given);
  const fields = rest.filter(([field]) => !NOT_SHAPE.has(field) && field !== "collection");
  return [name, shapeOf(Object.fromEntries(fields.map(([field, value]) => (name === "insert" ? [field, "?"] : [field, value]))))];
}

/** Adds an entry to the sums of a shape. */
function addEntry(total, entry) {
  const millis = numberOf(entry.millis) ?? 0;
  total.millis += millis;
  total.failed += entry.errCode === undefined ? 0 : 1;
  for (const [sum, figure] of [["keys", "keysExamined"], ["docs", "docsExamined"], ["returned", "nreturned"]]) total[sum] += numberOf(entry[figure]) ?? 0;
  if (entry.planSummary) total.plans.set(entry.planSummary, (total.plans.get(entry.planSummary) ?? 0) + 1);
  if (total.last === null || entry.ts > total.last) total.last = entry.ts;
  return millis;
}

/** Adds entries up by namespace and shape, the longest in total first. A getMore belongs to the query that opened its cursor. */
export function addUp(entries) {
  const all = new Map();
  const byCursor = new Map();
  const rest = [];
  for (const json of entries) {
    const { command: given } = json;
    if (!given || Object.keys(given).length === 0) continue;
    const entry = decode(json);
    const [name, shape] = commandShape(given);
    if (name === "getMore") {
      rest.push([textOf(entry.command.getMore), entry]);
      continue;
    }
    const text = `${name} ${compact(shape).replaceAll('"?"', "?")}`;
    const key = `${entry.ns}\n${text}`;
    const total = all.get(key) ?? { ns: entry.ns, name, text, count: 0, failed: 0, millis: 0, longest: -1, keys: 0, docs: 0, returned: 0, plans: new Map(), last: null };
    total.count += 1;
    const millis = addEntry(total, entry);
    if (millis > total.longest) Object.assign(total, { longest: millis, example: given });
    if (entry.cursorid !== undefined) byCursor.set(textOf(entry.cursorid), total);
    all.set(key, total);
  }
  for (const [cursor, entry] of rest) {
    // Without an entry of the query, nothing is known of its shape.
    const total = byCursor.get(cursor);
    if (total) addEntry(total, entry);
  }
  return [...all.values()].sort((a, b) => b.millis - a.millis || b.count - a.count);
}

class TopQueries {
  constructor(address) {
    this.address = address;
    this.stop = new AbortController();
    this.running = h("div");
    this.top = h("div", null, h("p", { class: "quiet" }, "Reading…"));
    this.profilers = h("div");
    this.own = h("input", { type: "checkbox", onchange: () => this.load() });
    const again = h("button", { type: "button", onclick: () => this.load() }, "Look again");
    const checks = h("div", { class: "checks" }, h("label", null, this.own, "also queries of this page"));
    this.element = h("div", { class: "view" }, h("h1", null, "Queries"), this.running, h("div", { class: "bar" }, again, checks), this.top, this.profilers);
    this.load();
    this.poll();
  }

  close() {
    this.stop.abort();
    clearTimeout(this.timer);
  }

  /** Shows what runs now, every few seconds. */
  async poll() {
    try {
      const { reply } = await command("admin", { currentOp: 1, active: true, appName: { $ne: OWN } }, this.stop.signal);
      this.running.replaceChildren(card("Running now", runningTable(reply.inprog)));
    } catch (error) {
      if (this.stop.signal.aborted) return;
      this.running.replaceChildren(error.code === 13 ? notice("info", "Operations of others are not for this user.", "The role clusterMonitor allows them.") : failure(error));
    }
    this.timer = setTimeout(() => this.poll(), EVERY_MS);
  }

  async load() {
    this.loads = (this.loads ?? 0) + 1;
    const mine = this.loads;
    try {
      const { reply } = await command("admin", { listDatabases: 1, nameOnly: true }, this.stop.signal);
      const names = reply.databases.map(({ name }) => name).slice(0, DATABASES_MAX);
      const found = await Promise.all(names.map((db) => this.read(db)));
      // A later answer may have come first.
      if (mine !== this.loads) return;
      const entries = found.flatMap(({ documents }) => documents);
      this.top.replaceChildren(this.table(addUp(entries), found));
      this.profilers.replaceChildren(this.settings(found));
    } catch (error) {
      if (!this.stop.signal.aborted) this.top.replaceChildren(failure(error));
    }
  }

  /** The entries and the profiler's settings of a database; what the user may not read is empty. */
  async read(db) {
    const allowed = (error) => {
      if (error.code !== 13) throw error;
      return null;
    };
    const { signal } = this.stop;
    const filter = { ns: { $ne: `${db}.system.profile` }, ...(this.own.checked ? {} : { appName: { $ne: OWN } }) };
    const asked = { find: "system.profile", filter, sort: { $natural: -1 }, limit: ENTRIES_MAX, projection: { _id: 0 } };
    const [entries, profiler] = await Promise.all([batch(db, asked, signal).catch(allowed), command(db, { profile: -1 }, signal).catch(allowed)]);
    return { db, documents: entries?.documents ?? [], more: entries?.more, profiler: profiler && decode(profiler.reply) };
  }

  table(shapes, found) {
    if (shapes.length === 0) {
      const known = found.filter(({ profiler }) => profiler);
      if (known.length === 0) return "";
      const isOff = known.every(({ profiler }) => numberOf(profiler.was) === 0);
      const how = isOff ? "Switch the profiler of a database on below: the server then records its operations." : "Nothing has been recorded yet.";
      return empty("No recorded operations", h("p", null, how));
    }
    const whole = shapes.reduce((sum, { millis }) => sum + millis, 0);
    const figure = (value) => h("td", { class: "number" }, value);
    const row = (one) => {
      const plans = [...one.plans].sort((a, b) => b[1] - a[1]).map(([plan]) => plan);
      const details = h("tr", { class: "details", hidden: true }, h("td", { colspan: 6 }, this.details(one, plans)));
      const open = () => {
        details.hidden = !details.hidden;
        button.setAttribute("aria-expanded", !details.hidden);
      };
      const button = h("button", { type: "button", class: "link shape", "aria-expanded": false, onclick: open }, one.text.length > 160 ? `${one.text.slice(0, 160)}…` : one.text);
      const parts = [
        h("td", null, h("span", { class: "quiet" }, one.ns), h("br"), button),
        figure(exact(one.count)),
        figure(duration(one.millis)),
        figure(`${exact(whole > 0 ? Math.round((100 * one.millis) / whole) : 0)} %`),
        figure(duration(Math.round(one.millis / one.count))),
        h("td", { class: "code" }, plans[0] ?? "", plans.length > 1 ? h("span", { class: "quiet" }, ` and ${plans.length - 1} more`) : null),
      ];
      return [h("tr", null, parts), details];
    };
    const titles = [["Query", ""], ["Count", "number"], ["Total", "number"], ["of all", "number"], ["Mean", "number"], ["Plan", ""]];
    const head = h("tr", null, titles.map(([title, kind]) => h("th", { scope: "col", class: kind || null }, title)));
    const scroll = h("div", { class: "tablescroll", tabindex: "0", role: "region", "aria-label": "Queries by time" }, h("table", { class: "queries" }, h("thead", null, head), h("tbody", null, shapes.slice(0, SHAPES_MAX).map(row))));
    const notes = ["Times are whole milliseconds of each operation.", "A question mark stands for a value."];
    if (shapes.length > SHAPES_MAX) notes.unshift(`The first ${SHAPES_MAX} of ${exact(shapes.length)}.`);
    for (const { db, documents } of found) if (documents.length === ENTRIES_MAX) notes.unshift(`Of ${db} the newest ${exact(ENTRIES_MAX)} entries are read.`);
    return card("Queries by time", scroll, h("p", { class: "quiet" }, notes.join(" ")));
  }

  details(one, plans) {
    const rows = [
      ["Longest", duration(one.longest)],
      ["Index keys read", exact(one.keys)],
      ["Documents or buckets read", exact(one.docs)],
      ["Documents returned", exact(one.returned)],
      ["Failed", exact(one.failed)],
      ["Last", one.last ? dateText(one.last) : "–"],
    ];
    const facts = h("dl", { class: "facts" }, rows.map(([title, value]) => h("div", null, h("dt", null, title), h("dd", null, value))));
    const all = plans.length > 1 ? h("p", { class: "quiet" }, `Plans: ${plans.join("; ")}`) : null;
    const explain = this.canExplain(one) ? h("button", { type: "button", onclick: () => this.explain(one) }, "Explain the longest") : null;
    return h("div", { class: "stack" }, h("pre", null, one.text), facts, all, explain);
  }

  /** True if the query tab can run the command: it is whole, and has no other options. */
  canExplain({ name, example }) {
    const given = Object.keys(example).filter((field) => !NOT_SHAPE.has(field));
    const known = { find: ["find", "filter", "projection", "sort", "limit", "singleBatch"], aggregate: ["aggregate", "pipeline", "allowDiskUse"] }[name];
    return EXPLAINED.includes(name) && typeof example[name] === "string" && example.$truncated === undefined && given.every((field) => known.includes(field));
  }

  /** Opens the query tab with the longest command of a shape, and explains it. */
  explain({ ns, name, example }) {
    const db = ns.slice(0, ns.indexOf("."));
    const collection = example[name];
    setQuery(db, collection, example);
    location.hash = this.address(db, collection, "query");
  }

  /** The profiler of each database: what it records. */
  settings(found) {
    const rows = found.filter(({ profiler }) => profiler).map(({ db, profiler }) => this.profilerControls(db, profiler));
    if (rows.length === 0) return notice("info", "Recorded operations are not for this user.", "The role dbAdmin of a database allows them and the profiler.");
    const help = "Records are kept in system.profile of each database, 1 MiB, the newest. The limit of slow operations holds for the whole server.";
    return card("Profiler", h("div", { class: "stack" }, rows), h("p", { class: "quiet" }, help));
  }

  profilerControls(db, profiler) {
    const level = h(
      "select",
      null,
      ["off", "slow operations", "all operations"].map((title, value) => h("option", { value }, title)),
    );
    level.value = String(numberOf(profiler.was));
    const slow = h("input", { type: "number", min: 0, max: 3_600_000, value: numberOf(profiler.slowms) });
    const problem = h("div");
    const set = async () => {
      problem.replaceChildren();
      try {
        await command(db, { profile: Number(level.value), slowms: Math.trunc(Number(slow.value)) });
        await this.load();
      } catch (error) {
        problem.replaceChildren(failure(error));
      }
    };
    const button = h("button", { type: "submit" }, "Set");
    const submit = (event) => {
      event.preventDefault();
      set();
    };
    return h("form", { class: "controls", onsubmit: submit, "aria-label": `Profiler of ${db}` }, h("b", { class: "dbname" }, db), field("Record", level), field("Slow from ms", slow), button, problem);
  }
}

/** The operations that run now. */
function runningTable(operations) {
  const rows = operations.map(decode).filter(({ command: given }) => given && given.currentOp === undefined);
  if (rows.length === 0) return h("p", { class: "quiet" }, "No other operation is running.");
  const row = ({ ns, op, secs_running: seconds, microsecs_running: micros, command: given, client, planSummary }) =>
    h(
      "tr",
      null,
      h("td", null, ns ?? ""),
      h("td", { class: "number" }, duration(Math.round((numberOf(micros) ?? numberOf(seconds) * 1e6) / 1000))),
      h("td", { class: "code" }, compact(withoutGeneric(given)).slice(0, 200)),
      h("td", { class: "code" }, planSummary ?? ""),
      h("td", null, client ?? ""),
    );
  const head = h("tr", null, ["Namespace", "Running", "Command", "Plan", "Client"].map((title) => h("th", { scope: "col", class: title === "Running" ? "number" : null }, title)));
  return h("div", { class: "tablescroll", tabindex: "0", role: "region", "aria-label": "Running operations" }, h("table", { class: "queries" }, h("thead", null, head), h("tbody", null, rows.slice(0, SHAPES_MAX).map(row))));
}

function withoutGeneric(given) {
  return Object.fromEntries(Object.entries(given).filter(([name]) => !NOT_SHAPE.has(name)));
}
