// Saved queries: named, kept in this browser's local storage, with export and import as a file.
//
// They are of the browser, not of the server: another browser, or another address of the same server, has its own.

import { failure, field, h, notice } from "./dom.js";

const KEY = "nilometer.queries";

/** Maximum queries, and maximum letters of one. */
const QUERIES_MAX = 500;
const LETTERS_MAX = 100_000;

/** Parts of a query that are kept. */
const PARTS = ["kind", "filter", "projection", "sort", "limit", "pipeline", "result"];

/** Returns a query with its known parts, or null if it is none. */
function checked(given) {
  if (given === null || typeof given !== "object") return null;
  const texts = ["name", "ns", ...PARTS].map((part) => [part, given[part]]);
  if (texts.some(([, text]) => typeof text !== "string")) return null;
  const isSound = given.name.trim() !== "" && ["find", "aggregate"].includes(given.kind) && texts.every(([, text]) => text.length <= LETTERS_MAX);
  return isSound ? Object.fromEntries(texts) : null;
}

/** Returns all saved queries; none if the storage cannot be read. */
export function savedQueries() {
  try {
    const list = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(list) ? list.map(checked).filter(Boolean) : [];
  } catch {
    return [];
  }
}

function store(list) {
  if (list.length > QUERIES_MAX) throw new Error(`There are at most ${QUERIES_MAX} saved queries: delete some.`);
  list.sort((a, b) => (a.ns === b.ns ? a.name.localeCompare(b.name) : a.ns.localeCompare(b.ns)));
  try {
    localStorage.setItem(KEY, JSON.stringify(list));
  } catch (error) {
    throw new Error(`This browser does not keep it: ${error.message}`);
  }
}

/** Adds queries; one of the same name and collection is replaced. Returns the number of those that are no queries. */
function add(queries) {
  const sound = queries.map(checked).filter(Boolean);
  const others = savedQueries().filter((one) => !sound.some(({ name, ns }) => name === one.name && ns === one.ns));
  store([...others, ...sound]);
  return queries.length - sound.length;
}

/**
 * The list of the saved queries of a collection `ns`. `draft()` is the query in the box, `take(draft)` puts one there.
 */
export function savedQueriesMenu(ns, draft, take) {
  const problem = h("div");
  const say = (element) => problem.replaceChildren(...(element ? [element] : []));
  const list = h("div", { class: "chips" });
  const name = h("input", { maxlength: 100, placeholder: "Name", autocomplete: "off" });
  const count = h("span");

  const draw = () => {
    const all = savedQueries();
    const own = all.filter((one) => one.ns === ns);
    count.textContent = own.length > 0 ? `Saved queries (${own.length})` : "Saved queries";
    const chip = (query) =>
      h(
        "span",
        { class: "saved" },
        h("button", { type: "button", class: "chip", onclick: () => takeOne(query) }, query.name),
        h("button", { type: "button", class: "chip", "aria-label": `Delete ${query.name}`, title: "Delete", onclick: () => change(() => remove(query)) }, "×"),
      );
    const none = h("span", { class: "quiet" }, "None of this collection is saved.");
    list.replaceChildren(...(own.length > 0 ? own.map(chip) : [none]));
    save.disabled = name.value.trim() === "";
    out.disabled = all.length === 0;
  };
  const takeOne = (query) => {
    name.value = query.name;
    take(Object.fromEntries(PARTS.map((part) => [part, query[part]])));
    draw();
  };
  const remove = (query) => store(savedQueries().filter((one) => one.name !== query.name || one.ns !== ns));
  const change = (act) => {
    say(null);
    try {
      say(act());
    } catch (error) {
      say(failure(error));
    }
    draw();
  };
  const saveDraft = () =>
    change(() => {
      const parts = PARTS.map((part) => [part, String(draft()[part] ?? "")]);
      if (add([{ name: name.value.trim(), ns, ...Object.fromEntries(parts) }]) > 0) throw new Error(`A query has at most ${LETTERS_MAX} letters.`);
    });
  const exportAll = () => {
    const text = JSON.stringify(savedQueries(), null, 2);
    const link = h("a", { href: URL.createObjectURL(new Blob([text], { type: "application/json" })), download: "nilometer_queries.json" });
    link.click();
    URL.revokeObjectURL(link.href);
  };
  const importFile = async () => {
    const [chosen] = file.files;
    if (!chosen) return;
    const text = await chosen.text();
    file.value = "";
    change(() => {
      let queries;
      try {
        queries = JSON.parse(text);
      } catch (error) {
        throw new Error(`${chosen.name} is not JSON: ${error.message}`);
      }
      if (!Array.isArray(queries)) throw new Error(`${chosen.name} must be an array of queries, as Export writes it.`);
      const refused = add(queries);
      const other = refused > 0 ? ` ${refused} of them are no queries.` : "";
      return notice(refused > 0 ? "warn" : "info", `Imported ${queries.length - refused} of ${queries.length}.${other}`);
    });
  };

  const save = h("button", { type: "button", onclick: saveDraft }, "Save");
  const out = h("button", { type: "button", onclick: exportAll }, "Export");
  const file = h("input", { type: "file", accept: ".json,application/json", hidden: true, onchange: importFile, "aria-label": "File of saved queries" });
  const into = h("button", { type: "button", onclick: () => file.click() }, "Import");
  name.addEventListener("input", draw);
  name.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    if (!save.disabled) saveDraft();
  });
  const element = h(
    "details",
    { class: "help savedqueries" },
    h("summary", null, count),
    list,
    h("div", { class: "controls" }, field("Save this query as", name), save, out, into, file),
    h("p", { class: "quiet" }, "They are kept in this browser. Export writes those of all collections to a file."),
    problem,
  );
  draw();
  return element;
}
