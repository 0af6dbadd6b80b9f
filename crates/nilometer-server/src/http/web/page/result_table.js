// Documents as a table: a column for each field, nested documents expanded, one page at a time.

import { h } from "./dom.js";
import { Special, flatten, isNested, numberOf, textOf } from "./values.js";

const COLUMNS_MAX = 60;
const PAGE = 100;
const LETTERS_MAX = 120;

/** A table of decoded documents. */
export function resultTable(documents) {
  const rows = documents.map((document) => flatten(document));
  const names = new Set();
  for (const row of rows) for (const name of row.keys()) names.add(name);
  const columns = [...names].slice(0, COLUMNS_MAX);
  const body = h("tbody");
  const numeric = (name) => rows.some((row) => kindOf(row.get(name)) === "number");
  const head = h("tr", null, columns.map((name) => h("th", { scope: "col", class: numeric(name) ? "number" : null }, name)));
  const table = h("table", null, h("thead", null, head), body);
  const scroll = h("div", { class: "tablescroll", tabindex: "0", role: "region", "aria-label": "Table of documents" }, table);
  const element = h("div", { class: "result" }, scroll);
  if (names.size > COLUMNS_MAX) {
    element.append(h("p", { class: "quiet" }, `The first ${COLUMNS_MAX} of ${names.size} fields; all are in JSON.`));
  }
  const pages = Math.ceil(rows.length / PAGE);
  const shown = h("span", { "aria-live": "polite" });
  let page = 0;
  const draw = () => {
    body.replaceChildren(...rows.slice(page * PAGE, (page + 1) * PAGE).map((row) => h("tr", null, columns.map((name) => cell(row.get(name))))));
    shown.textContent = `${page * PAGE + 1}–${Math.min(rows.length, (page + 1) * PAGE)} of ${rows.length}`;
    back.disabled = page === 0;
    on.disabled = page >= pages - 1;
    scroll.scrollTop = 0;
  };
  const turn = (step) => {
    page += step;
    draw();
  };
  const back = h("button", { type: "button", onclick: () => turn(-1) }, "Previous");
  const on = h("button", { type: "button", onclick: () => turn(1) }, "Next");
  if (pages > 1) element.append(h("div", { class: "pager" }, back, shown, on));
  draw();
  return element;
}

/** Formats a value. */
function kindOf(value) {
  if (value === undefined) return "none";
  if (typeof value === "number" || numberOf(value) !== null) return "number";
  if (value === null || typeof value === "boolean") return "word";
  if (value instanceof Date) return "date";
  return value instanceof Special || isNested(value) ? "code" : "";
}

function cell(value) {
  const text = textOf(value);
  const kind = kindOf(value);
  const long = text.length > LETTERS_MAX;
  return h("td", { class: kind, title: long ? text.slice(0, 2000) : null }, long ? `${text.slice(0, LETTERS_MAX)}…` : text);
}
