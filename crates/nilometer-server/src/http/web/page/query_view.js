// The query box: find or aggregate in extended JSON, answered as a table, a chart, JSON, or an explain.

import { batch, command } from "./api.js";
import { complete, sampleFields } from "./completion.js";
import { empty, failure, field, fresh, h, notice, tabs } from "./dom.js";
import { explainTree } from "./explain_tree.js";
import { resultChart } from "./result_chart.js";
import { resultTable } from "./result_table.js";
import { savedQueriesMenu } from "./saved_queries.js";
import { exact } from "./scale.js";
import { decode, flatten, numberOf, pretty, relaxed } from "./values.js";

/** Default and maximum limit of a find. */
const LIMIT = 1000;
const LIMIT_MAX = 5000;

/** Maximum documents shown as JSON. */
const JSON_MAX = 200;

/** The query drafts of each collection, while the page is open. */
const drafts = new Map();

/** Hints for shell syntax. */
const HINTS = [
  [/ISODate\(|new Date/, 'A date is {"$date": "2024-05-01T00:00:00Z"} here; ISODate(…) is the shell\'s.'],
  [/ObjectId\(/, 'An ObjectId is {"$oid": "…"} here.'],
  [/Number(Long|Decimal|Int)\(/, 'A number of a certain type is {"$numberLong": "…"} or {"$numberDecimal": "…"} here.'],
  [/'/, "Texts and names stand in double quotes, not in single ones."],
  [/[{,]\s*[$A-Za-z_][\w.$]*\s*:/, 'Names stand in double quotes: {"bed": "roses"}, not {bed: "roses"}.'],
  [/,\s*[\]}]/, "There is a comma before a closing bracket."],
];

/** Fails with a clear message unless `text` is JSON of this kind. */
function checked(title, text, kind) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    const wrong = new Error(`${title}: ${error.message}`);
    const hints = HINTS.filter(([pattern]) => pattern.test(text)).map(([, hint]) => hint);
    wrong.hint = hints.join(" ") || "It must be extended JSON.";
    throw wrong;
  }
  const right = kind === "array" ? Array.isArray(value) : value !== null && typeof value === "object" && !Array.isArray(value);
  if (!right) {
    const wrong = new Error(`${title} must be ${kind === "array" ? "an array of stages: [ … ]" : "a document: { … }"}.`);
    throw wrong;
  }
  return text;
}

/** Makes a filter, an object of extended JSON, the next query of a collection. */
export function setFilter(target, filter) {
  drafts.set(`${target.db}.${target.name}`, { ...startingDraft(target), filter: spaced(filter) });
}

/** Makes a `find` or `aggregate`, canonical extended JSON, the next query of a collection, to be explained at once. */
export function setQuery(db, name, { filter, projection, sort, limit, pipeline }) {
  const text = (value) => (value === undefined ? "" : spaced(relaxed(value)));
  const draft = { ...startingDraft({}), filter: text(filter) || "{}", projection: text(projection), sort: text(sort), isExplained: true };
  if (limit !== undefined) draft.limit = String(numberOf(decode(limit)));
  if (pipeline) Object.assign(draft, { kind: "aggregate", pipeline: lines(relaxed(pipeline)) });
  drafts.set(`${db}.${name}`, draft);
}

export function queryView(target) {
  const view = new QueryView(target);
  return { element: view.element, close: () => view.stop() };
}

class QueryView {
  constructor(target) {
    this.target = target;
    this.key = `${target.db}.${target.name}`;
    this.draft = drafts.get(this.key) ?? startingDraft(target);
    drafts.set(this.key, this.draft);
    this.result = h("div", { class: "stack", id: fresh("result") });
    this.status = h("p", { class: "sum", role: "status" });
    this.examples = h("div", { class: "chips examples" });
    this.parts = h("div");
    this.element = h("div", { class: "stack" }, this.form(), this.status, this.result);
    this.showParts();
    this.showExamples();
    this.run(this.draft.isExplained ? "explain" : "run");
    this.draft.isExplained = false;
  }

  form() {
    const kinds = [
      { name: "find", title: "Find" },
      { name: "aggregate", title: "Aggregate" },
    ];
    const bar = tabs("Kind of query", kinds, this.draft.kind, (kind) => {
      this.draft.kind = kind;
      this.showParts();
    });
    this.kindBar = bar;
    this.runButton = h("button", { type: "submit", class: "main" }, "Run");
    this.explainButton = h("button", { type: "button", onclick: () => this.run("explain") }, "Explain");
    this.stopButton = h("button", { type: "button", hidden: true, onclick: () => this.stop() }, "Stop");
    const help = h(
      "details",
      { class: "help" },
      h("summary", null, "How to write it"),
      h("p", null, "Extended JSON: names and texts in double quotes. Times are UTC."),
      h("pre", null, '{"bed": "roses", "moisture": {"$gt": 30}}\n{"time": {"$gte": {"$date": "2024-05-01T00:00:00Z"}}}\n{"_id": {"$oid": "6632…"}}'),
      h("p", null, "A query changes nothing: $out and $merge are refused. It may take 30 seconds and give 5,000 documents."),
    );
    const submit = (event) => {
      event.preventDefault();
      this.run("run");
    };
    const keys = (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.run(event.shiftKey ? "explain" : "run");
      }
    };
    return h(
      "form",
      { class: "card query", onsubmit: submit, onkeydown: keys },
      h("div", { class: "bar over" }, bar.bar, this.examples),
      this.parts,
      h("div", { class: "bar" }, this.runButton, this.explainButton, this.stopButton, h("span", { class: "quiet wide" }, "Ctrl+Enter runs, Ctrl+Shift+Enter explains, Ctrl+Space completes"), help, savedQueriesMenu(this.key, () => this.draft, (draft) => this.take(draft))),
    );
  }

  /** Returns the paths of fields, sampled once. */
  fields() {
    this.sampled ??= sampleFields(this.target).catch(() => []);
    return this.sampled;
  }

  showParts() {
    const { draft } = this;
    const withCompletion = (label, name, box) => {
      const part = field(label, box);
      part.append(complete(box, name, () => this.fields()));
      return part;
    };
    const area = (name, rows) => {
      const box = h("textarea", { rows, spellcheck: "false", autocapitalize: "off", autocomplete: "off", class: "code", "data-part": name });
      box.value = draft[name];
      box.addEventListener("input", () => {
        draft[name] = box.value;
      });
      return box;
    };
    const line = (name, attributes) => {
      const box = h("input", { spellcheck: "false", autocomplete: "off", class: "code", "data-part": name, ...attributes });
      box.value = draft[name];
      box.addEventListener("input", () => {
        draft[name] = box.value;
      });
      return box;
    };
    if (draft.kind === "aggregate") {
      const rows = Math.min(18, Math.max(6, draft.pipeline.split("\n").length + 1));
      this.parts.replaceChildren(withCompletion("Pipeline", "pipeline", area("pipeline", rows)));
      return;
    }
    const more = h(
      "div",
      { class: "row3" },
      withCompletion("Projection", "projection", line("projection", { placeholder: '{"moisture": 1}' })),
      withCompletion("Sort", "sort", line("sort", { placeholder: '{"time": -1}' })),
      field("Limit", line("limit", { type: "number", min: 1, max: LIMIT_MAX })),
    );
    this.parts.replaceChildren(withCompletion("Filter", "filter", area("filter", 2)), more);
  }

  /** Shows example queries for the fields of this collection. */
  async showExamples() {
    const { target } = this;
    try {
      const at = async (order) => {
        const sort = target.timeField ? { [target.timeField]: order } : {};
        const { documents } = await batch(target.db, { find: target.name, sort, limit: 1 });
        return documents.length > 0 ? decode(documents[0]) : null;
      };
      const [oldest, newest] = await Promise.all([at(1), at(-1)]);
      if (!newest) return;
      const list = examplesFor(target, oldest, newest);
      const button = ({ title, ...draft }) =>
        h("button", { type: "button", class: "chip", onclick: () => this.take(draft) }, title);
      this.examples.replaceChildren(h("span", { class: "quiet" }, "Try:"), ...list.map(button));
    } catch {
      // The query itself reports the error.
    }
  }

  take(draft) {
    Object.assign(this.draft, draft);
    this.kindBar.mark(this.draft.kind);
    this.showParts();
    this.run("run");
  }

  /** Returns the command in extended JSON, as text: the input is sent unchanged. */
  text() {
    const { draft, target } = this;
    const name = JSON.stringify(target.name);
    if (draft.kind === "aggregate") {
      return `{"aggregate":${name},"pipeline":${checked("Pipeline", draft.pipeline || "[]", "array")},"cursor":{}}`;
    }
    const limit = Math.trunc(Number(draft.limit || LIMIT));
    if (!(limit >= 1 && limit <= LIMIT_MAX)) throw new Error(`Limit must be between 1 and ${LIMIT_MAX}.`);
    const part = (title, text) => (text.trim() ? `,"${title.toLowerCase()}":${checked(title, text, "document")}` : "");
    const parts = part("Filter", draft.filter) + part("Projection", draft.projection) + part("Sort", draft.sort);
    return `{"find":${name}${parts},"limit":${limit}}`;
  }

  stop() {
    this.running?.abort();
  }

  busy(running) {
    this.running = running;
    this.stopButton.hidden = !running;
    this.runButton.disabled = Boolean(running);
    this.explainButton.disabled = Boolean(running);
    this.element.setAttribute("aria-busy", Boolean(running));
  }

  async run(what) {
    if (this.running) return;
    let text;
    try {
      text = this.text();
    } catch (error) {
      this.status.textContent = "";
      this.result.replaceChildren(failure(error));
      return;
    }
    const running = new AbortController();
    this.busy(running);
    this.status.textContent = "Running…";
    try {
      if (what === "explain") await this.explain(text, running.signal);
      else await this.answer(text, running.signal);
    } catch (error) {
      this.status.textContent = "";
      this.result.replaceChildren(failure(error));
    } finally {
      this.busy(null);
    }
  }

  async explain(text, signal) {
    const asked = `{"explain":${text},"verbosity":"executionStats"}`;
    const { reply, micros } = await command(this.target.db, asked, signal);
    this.status.textContent = `Explained in ${took(micros)}: the query was run to count what each step does.`;
    this.result.replaceChildren(explainTree(reply));
  }

  async answer(text, signal) {
    const { documents, more, micros } = await batch(this.target.db, text, signal);
    const { draft } = this;
    const count = `${exact(documents.length)} ${documents.length === 1 ? "document" : "documents"} in ${took(micros)}`;
    const full = draft.kind === "find" && documents.length === Math.trunc(Number(draft.limit || LIMIT));
    const rest = more ? "; there are more, which the page does not take" : full ? "; the limit was reached" : "";
    this.status.textContent = `${count}${rest}.`;
    if (documents.length === 0) {
      const none = draft.kind === "find" && !draft.filter.replace(/[{}\s]/g, "") ? "The collection is empty." : "No document fits.";
      this.result.replaceChildren(empty(none));
      return;
    }
    this.result.replaceChildren(...this.forms(documents));
  }

  /** Table, chart and JSON of a result, each created when it is opened. */
  forms(documents) {
    const decoded = documents.map(decode);
    const { metaField } = this.target;
    const makers = {
      table: () => resultTable(decoded),
      chart: () => resultChart(decoded, metaField),
      json: () => jsonResult(documents),
    };
    const body = h("div", { role: "tabpanel" });
    const made = {};
    const open = (name) => {
      this.draft.result = name;
      made[name] ??= makers[name]();
      body.replaceChildren(made[name]);
    };
    const list = [
      { name: "table", title: "Table" },
      { name: "chart", title: "Chart" },
      { name: "json", title: "JSON" },
    ];
    const bar = tabs("Form of the answer", list, this.draft.result, open);
    open(this.draft.result);
    return [bar.bar, body];
  }
}

