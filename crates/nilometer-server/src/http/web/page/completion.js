// Completion in the query box: names of stages, operators and fields for the place of the caret in JSON.
//
// The names of the language come from the server's own tables (`/api/language`), those of fields from a sample of documents. The
// list opens while a name is typed, or with Ctrl+Space; arrow keys choose, Enter or Tab takes, Escape closes.

import { batch, call } from "./api.js";
import { fresh, h } from "./dom.js";
import { decode, isNested } from "./values.js";

/** Documents that fields are taken from, and maximum fields. */
const SAMPLED = 100;
const FIELDS_MAX = 500;

/** Maximum entries of the list. */
const SHOWN_MAX = 50;

let language = null;

/** Returns the names of the language; they are asked for once. */
function languageNames() {
  language ??= call("/api/language").catch(() => {
    language = null;
    return { stages: [], topLevel: [], onPath: [], expressions: [], accumulators: [], windowFunctions: [] };
  });
  return language;
}

/** Returns the paths of fields in the newest documents of a collection, the most frequent first. */
export async function sampleFields({ db, name, timeField }) {
  const sort = timeField ? { [timeField]: -1 } : {};
  const { documents } = await batch(db, { find: name, sort, limit: SAMPLED });
  const counts = new Map();
  const add = (value, path, depth) => {
    if (path) counts.set(path, (counts.get(path) ?? 0) + 1);
    const inside = Array.isArray(value) ? value.find((one) => isNested(one)) : value;
    if (depth === 6 || !isNested(inside) || Array.isArray(inside)) return;
    for (const [field, one] of Object.entries(inside)) add(one, path ? `${path}.${field}` : field, depth + 1);
  };
  for (const document of documents) add(decode(document), "", 0);
  return [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).slice(0, FIELDS_MAX).map(([path]) => path);
}

/**
 * Returns the place at the end of JSON text: the letters of the text that is typed, null outside of a text; whether they are a
 * name; and the names of the documents and arrays around it, outermost first, with null for elements of arrays.
 */
export function placeAt(text) {
  const around = [];
  let [typed, start, name] = [null, 0, null];
  for (let i = 0; i < text.length; i += 1) {
    const letter = text[i];
    if (typed !== null) {
      if (letter === "\\") i += 1;
      else if (letter === '"') [name, typed] = [text.slice(start, i), null];
    } else if (letter === '"') [typed, start] = ["", i + 1];
    else if (letter === "{" || letter === "[") {
      around.push({ isArray: letter === "[", name: around.at(-1)?.isArray ? null : (around.at(-1)?.key ?? null), key: null, isValue: letter === "[" });
    } else if (letter === "}" || letter === "]") around.pop();
    else if (letter === ":" && around.length > 0) Object.assign(around.at(-1), { key: name, isValue: true });
    else if (letter === "," && around.length > 0) Object.assign(around.at(-1), { key: null, isValue: around.at(-1).isArray });
  }
  const inner = around.at(-1);
  return {
    typed: typed === null ? null : text.slice(start),
    isName: inner !== undefined && !inner.isArray && !inner.isValue,
    names: around.map((one) => one.name).concat(inner && !inner.isArray && inner.isValue ? [inner.key] : []),
    arrays: around.map((one) => one.isArray),
  };
}

/** Returns the lists of the language that fit a place; `kind` is "pipeline" or a part of a find. */
function listsAt({ names, arrays }, kind) {
  const isPipeline = (at) => arrays[at] && ((at === 0 && kind === "pipeline") || names[at] === "pipeline" || (names[at - 1] === "$facet" && !arrays[at - 1]));
  const depth = arrays.length - 1;
  if (depth >= 1 && !arrays[depth] && isPipeline(depth - 1)) return ["stages"];
  const last = Math.max(names.lastIndexOf("$expr"), names.lastIndexOf("$match"), names.lastIndexOf("$group"), names.lastIndexOf("output"), names.lastIndexOf("query"));
  const nearest = kind === "pipeline" ? names[last] : names.includes("$expr") ? "$expr" : kind === "filter" ? "$match" : "";
  if (nearest === "$match" || nearest === "query") {
    const inside = kind === "filter" ? depth : depth - last;
    return inside === 0 || names.at(-1) === null ? ["topLevel", "onPath"] : ["onPath", "topLevel"];
  }
  if (nearest === "$group") return depth - last === 1 && names[last + 1] !== "_id" ? ["accumulators"] : ["expressions"];
  if (nearest === "output") return depth - last === 1 ? ["windowFunctions", "accumulators"] : ["expressions"];
  return ["expressions"];
}

