// A line chart in SVG: axes with ticks, a legend that hides and shows, values at the pointer or, with the arrow keys,
// at a position on the axis. The caller passes points ordered by x; a y of null is a gap.
//
// More points than pixels are thinned: of each column of pixels the lowest and the highest stay, so that no peak is lost.

import { h, s } from "./dom.js";
import { dateText } from "./values.js";
import { exact, niceBounds, numberTicks, tickLabel, timeLabel, timeTicks } from "./scale.js";

const MARGIN = { top: 10, right: 14, bottom: 26, left: 50 };

/** Maximum number of points that are drawn with dots. */
const DOTS_MAX = 80;

/** Number of colours; further lines reuse them. */
const COLOURS = 10;

/** Pixels between ticks. */
const TICK_X = 90;
const TICK_Y = 44;

/** Returns the class for the colour of a line. */
export function colour(at) {
  return `c${at % COLOURS}`;
}

/** Returns the first, lowest, highest and last point of each column of pixels. */
export function thin(points, columns, place) {
  if (points.length <= columns * 2) return points;
  const out = [];
  let column = null;
  let kept = [];
  const flush = () => {
    if (kept.length === 0) return;
    let low = kept[0];
    let high = kept[0];
    for (const point of kept) {
      if (point[1] !== null && (low[1] === null || point[1] < low[1])) low = point;
      if (point[1] !== null && (high[1] === null || point[1] > high[1])) high = point;
    }
    const chosen = new Set([kept[0], low, high, kept.at(-1)]);
    out.push(...kept.filter((point) => chosen.has(point)));
    kept = [];
  };
  for (const point of points) {
    const here = Math.floor(place(point[0]));
    if (here !== column) {
      flush();
      column = here;
    }
    kept.push(point);
  }
  flush();
  return out;
}

/** Returns the path through points, broken at gaps. */
function path(points, x, y) {
  let text = "";
  let pen = "M";
  for (const [px, py] of points) {
    if (py === null) {
      pen = "M";
      continue;
    }
    text += `${pen}${x(px).toFixed(1)} ${y(py).toFixed(1)}`;
    pen = "L";
  }
  return text;
}

