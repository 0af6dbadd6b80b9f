// Import of a CSV or Parquet file into a collection: a file is chosen or dropped, a preview shows its columns with guessed types, time and
// metadata, the collection is created and filled in batches. Lines that cannot be read and documents that are refused are listed
// with their line numbers; the others are inserted. The rows of a Parquet file are counted instead.
//
// The file is read in pieces, those of Parquet in row groups, and not held whole. Nothing is changed or removed: an existing collection is only added to.

import { batch, command } from "./api.js";
import { CsvParser } from "./csv.js";
import { demoCard } from "./demo_data.js";
import { card, empty, failure, field, h, notice } from "./dom.js";
import { LEFT_OUT, documentOf, readPreview } from "./import_preview.js";
import { bytes, exact, short } from "./scale.js";
import { decode, numberOf } from "./values.js";

/** Rows of the preview that are shown. */
const SHOWN_ROWS = 8;

/** Maximum documents of a batch, and bytes of their JSON: the server takes requests of 256 KiB. */
const BATCH_MAX = 1000;
const BATCH_BYTES_MAX = 240 * 1024;

/** Maximum errors that are listed. */
const ERRORS_MAX = 200;

export function importView(address) {
  const view = new ImportView(address);
  return { element: view.element, close: () => view.close() };
}

class ImportView {
  constructor(address) {
    this.address = address;
    this.file = h("input", { type: "file", accept: ".csv,.tsv,.txt,.parquet,text/csv", "aria-label": "CSV or Parquet file", onchange: () => this.file.files[0] && this.open(this.file.files[0]) });
    const zone = h("div", { class: "empty drop" }, h("h2", null, "Drop a CSV or Parquet file here"), h("p", null, "or choose one:"), this.file);
    zone.addEventListener("dragover", (event) => {
      event.preventDefault();
      zone.classList.add("over");
    });
    zone.addEventListener("dragleave", () => zone.classList.remove("over"));
    zone.addEventListener("drop", (event) => {
      event.preventDefault();
      zone.classList.remove("over");
      if (event.dataTransfer.files[0]) this.open(event.dataTransfer.files[0]);
    });
    this.body = h("div", { class: "stack" });
    this.demo = demoCard(address);
    const help = h("p", { class: "quiet" }, "JSON and large files: nilometer import --db DB --collection NAME FILE, in a terminal.");
    this.element = h("div", { class: "view" }, h("h1", null, "Import"), zone, help, this.body, this.demo.element);
  }

  close() {
    this.stopped = true;
    this.demo.close();
  }

  async open(file) {
    this.stopped = true;
    try {
      this.preview = await readPreview(file);
      this.draw(file);
    } catch (error) {
      this.body.replaceChildren(failure(error));
    }
  }

  draw(file) {
    const { columns, rows } = this.preview;
    const times = columns.filter(({ type }) => type.startsWith("date"));
    const select = (options, value) => {
      const element = h("select", null, options.map((option) => h("option", { value: option }, option)));
      element.value = value;
      return element;
    };
    this.time = h("select", null, h("option", { value: "" }, "none: an ordinary collection"), columns.map(({ name }, at) => h("option", { value: at }, name)));
    this.time.value = times.length > 0 ? String(columns.indexOf(times[0])) : "";
    for (const column of columns) {
      column.typeBox = select(column.types, column.type);
      column.typeBox.setAttribute("aria-label", `Type of ${column.name}`);
      column.metaBox = h("input", { type: "checkbox", checked: column.isMeta, "aria-label": `${column.name} is metadata` });
    }
    const title = (text) => h("th", { scope: "col" }, text);
    const head = h("tr", null, ["Column", "Type", "Metadata", "First values"].map(title));
    const line = (column, at) => {
      const values = rows.slice(0, SHOWN_ROWS).map(({ fields }) => fields[at] ?? "").filter((text) => text !== "");
      return h("tr", null, h("td", null, column.name), h("td", null, column.typeBox), h("td", null, column.metaBox), h("td", { class: "code" }, values.slice(0, 4).join(", ").slice(0, 120)));
    };
    const table = h("div", { class: "tablescroll", tabindex: "0", role: "region", "aria-label": "Columns" }, h("table", { class: "columns" }, h("thead", null, head), h("tbody", null, columns.map(line))));
    this.db = h("input", { value: "imported", required: true, autocomplete: "off", spellcheck: "false" });
    this.name = h("input", { value: file.name.replace(/\.[^.]*$/, "").replace(/[^\w-]+/g, "_") || "data", required: true, autocomplete: "off", spellcheck: "false" });
    this.startButton = h("button", { type: "submit", class: "main" }, "Import");
    this.progress = h("div", { class: "stack" });
    const submit = (event) => {
      event.preventDefault();
      this.run(file);
    };
    const form = h(
      "form",
      { class: "card", onsubmit: submit, "aria-label": "Import" },
      h("h2", null, file.name),
      h("p", { class: "quiet" }, `${bytes(file.size)}, ${exact(columns.length)} columns. ${this.preview.parquet ? `${exact(this.preview.parquet.rows)} rows. A null` : "A time without a zone is UTC. An empty cell"} is a missing field. A dot in a name makes a document.`),
      table,
      h("div", { class: "controls" }, field("Time field", this.time), field("Database", this.db), field("Collection", this.name), this.startButton),
    );
    this.body.replaceChildren(form, this.progress);
  }

