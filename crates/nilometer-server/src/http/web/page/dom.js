// Creating elements, and parts used by every view. Texts are always set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined));
  return element;
}

/** Creates an HTML element with attributes (`onclick` and similar are listeners) and children. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Creates an SVG element. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** A notice: `kind` is "bad", "warn" or "info". */
export function notice(kind, text, hint) {
  const role = kind === "bad" ? "alert" : "status";
  return h("div", { class: `notice ${kind}`, role }, h("p", null, text), hint ? h("p", { class: "hint" }, hint) : null);
}

/** The text of an empty view. */
export function empty(title, ...more) {
  return h("div", { class: "empty" }, h("h2", null, title), ...more);
}

/** An error message. */
export function failure(error) {
  if (error?.name === "AbortError") return notice("info", "Stopped.");
  const code = error?.codeName ? ` (${error.codeName}, ${error.code})` : "";
  return notice("bad", `${error?.message ?? error}${code}`, error?.hint);
}

/** A card with a heading. */
export function card(title, ...children) {
  return h("section", { class: "card" }, title ? h("h2", null, title) : null, ...children);
}

let ids = 0;

/** Returns a unique id of an element. */
export function fresh(prefix) {
  ids += 1;
  return `${prefix}-${ids}`;
}

/** A control with its label. */
export function field(label, control, help) {
  control.id ||= fresh("field");
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, help ? h("small", null, help) : null);
}

/**
 * Tabs: `tabs` are {name, title}, `open(name)` is told which one was chosen. Arrow keys go from one to the next.
 */
export function tabs(label, list, chosen, open) {
  const buttons = list.map(({ name, title }) =>
    h("button", { type: "button", role: "tab", "data-name": name, onclick: () => choose(name, true) }, title),
  );
  const bar = h("div", { class: "tabs", role: "tablist", "aria-label": label, onkeydown: move }, buttons);
  function mark(name) {
    for (const button of buttons) {
      const here = button.dataset.name === name;
      button.setAttribute("aria-selected", here);
      button.tabIndex = here ? 0 : -1;
    }
  }
  function choose(name) {
    mark(name);
    open(name);
  }
  function move(event) {
    const at = buttons.indexOf(document.activeElement);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (at < 0 || !step) return;
    event.preventDefault();
    const next = buttons[(at + step + buttons.length) % buttons.length];
    next.focus();
    choose(next.dataset.name);
  }
  mark(chosen);
  return { bar, choose, mark };
}