/** Returns the entries for a place: {text, kind}, those that begin with the typed letters first. */
export function entriesAt(place, kind, names, fields) {
  const { typed, isName } = place;
  if (typed === null) return [];
  let entries;
  if (isName && typed.startsWith("$")) {
    const words = { stages: "stage", topLevel: "match", onPath: "match", expressions: "expression", accumulators: "accumulator", windowFunctions: "window" };
    const lists = listsAt(place, kind).flatMap((list) => names[list].map((text) => ({ text, kind: words[list] })));
    entries = [...new Map(lists.map((one) => [one.text, one])).values()];
  } else if (isName && listsAt(place, kind)[0] === "stages") entries = names.stages.map((text) => ({ text, kind: "stage" }));
  else if (isName) entries = fields.map((text) => ({ text, kind: "field" }));
  else if (typed.startsWith("$")) entries = fields.map((text) => ({ text: `$${text}`, kind: "field" }));
  else return [];
  const wanted = typed.toLowerCase();
  const begins = ({ text }) => text.toLowerCase().startsWith(wanted);
  const contains = ({ text }) => text.toLowerCase().includes(wanted.replace(/^\$/, ""));
  return [...entries.filter(begins), ...entries.filter((one) => !begins(one) && contains(one))].filter(({ text }) => text !== typed).slice(0, SHOWN_MAX);
}

/** Where the caret is, in pixels from the corner of the box: measured in a copy of the text. */
function caretPlace(box) {
  const copy = h("div", { class: "code caretcopy", "aria-hidden": "true" });
  const style = getComputedStyle(box);
  for (const name of ["width", "padding", "border", "font", "lineHeight", "tabSize", "boxSizing"]) copy.style[name] = style[name];
  const mark = h("span", null, "\u200b");
  copy.append(box.value.slice(0, box.selectionStart), mark);
  box.parentNode.append(copy);
  const place = { x: mark.offsetLeft - box.scrollLeft, y: mark.offsetTop + mark.offsetHeight - box.scrollTop };
  copy.remove();
  return place;
}

/** Adds completion to a text box of JSON. `kind` is "pipeline", "filter", "projection" or "sort"; `fields()` gives a promise of paths. */
export function complete(box, kind, fields) {
  const list = h("ul", { class: "completion", role: "listbox", id: fresh("completion"), hidden: true, "aria-label": "Completions" });
  const frame = h("div", { class: "completed" }, box, list);
  let entries = [];
  let chosen = 0;
  for (const [name, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": list.id })) box.setAttribute(name, value);

  const close = () => {
    list.hidden = true;
    box.setAttribute("aria-expanded", "false");
    box.removeAttribute("aria-activedescendant");
  };
  const mark = () => {
    [...list.children].forEach((item, at) => item.setAttribute("aria-selected", at === chosen));
    const item = list.children[chosen];
    item?.scrollIntoView({ block: "nearest" });
    if (item) box.setAttribute("aria-activedescendant", item.id);
  };
  const take = (at) => {
    const { text } = entries[at];
    const before = box.value.slice(0, box.selectionStart);
    const start = before.length - placeAt(before).typed.length;
    const after = box.value.slice(box.selectionStart);
    const rest = /^[\w$.]*/.exec(after)[0].length;
    const closed = after.slice(rest).startsWith('"');
    box.setRangeText(closed ? text : `${text}"`, start, before.length + rest, "end");
    if (closed) box.setSelectionRange(box.selectionStart + 1, box.selectionStart + 1);
    box.dispatchEvent(new Event("input", { bubbles: true }));
    close();
    box.focus();
  };
  const open = async () => {
    const before = box.value.slice(0, box.selectionStart);
    const place = placeAt(before);
    if (place.typed === null) return close();
    const [names, paths] = await Promise.all([languageNames(), fields()]);
    // More may have been typed meanwhile.
    if (before !== box.value.slice(0, box.selectionStart) || document.activeElement !== box) return undefined;
    entries = entriesAt(place, kind, names, paths);
    if (entries.length === 0) return close();
    chosen = 0;
    list.replaceChildren(
      ...entries.map(({ text, kind: word }, at) =>
        h("li", { role: "option", id: `${list.id}-${at}`, onpointerdown: (event) => (event.preventDefault(), take(at)) }, h("span", null, text), h("small", null, word)),
      ),
    );
    const { x, y } = caretPlace(box);
    list.hidden = false;
    list.style.top = `${Math.min(y, box.offsetHeight)}px`;
    list.style.left = `${Math.max(0, Math.min(x, box.offsetWidth - list.offsetWidth))}px`;
    box.setAttribute("aria-expanded", "true");
    return mark();
  };

  box.addEventListener("input", (event) => {
    // What completion itself inserts opens no list.
    if (event.inputType !== undefined && event.isTrusted) open();
  });
  box.addEventListener("blur", close);
  box.addEventListener("click", close);
  box.addEventListener("keydown", (event) => {
    if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      open();
      return;
    }
    if (list.hidden) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      chosen = (chosen + step + entries.length) % entries.length;
      mark();
    } else if ((event.key === "Enter" && !event.ctrlKey && !event.metaKey) || event.key === "Tab") take(chosen);
    else if (event.key === "Escape") close();
    else {
      if (["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) close();
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  });
  return frame;
}