  /** Returns what becomes of each column; fails if choices contradict each other. */
  plan() {
    const columns = this.preview.columns.map((column, at) => ({ at, path: [...column.path], name: column.name, type: column.typeBox.value, isMeta: column.metaBox.checked, json: column.json, number: column.number, physical: column.physical, length: column.length, levels: column.levels }));
    const kept = columns.filter(({ type }) => type !== LEFT_OUT);
    if (this.time.value === "") return { kept: kept.map((one) => ({ ...one, isMeta: false })), time: null, meta: null };
    const time = columns[Number(this.time.value)];
    if (!time.type.startsWith("date")) throw new Error(`The time field ${time.name} must be a date: choose its type.`);
    if (time.path.length > 1) throw new Error(`The time field ${time.name} must be at the top of a document, without a dot in its name.`);
    time.isMeta = false;
    const meta = kept.filter(({ isMeta }) => isMeta);
    // One column is the metadata itself, several are a document.
    if (meta.length === 1 && meta[0].path.length === 1) return { kept, time, meta: meta[0].name };
    if (kept.some(({ isMeta, path }) => !isMeta && path[0] === "meta")) throw new Error("A column is called meta, as the document of the metadata would be: choose one column as metadata.");
    for (const one of meta) one.path = ["meta", ...one.path];
    return { kept, time, meta: meta.length > 0 ? "meta" : null };
  }

  async run(file) {
    if (this.running) return;
    this.running = true;
    this.stopped = false;
    this.startButton.disabled = true;
    const report = new ImportReport(this.preview.parquet ? "row" : "line", () => (this.stopped = true));
    this.progress.replaceChildren(report.element);
    try {
      const plan = this.plan();
      const target = { db: this.db.value.trim(), name: this.name.value.trim() };
      await create(target, plan);
      await (this.preview.parquet ? this.fillParquet(plan, target, report) : this.fill(file, plan, target, report));
      report.finish(this.stopped, this.address(target.db, target.name, "query"));
    } catch (error) {
      report.fail(error);
    } finally {
      this.running = false;
      this.startButton.disabled = false;
    }
  }

  async fillParquet(plan, target, report) {
    const { parquet } = this.preview;
    const inserts = new InsertBatches(target, report);
    let row = 0;
    try {
      for (let group = 0; group < parquet.groups && !this.stopped; group += 1) {
        const { rows, values } = await parquet.readGroup(group, plan.kept);
        const fields = [];
        for (let at = 0; at < rows && !this.stopped; at += 1) {
          row += 1;
          for (const [nth, column] of plan.kept.entries()) fields[column.at] = values[nth][at];
          const { document, problem } = documentOf(plan, fields);
          if (problem) report.error(row, problem);
          else if (await inserts.add(row, document)) report.show(row / parquet.rows);
        }
      }
    } catch (error) {
      // Rows before the damage are inserted.
      await inserts.flush();
      throw error;
    }
    await inserts.flush();
  }

  async fill(file, plan, target, report) {
    const parser = new CsvParser(this.preview.delimiter);
    const inserts = new InsertBatches(target, report);
    const total = this.preview.columns.length;
    let isHead = true;
    const take = async (records) => {
      for (const { line, fields } of records) {
        if (this.stopped) return;
        if (isHead) isHead = false;
        else {
          const { document, problem } = fields.length === total ? documentOf(plan, fields) : { problem: `${fields.length} cells instead of ${total}` };
          if (problem) report.error(line, problem);
          else await inserts.add(line, document);
        }
      }
    };
    const reader = file.stream().pipeThrough(new TextDecoderStream()).getReader();
    try {
      for (let read = 0; !this.stopped; ) {
        const { value, done } = await reader.read();
        if (done) break;
        read += value.length;
        await take(parser.push(value));
        report.show(Math.min(1, read / Math.max(1, file.size)));
      }
      if (!this.stopped) await take(parser.finish());
    } catch (error) {
      // Records before an unclosed quote are inserted.
      await inserts.flush();
      throw error;
    } finally {
      reader.cancel().catch(() => {});
    }
    await inserts.flush();
  }
}