export class LineChart {
  /** `time` says that x is a time, `height` is in pixels, `format` writes a value of y, `zero` keeps y = 0 in sight. */
  constructor({ label, time = true, height = 240, format = exact, unit = "", zero = false }) {
    this.options = { label, time, height, format, unit, zero };
    this.series = [];
    this.bands = [];
    this.hidden = new Set();
    this.at = null;
    this.width = 0;
    this.plot = s("svg", { class: "plot", role: "img", tabindex: "0", "aria-label": label, height });
    this.tip = h("div", { class: "tip", hidden: true });
    this.legend = h("div", { class: "legend" });
    this.said = h("div", { class: "sr", "aria-live": "polite" });
    this.frame = h("div", { class: "frame" }, this.plot, this.tip);
    this.element = h("figure", { class: "chart" }, this.frame, this.legend, this.said);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerdown", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.leave());
    this.plot.addEventListener("blur", () => this.leave());
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.frame);
  }

  /** Shows `series`: {name, points: [[x, y], …]}. `domain` fixes the ends of the axis of x; `bands` are spans of x to shade. */
  show(series, domain, bands = []) {
    const names = series.map((one) => one.name).join("\n");
    this.series = series;
    this.domain = domain;
    this.bands = bands;
    if (names !== this.names) {
      this.names = names;
      this.drawLegend();
    }
    this.draw();
  }

  resize() {
    const width = Math.floor(this.frame.clientWidth);
    if (width > 0 && width !== this.width) {
      this.width = width;
      this.draw();
    }
  }

  shown() {
    return this.series.map((one, at) => ({ ...one, at })).filter((one) => !this.hidden.has(one.name));
  }

  drawLegend() {
    this.legend.replaceChildren(
      ...this.series.map((one, at) => {
        const button = h(
          "button",
          { type: "button", class: `key ${colour(at)}`, "aria-pressed": !this.hidden.has(one.name), title: "Show or hide" },
          h("span", { class: "swatch" }),
          one.name,
        );
        button.addEventListener("click", () => {
          if (!this.hidden.delete(one.name)) this.hidden.add(one.name);
          button.setAttribute("aria-pressed", !this.hidden.has(one.name));
          this.draw();
        });
        return button;
      }),
    );
    this.legend.hidden = this.series.length < 2 && !this.series[0]?.name;
  }

  /** Returns the ends of both axes. */
  bounds(shown) {
    let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
    if (this.options.zero) [low, high] = [0, 0];
    for (const { points } of shown) {
      for (const [x, y] of points) {
        if (x < left) left = x;
        if (x > right) right = x;
        if (y === null) continue;
        if (y < low) low = y;
        if (y > high) high = y;
      }
    }
    if (this.domain) [left, right] = this.domain;
    if (left === right) [left, right] = this.options.time ? [left - 1000, right + 1000] : [left - 1, right + 1];
    return { left, right, low, high };
  }

  draw() {
    if (!this.width) return;
    const { height, time, unit } = this.options;
    const shown = this.shown();
    const { left, right, low, high } = this.bounds(shown);
    const inner = { width: Math.max(10, this.width - MARGIN.left - MARGIN.right), height: height - MARGIN.top - MARGIN.bottom };
    const rows = Math.max(2, Math.floor(inner.height / TICK_Y));
    const [bottom, top] = niceBounds(low, high, rows);
    const x = (v) => MARGIN.left + ((v - left) / (right - left)) * inner.width;
    const y = (v) => MARGIN.top + (1 - (v - bottom) / (top - bottom)) * inner.height;
    this.map = { x, y, left, right, inner };
    this.plot.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.plot.setAttribute("width", this.width);
    const parts = [];
    for (const [from, to] of this.bands) {
      const [start, end] = [x(Math.max(from, left)), x(Math.min(to, right))];
      if (end > start) parts.push(s("rect", { class: "band", x: start, y: MARGIN.top, width: end - start, height: inner.height }));
    }
    const across = numberTicks(bottom, top, rows);
    for (const tick of across.ticks) {
      const at = y(tick);
      parts.push(s("line", { class: "grid", x1: MARGIN.left, x2: MARGIN.left + inner.width, y1: at, y2: at }));
      parts.push(s("text", { class: "tick y", x: MARGIN.left - 8, y: at + 4 }, tickLabel(tick, across.step)));
    }
    if (unit) parts.push(s("text", { class: "tick unit", x: MARGIN.left + 4, y: MARGIN.top + 10 }, unit));
    const finite = Number.isFinite(left) && Number.isFinite(right);
    if (finite) {
      const count = Math.max(1, Math.floor(inner.width / TICK_X));
      const down = time ? timeTicks(left, right, count) : numberTicks(left, right, count);
      for (const tick of down.ticks) {
        const at = x(tick);
        parts.push(s("line", { class: "notch", x1: at, x2: at, y1: MARGIN.top + inner.height, y2: MARGIN.top + inner.height + 5 }));
        const text = time ? timeLabel(tick, down.step) : tickLabel(tick, down.step);
        parts.push(s("text", { class: "tick x", x: at, y: height - 8 }, text));
      }
    }
    const floor = MARGIN.top + inner.height;
    parts.push(s("line", { class: "axis", x1: MARGIN.left, x2: MARGIN.left + inner.width, y1: floor, y2: floor }));
    for (const { points, at } of shown) {
      const inside = this.domain ? points.filter(([px]) => px >= left && px <= right) : points;
      const drawn = thin(inside, inner.width, x);
      parts.push(s("path", { class: `line ${colour(at)}`, d: path(drawn, x, y) }));
      const few = !this.domain && drawn.length <= DOTS_MAX;
      drawn.forEach(([px, py], i) => {
        // A point between two gaps has no line.
        const alone = (drawn[i - 1]?.[1] ?? null) === null && (drawn[i + 1]?.[1] ?? null) === null;
        if (py !== null && (few || alone)) parts.push(s("circle", { class: `dot ${colour(at)}`, cx: x(px), cy: y(py), r: 2.5 }));
      });
    }
    this.cursor = s("g", { class: "cursor" });
    this.plot.replaceChildren(...parts, this.cursor);
    if (this.at !== null) this.mark(this.at);
  }

  point(event) {
    if (!this.map) return;
    const box = this.plot.getBoundingClientRect();
    const { left, right, inner } = this.map;
    const share = (event.clientX - box.left - MARGIN.left) / inner.width;
    this.mark(left + Math.min(1, Math.max(0, share)) * (right - left));
  }

  leave() {
    this.at = null;
    this.tip.hidden = true;
    this.cursor?.replaceChildren();
  }

  key(event) {
    if (event.key === "Escape") return this.leave();
    const step = { ArrowLeft: -1, ArrowRight: 1, PageDown: 20, PageUp: -20 }[event.key];
    const end = { Home: 0, End: 1 }[event.key];
    if (step === undefined && end === undefined) return undefined;
    event.preventDefault();
    const places = [...new Set(this.shown().flatMap(({ points }) => points.map(([x]) => x)))].sort((a, b) => a - b);
    if (places.length === 0) return undefined;
    const now = this.at === null ? -1 : nearest(places.map((x) => [x, 0]), this.at);
    const at = end !== undefined ? (places.length - 1) * end : Math.min(places.length - 1, Math.max(0, now + step));
    this.mark(places[at], true);
    return undefined;
  }

  /** Shows the values nearest to `at`. */
  mark(at, say = false) {
    this.at = at;
    const found = [];
    let place = null;
    for (const { name, points, at: index } of this.shown()) {
      const i = nearest(points, at);
      if (i < 0) continue;
      const [px, py] = points[i];
      if (place === null || Math.abs(px - at) < Math.abs(place - at)) place = px;
      found.push({ name, index, px, py });
    }
    if (place === null) return this.leave();
    const { x, y, inner } = this.map;
    const near = found.filter(({ px }) => Math.abs(x(px) - x(place)) <= 12);
    const dots = near.filter(({ py }) => py !== null);
    this.cursor.replaceChildren(
      s("line", { x1: x(place), x2: x(place), y1: MARGIN.top, y2: MARGIN.top + inner.height }),
      ...dots.map(({ index, px, py }) => s("circle", { class: `dot ${colour(index)}`, cx: x(px), cy: y(py), r: 4 })),
    );
    const { time, format, unit } = this.options;
    const head = time ? dateText(new Date(place)) : exact(place);
    const value = (py) => (py === null ? "–" : `${format(py)}${unit ? ` ${unit}` : ""}`);
    this.tip.replaceChildren(
      h("strong", null, head),
      ...near.map(({ name, index, py }) =>
        h("div", { class: `row ${colour(index)}` }, h("span", { class: "swatch" }), h("span", null, name), h("b", null, value(py))),
      ),
    );
    this.tip.hidden = false;
    const width = this.tip.offsetWidth;
    const right = x(place) + 14 + width > this.width;
    this.tip.style.left = `${Math.max(0, right ? x(place) - 14 - width : x(place) + 14)}px`;
    if (say) this.said.textContent = `${head}: ${near.map(({ name, py }) => `${name} ${value(py)}`).join(", ")}`;
    return undefined;
  }
}

/** Returns the index of the point whose x is nearest to `at`; -1 if there is none. */
function nearest(points, at) {
  let [low, high] = [0, points.length - 1];
  if (high < 0) return -1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < at) low = middle + 1;
    else high = middle;
  }
  return low > 0 && Math.abs(points[low - 1][0] - at) <= Math.abs(points[low][0] - at) ? low - 1 : low;
}
