// Documents as a line chart: x is a time or a number, y one or more numbers, and a line for each value of another field
// if one is chosen to split by. The initial choice is guessed from the documents.

import { empty, field, fresh, h } from "./dom.js";
import { LineChart } from "./line_chart.js";
import { exact } from "./scale.js";
import { flatten, isNested, numberOf, placeOf, textOf } from "./values.js";

/** Maximum lines of one chart. */
const LINES_MAX = 20;

/** Maximum lines drawn initially. */
const FIRST_Y_MAX = 3;
const FIRST_SPLIT_MAX = 12;

/** Returns the types of the fields of documents. */
function fieldsOf(rows) {
  const fields = new Map();
  for (const row of rows) {
    for (const [name, value] of row) {
      if (!fields.has(name)) fields.set(name, { name, dates: 0, numbers: 0, others: 0, values: new Set() });
      const known = fields.get(name);
      if (value instanceof Date) known.dates += 1;
      else if (numberOf(value) !== null) known.numbers += 1;
      else if (value !== null) known.others += 1;
      if (!isNested(value) && known.values.size <= LINES_MAX * 5) known.values.add(textOf(value));
    }
  }
  return [...fields.values()];
}

/** The chart of decoded documents, split by `metaField` if possible. */
export function resultChart(documents, metaField) {
  const rows = documents.map((document) => flatten(document));
  const fields = fieldsOf(rows);
  const dates = fields.filter((one) => one.dates > 0 && one.numbers === 0 && one.others === 0);
  const numbers = fields.filter((one) => one.numbers > 0 && one.dates === 0 && one.others === 0);
  const xs = [...dates, ...numbers];
  if (xs.length === 0 || numbers.length === 0) {
    return empty("Nothing to draw", h("p", null, "A chart needs a field of dates or numbers for x, and one of numbers for y. The answer has none."));
  }
  const splits = fields.filter((one) => !dates.includes(one) && one.values.size > 1 && one.values.size <= LINES_MAX * 5);
  const state = first(xs, numbers, splits, metaField);
  const chart = h("div");
  const said = h("p", { class: "quiet" });
  const draw = () => drawChart(rows, state, chart, said);
  const option = (name) => h("option", { value: name }, name);
  const pick = (label, list, now, change) => {
    const select = h("select", { onchange: (event) => change(event.target.value) }, list);
    select.value = now;
    return field(label, select);
  };
  const group = fresh("lines");
  const controls = h(
    "div",
    { class: "controls" },
    pick("x", xs.map(({ name }) => option(name)), state.x, (name) => {
      state.x = name;
      draw();
    }),
    h(
      "fieldset",
      { class: "checks", id: group },
      h("legend", null, "y"),
      numbers.map(({ name }) => {
        const box = h("input", { type: "checkbox", value: name, checked: state.y.has(name) });
        box.addEventListener("change", () => {
          if (box.checked) state.y.add(name);
          else state.y.delete(name);
          draw();
        });
        return h("label", null, box, name);
      }),
    ),
    pick("a line for each", [h("option", { value: "" }, "–"), ...splits.map(({ name }) => option(name))], state.split, (name) => {
      state.split = name;
      draw();
    }),
  );
  draw();
  return h("div", { class: "result card" }, controls, chart, said);
}

/** Returns the initial choice. */
function first(xs, numbers, splits, metaField) {
  const x = xs[0].name;
  const plain = numbers.filter(({ name }) => name !== x && !name.startsWith("_id"));
  const others = plain.length > 0 ? plain : numbers.filter(({ name }) => name !== x);
  const y = new Set((others.length > 0 ? others : numbers).slice(0, FIRST_Y_MAX).map(({ name }) => name));
  const words = splits.filter((one) => one.others > 0 && one.values.size <= FIRST_SPLIT_MAX && one.name !== x);
  const meta = splits.find(({ name }) => name === metaField && name !== x && !y.has(name));
  const split = (meta ?? words.find(({ name }) => name !== "_id") ?? words[0])?.name ?? "";
  // A line for each value of each field would be too many initially.
  return { x, y: split ? new Set([...y].slice(0, 1)) : y, split };
}

function drawChart(rows, state, place, said) {
  const lines = new Map();
  let time = false;
  let left = 0;
  for (const row of rows) {
    const at = row.get(state.x);
    const x = placeOf(at);
    if (x === null) {
      left += 1;
      continue;
    }
    time ||= at instanceof Date;
    for (const name of state.y) {
      const y = numberOf(row.get(name));
      if (y === null) continue;
      const of = state.split ? textOf(row.get(state.split)) : "";
      const title = [of, state.y.size > 1 || !state.split ? name : ""].filter(Boolean).join(" · ");
      if (!lines.has(title)) lines.set(title, []);
      lines.get(title).push([x, y]);
    }
  }
  const order = new Intl.Collator("en", { numeric: true });
  const series = [...lines.entries()].sort(([a], [b]) => order.compare(a, b)).map(([name, points]) => ({ name, points: points.sort((a, b) => a[0] - b[0]) }));
  const told = [];
  if (series.length > LINES_MAX) told.push(`The first ${LINES_MAX} of ${series.length} lines are drawn.`);
  if (left > 0) told.push(`${exact(left)} documents have nothing in ${state.x}.`);
  if (time) told.push("Times are UTC.");
  said.textContent = told.join(" ");
  if (series.length === 0) {
    place.replaceChildren(empty("No line", h("p", null, "Choose at least one field for y.")));
    return;
  }
  const chart = new LineChart({ label: `${[...state.y].join(", ")} over ${state.x}`, time, height: 320 });
  place.replaceChildren(chart.element);
  chart.show(series.slice(0, LINES_MAX));
}