/** Creates the collection, or checks that the existing one takes these documents. */
async function create({ db, name }, { time, meta }) {
  const { documents } = await batch(db, { listCollections: 1, filter: { name } });
  const wanted = time ? { timeField: time.name, ...(meta ? { metaField: meta } : {}) } : null;
  if (documents.length === 0) {
    await command(db, { create: name, ...(wanted ? { timeseries: wanted } : {}) });
    return;
  }
  const { type, options } = decode(documents[0]);
  const there = options?.timeseries ?? null;
  const isSame = there === null ? wanted === null && type === "collection" : wanted !== null && there.timeField === wanted.timeField && there.metaField === wanted.metaField;
  if (!isSame) throw new Error(`${db}.${name} exists and is of another kind: its time field is ${there?.timeField ?? "none"}, its metadata ${there?.metaField ?? "none"}. Choose another name.`);
}

/** Sends documents in batches. */
class InsertBatches {
  constructor({ db, name }, report) {
    Object.assign(this, { db, name, report, encoder: new TextEncoder() });
    this.begin();
  }

  begin() {
    this.lines = [];
    this.texts = [];
    this.bytes = 0;
  }

  /** Adds a document. True if a batch was sent. */
  async add(line, document) {
    const text = JSON.stringify(document);
    const size = this.encoder.encode(text).length + 1;
    if (size > BATCH_BYTES_MAX) {
      this.report.error(line, `the document has ${bytes(size)}; the page takes ${bytes(BATCH_BYTES_MAX)}`);
      return false;
    }
    const isFull = this.lines.length === BATCH_MAX || this.bytes + size > BATCH_BYTES_MAX;
    if (isFull) await this.flush();
    this.lines.push(line);
    this.texts.push(text);
    this.bytes += size;
    return isFull;
  }

  async flush() {
    if (this.lines.length === 0) return;
    const { lines, texts } = this;
    this.begin();
    const { reply } = await command(this.db, `{"insert":${JSON.stringify(this.name)},"documents":[${texts.join(",")}],"ordered":false}`);
    this.report.inserted += numberOf(decode(reply.n));
    for (const one of reply.writeErrors ?? []) {
      const { index, errmsg, code } = decode(one);
      this.report.error(lines[index], `${errmsg} (${code})`);
    }
  }
}

/** The progress and the errors of an import. */
class ImportReport {
  constructor(unit, stop) {
    this.unit = unit;
    this.inserted = 0;
    this.failed = 0;
    this.begun = performance.now();
    this.bar = h("progress", { max: 1, value: 0, "aria-label": "Progress" });
    this.sum = h("p", { class: "sum", role: "status" }, "Creating the collection…");
    this.stopButton = h("button", { type: "button", onclick: stop }, "Stop");
    this.list = h("tbody");
    this.note = h("p", { class: "quiet" });
    const head = h("tr", null, h("th", { scope: "col", class: "number" }, unit === "row" ? "Row" : "Line"), h("th", { scope: "col" }, "Not inserted because"));
    this.errors = h("div", { hidden: true, class: "stack" }, h("div", { class: "tablescroll", tabindex: "0", role: "region", "aria-label": `Errors by ${unit}` }, h("table", { class: "errors" }, h("thead", null, head), this.list)), this.note);
    this.end = h("div");
    this.element = card("Progress", this.bar, this.sum, this.stopButton, this.end, this.errors);
  }

  error(line, problem) {
    this.failed += 1;
    this.errors.hidden = false;
    if (this.failed <= ERRORS_MAX) this.list.append(h("tr", null, h("td", { class: "number" }, exact(line)), h("td", null, problem)));
    else this.note.textContent = `The first ${ERRORS_MAX} of ${exact(this.failed)} errors.`;
  }

  show(part) {
    this.bar.value = part;
    const seconds = (performance.now() - this.begun) / 1000;
    this.sum.textContent = `${this.totals()}, ${short(this.inserted / Math.max(0.001, seconds))} documents/s.`;
  }

  totals() {
    const lines = `${exact(this.failed)} ${this.unit}${this.failed === 1 ? " is" : "s are"} not inserted`;
    return `${exact(this.inserted)} ${this.inserted === 1 ? "document is" : "documents are"} inserted, ${lines}`;
  }

  finish(isStopped, address) {
    this.stopButton.hidden = true;
    if (!isStopped) this.bar.value = 1;
    this.sum.textContent = `${isStopped ? "Stopped: " : ""}${this.totals()}.`;
    this.end.replaceChildren(h("a", { href: address }, "Open the collection"));
  }

  fail(error) {
    this.stopButton.hidden = true;
    this.sum.textContent = `Ended by an error: ${this.totals()}.`;
    this.end.replaceChildren(failure(error));
  }
}