function took(micros) {
  return micros < 1000 ? `${micros} µs` : `${exact(Number((micros / 1000).toPrecision(3)))} ms`;
}

function jsonResult(documents) {
  const text = documents.slice(0, JSON_MAX).map(pretty).join("\n");
  const cut = documents.length > JSON_MAX ? notice("info", `The first ${JSON_MAX} of ${exact(documents.length)} documents.`) : null;
  return h("div", { class: "result" }, cut, h("pre", { class: "json", tabindex: "0" }, text));
}

function startingDraft({ timeField }) {
  return {
    kind: "find",
    filter: "{}",
    projection: "",
    sort: timeField ? spaced({ [timeField]: -1 }) : "",
    limit: String(LIMIT),
    pipeline: "[\n  {\"$limit\": 100}\n]",
    result: timeField ? "chart" : "table",
  };
}

/** A pipeline with a stage in each line. */
function lines(stages) {
  return `[\n${stages.map((stage) => `  ${spaced(stage)}`).join(",\n")}\n]`;
}

/** JSON in one line with blanks behind commas and colons. */
function spaced(value) {
  if (Array.isArray(value)) return `[${value.map(spaced).join(", ")}]`;
  if (value !== null && typeof value === "object") {
    return `{${Object.entries(value).map(([name, v]) => `${JSON.stringify(name)}: ${spaced(v)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}

/** Units of time, each with the span in milliseconds that it divides into about a hundred parts. */
const UNITS = [
  ["second", 5 * 60e3],
  ["minute", 5 * 3600e3],
  ["hour", 12 * 86400e3],
  ["day", 300 * 86400e3],
  ["week", 4 * 365 * 86400e3],
  ["month", 20 * 365 * 86400e3],
  ["year", Infinity],
];

/** Returns example queries from the oldest and newest document. */
function examplesFor({ timeField, metaField }, oldest, newest) {
  const fields = [...flatten(newest)];
  const number = fields.find(([name, value]) => numberOf(value) !== null && !name.startsWith("_id") && name !== metaField)?.[0];
  const list = [{ title: timeField ? "newest" : "all", kind: "find", filter: "{}", projection: "", sort: timeField ? spaced({ [timeField]: -1 }) : "" }];
  if (timeField && metaField) {
    const group = { _id: `$${metaField}`, measurements: { $sum: 1 }, first: { $min: `$${timeField}` }, last: { $max: `$${timeField}` } };
    list.push({ title: "series", kind: "aggregate", pipeline: lines([{ $group: group }, { $sort: { _id: 1 } }]), result: "table" });
  }
  if (timeField && number) {
    const span = newest[timeField] - oldest[timeField];
    const [unit] = UNITS.find(([, whole]) => span <= whole) ?? UNITS.at(-1);
    const bin = { $dateTrunc: { date: `$${timeField}`, unit } };
    const id = metaField ? { [timeField]: bin, [metaField.replaceAll(".", "_")]: `$${metaField}` } : bin;
    const group = { _id: id, mean: { $avg: `$${number}` }, max: { $max: `$${number}` } };
    list.push({ title: `mean ${number} by ${unit}`, kind: "aggregate", pipeline: lines([{ $group: group }, { $sort: { _id: 1 } }, { $limit: 2000 }]), result: "chart" });
  }
  if (!timeField) list.push({ title: "count", kind: "aggregate", pipeline: lines([{ $count: "documents" }]), result: "table" });
  return list;
}
