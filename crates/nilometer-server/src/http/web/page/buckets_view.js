// The buckets of a time-series collection, drawn: a row for each series, a box for each bucket from its first to its
// last measurement, darker the fuller it is. Boxes of one series that overlap in time stand below each other.
//
// At most BUCKETS_MAX are fetched, the newest or those before them, and at most ROWS_MAX series are drawn at a time; the
// view says what it omits.

import { batch, command } from "./api.js";
import { card, empty, failure, h, s } from "./dom.js";
import { bytes, duration, exact, timeLabel, timeTicks } from "./scale.js";
import { compact, dateText, decode, flatten, isNested, numberOf, pretty, textOf } from "./values.js";

const BUCKETS_MAX = 3000;
const ROWS_MAX = 100;

/** Maximum lines of boxes of one series; further boxes share the last line. */
const LANES_MAX = 6;

/** Shades of fill. */
const SHADES = 6;

/** Maximum measurements of a bucket, by default. */
const FULL = 1000;

const BAR = 13;
const ROW_PAD = 5;
const AXIS = 28;

/** The projection of a bucket: without its measurements. */
function pipeline({ timeField }, before) {
  const counted = { $size: { $objectToArray: { $ifNull: [`$data.${timeField}`, {}] } } };
  const older = { $match: { [`control.max.${timeField}`]: { $lte: { $date: { $numberLong: String(before) } } } } };
  return [
    ...(before === null ? [] : [older]),
    { $sort: { [`control.max.${timeField}`]: -1 } },
    { $limit: BUCKETS_MAX + 1 },
    {
      $project: {
        meta: 1,
        from: `$control.min.${timeField}`,
        to: `$control.max.${timeField}`,
        version: "$control.version",
        closed: "$control.closed",
        // Version 1 has no count of measurements.
        count: { $cond: [{ $eq: ["$control.version", 1] }, counted, "$control.count"] },
        bytes: { $bsonSize: "$$ROOT" },
      },
    },
  ];
}

export function bucketsView(target) {
  const stop = new AbortController();
  const element = h("div", { class: "stack" }, h("p", { class: "quiet" }, "Reading buckets…"));
  const load = async (before = null) => {
    try {
      const found = await fetchBuckets(target, before, stop.signal);
      element.replaceChildren(...draw(target, { ...found, before }, load));
    } catch (error) {
      if (!stop.signal.aborted) element.replaceChildren(trouble(error, target));
    }
  };
  load();
  return { element, close: () => stop.abort() };
}

async function fetchBuckets(target, before, signal) {
  const asked = { aggregate: `system.buckets.${target.name}`, pipeline: pipeline(target, before), cursor: { batchSize: BUCKETS_MAX + 1 } };
  const { documents } = await batch(target.db, asked, signal);
  const full = await fullCount(signal);
  const buckets = documents.map((json) => {
    const { _id, meta, from, to, version, closed, count, bytes: size } = decode(json);
    return {
      id: _id,
      idJson: json._id,
      series: meta === undefined ? "" : nameOf(meta),
      from: from?.getTime?.() ?? NaN,
      to: to?.getTime?.() ?? NaN,
      version: numberOf(version),
      closed: closed === true,
      count: numberOf(count) ?? 0,
      bytes: numberOf(size) ?? 0,
    };
  });
  return { buckets: buckets.slice(0, BUCKETS_MAX), more: buckets.length > BUCKETS_MAX, full };
}

/** Returns the name of a series, from its metadata. */
function nameOf(meta) {
  return isNested(meta) && !Array.isArray(meta) ? [...flatten(meta).values()].map(textOf).join(" · ") : textOf(meta);
}

/** Returns the maximum measurements of a bucket; the default if the user may not read it. */
async function fullCount(signal) {
  try {
    const { reply } = await command("admin", { getParameter: 1, timeseriesBucketMaxCount: 1 }, signal);
    return numberOf(decode(reply.timeseriesBucketMaxCount)) ?? FULL;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return FULL;
  }
}

/** The code of what a router does not have. */
const NOT_ON_ROUTER = 115;

function trouble(error, { db, name }) {
  if (error.code === NOT_ON_ROUTER) {
    return empty("Buckets are in the partitions", h("p", null, "A router reads the measurements of all partitions, not their buckets. ", h("a", { href: "#/cluster" }, "The view of the cluster"), " shows which partitions have which series."));
  }
  if (error.code !== 13) return failure(error);
  return empty(
    "Buckets are not for this user",
    h("p", null, `Permission to read a time series does not include its buckets. The role backup includes it, and so does a privilege on {db: "${db}", system_buckets: "${name}"}.`),
  );
}

/** Returns the series in order, each with its buckets in lines without overlap. */
function arrange(buckets) {
  const bySeries = new Map();
  for (const bucket of buckets) {
    if (!bySeries.has(bucket.series)) bySeries.set(bucket.series, []);
    bySeries.get(bucket.series).push(bucket);
  }
  const order = new Intl.Collator("en", { numeric: true });
  return [...bySeries.entries()]
    .sort(([a], [b]) => order.compare(a, b))
    .map(([series, list]) => {
      list.sort((a, b) => a.from - b.from || a.to - b.to);
      const ends = [];
      for (const bucket of list) {
        let lane = ends.findIndex((end) => end <= bucket.from);
        if (lane < 0) lane = Math.min(ends.length, LANES_MAX - 1);
        ends[lane] = Math.max(ends[lane] ?? -Infinity, bucket.to);
        bucket.lane = lane;
      }
      return { series, list, lanes: Math.max(1, ends.length) };
    });
}

/** The view of loaded buckets; `load(before)` loads older ones. */
function draw(target, { buckets, more, full, before }, load) {
  const drawable = buckets.filter(({ from, to }) => Number.isFinite(from) && Number.isFinite(to));
  const button = (title, at) => h("button", { type: "button", onclick: () => load(at) }, title);
  if (drawable.length === 0) {
    return [empty("No buckets", h("p", null, "A bucket is opened by the first measurement of each series. Insert one, then look again."), button("Look again", null))];
  }
  const rows = arrange(drawable);
  const measurements = drawable.reduce((sum, { count }) => sum + count, 0);
  const size = drawable.reduce((sum, one) => sum + one.bytes, 0);
  const facts = [
    `${exact(drawable.length)} ${drawable.length === 1 ? "bucket" : "buckets"} of ${exact(rows.length)} series`,
    `${exact(measurements)} measurements`,
    `${bytes(size)}`,
    `mean fill ${Math.round((100 * measurements) / (drawable.length * full))} % of ${exact(full)}`,
  ];
  // Buckets that end at the same time as the last one are shown again, so that none is missed.
  const ends = drawable.map(({ to }) => to);
  const [oldest, newest] = [Math.min(...ends), Math.max(...ends)];
  const cut = more ? `There are more buckets: these are the ${exact(BUCKETS_MAX)} newest${before === null ? "" : ` up to ${dateText(new Date(before))}`}.` : "";
  return [
    h(
      "div",
      { class: "bar" },
      h("p", { class: "sum" }, facts.join(" · ")),
      more ? button("Older", oldest === newest ? oldest - 1 : oldest) : null,
      before === null ? button("Look again", null) : button("Newest", null),
    ),
    cut ? h("p", { class: "notice warn cut" }, cut) : "",
    pages(target, rows, full),
  ];
}

/** The drawing of a page of series, filtered by name. */
function pages(target, rows, full) {
  const place = h("div", { class: "stack" });
  if (rows.length <= ROWS_MAX) {
    place.append(...new BucketMap(target, rows, full).parts);
    return place;
  }
  const shown = h("span", { class: "quiet", "aria-live": "polite" });
  const filter = h("input", { type: "search", placeholder: "Find a series", "aria-label": "Find a series" });
  const drawing = h("div", { class: "stack" });
  let first = 0;
  const show = () => {
    const fitting = rows.filter(({ series }) => series.toLowerCase().includes(filter.value.toLowerCase()));
    first = Math.min(first, Math.max(0, fitting.length - 1));
    const some = fitting.slice(first, first + ROWS_MAX);
    shown.textContent = some.length === 0 ? "No series has this in its name." : `Series ${first + 1} to ${first + some.length} of ${exact(fitting.length)}`;
    back.disabled = first === 0;
    on.disabled = first + ROWS_MAX >= fitting.length;
    drawing.replaceChildren(...(some.length > 0 ? new BucketMap(target, some, full).parts : []));
  };
  const turn = (step) => {
    first = Math.max(0, first + step);
    show();
  };
  const back = h("button", { type: "button", onclick: () => turn(-ROWS_MAX) }, "Previous");
  const on = h("button", { type: "button", onclick: () => turn(ROWS_MAX) }, "Next");
  filter.addEventListener("input", () => {
    first = 0;
    show();
  });
  place.append(h("div", { class: "tools" }, filter, back, on, shown), drawing);
  show();
  return place;
}

/** The drawing: a picture that scrolls below an axis that stays, with one bucket chosen at a time. */
class BucketMap {
  constructor(target, rows, full) {
    this.target = target;
    this.rows = rows;
    this.full = full;
    this.all = rows.flatMap(({ list }) => list);
    this.from = Math.min(...this.all.map(({ from }) => from));
    this.to = Math.max(...this.all.map(({ to }) => to));
    if (this.from === this.to) [this.from, this.to] = [this.from - 1000, this.to + 1000];
    this.whole = [this.from, this.to];
    this.axis = s("svg", { class: "plot bucketaxis", height: AXIS, "aria-hidden": "true" });
    this.plot = s("svg", {
      class: "plot buckets",
      role: "application",
      tabindex: "0",
      "aria-label": "Buckets over time and series. Arrow keys go from bucket to bucket, plus and minus zoom, Enter shows the whole bucket.",
    });
    this.tip = h("div", { class: "tip", hidden: true });
    this.scroll = h("div", { class: "bucketscroll" }, this.plot);
    const zoom = (text, title, factor) => h("button", { type: "button", title, onclick: () => this.zoom(factor) }, text);
    const tools = h(
      "div",
      { class: "tools" },
      zoom("+", "Zoom in on the time", 0.5),
      zoom("−", "Zoom out", 2),
      h("button", { type: "button", onclick: () => this.showAll() }, "All"),
      h("span", { class: "quiet wide" }, "Drag to zoom in, click a bucket to see its content."),
      scaleLegend(full),
    );
    // The tip is outside the scrolling part, so that it is not cut off if there are few rows.
    this.element = h("div", { class: "bucketmap" }, tools, this.axis, this.scroll, this.tip);
    this.details = h("div", { class: "stack", "aria-live": "polite" });
    /** The drawing, and the facts about the chosen bucket. */
    this.parts = [card(null, this.element), this.details];
    this.listen();
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.scroll);
  }

  listen() {
    const { plot } = this;
    plot.addEventListener("pointerdown", (event) => this.begin(event));
    plot.addEventListener("pointermove", (event) => this.move(event));
    plot.addEventListener("pointerup", (event) => this.end(event));
    plot.addEventListener("pointerleave", () => {
      this.tip.hidden = true;
    });
    plot.addEventListener("keydown", (event) => this.key(event));
  }

  resize() {
    const width = Math.floor(this.scroll.clientWidth);
    if (width > 0 && width !== this.width) {
      this.width = width;
      this.draw();
    }
  }

  place(time) {
    return this.left + ((time - this.from) / (this.to - this.from)) * this.inner;
  }

  draw() {
    const names = Math.max(...this.rows.map(({ series }) => series.length));
    this.left = Math.min(Math.max(60, names * 7 + 16), Math.floor(this.width * 0.34), 240);
    this.inner = Math.max(40, this.width - this.left - 12);
    this.drawAxis();
    const letters = Math.max(4, Math.floor((this.left - 14) / 6.7));
    const parts = [];
    let top = 0;
    for (const row of this.rows) {
      const height = row.lanes * (BAR + 1) + ROW_PAD * 2;
      parts.push(s("line", { class: "grid", x1: 0, x2: this.width, y1: top + height, y2: top + height }));
      const name = row.series === "" ? "(no series)" : row.series;
      // Names of series differ at the end more often than at the beginning.
      const cut = name.length > letters ? `…${name.slice(1 - letters)}` : name;
      parts.push(s("text", { class: "rowname", x: 6, y: top + height / 2 + 4 }, s("title", null, name), cut));
      for (const bucket of row.list) this.drawBox(parts, bucket, top + ROW_PAD);
      row.top = top;
      top += height;
    }
    for (const tick of this.ticks) parts.unshift(s("line", { class: "grid", x1: this.place(tick), x2: this.place(tick), y1: 0, y2: top }));
    this.height = top;
    this.mark = s("rect", { class: "chosen", rx: 2, visibility: "hidden" });
    this.brush = s("rect", { class: "brush", y: 0, height: top, visibility: "hidden" });
    this.plot.setAttribute("viewBox", `0 0 ${this.width} ${top}`);
    this.plot.setAttribute("width", this.width);
    this.plot.setAttribute("height", top);
    this.plot.replaceChildren(...parts, this.mark, this.brush);
    if (this.chosen) this.choose(this.chosen, false);
  }

  drawAxis() {
    const { ticks, step } = timeTicks(this.from, this.to, Math.max(1, Math.floor(this.inner / 90)));
    this.ticks = ticks;
    this.axis.setAttribute("viewBox", `0 0 ${this.width} ${AXIS}`);
    this.axis.setAttribute("width", this.width);
    this.axis.replaceChildren(...ticks.map((tick) => s("text", { class: "tick x", x: this.place(tick), y: AXIS - 9 }, timeLabel(tick, step))));
  }

  drawBox(parts, bucket, top) {
    const left = Math.max(this.place(bucket.from), this.left);
    const right = Math.min(this.place(bucket.to), this.left + this.inner);
    bucket.box = null;
    if (right < this.left || left > this.left + this.inner) return;
    const shade = Math.min(SHADES - 1, Math.floor((bucket.count / this.full) * SHADES));
    const y = top + bucket.lane * (BAR + 1);
    bucket.box = { x: left, y, width: Math.max(2.5, right - left - 0.7), height: BAR };
    parts.push(s("rect", { class: `bucket f${shade}`, rx: 2, ...bucket.box }));
  }

  /** Returns the position of the pointer on the drawing. */
  spot(event) {
    const box = this.plot.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  /** Returns the bucket at or near a position: boxes may be narrow. */
  under({ x, y }) {
    let best = null;
    let distance = 5;
    for (const bucket of this.all) {
      const { box } = bucket;
      if (!box || y < box.y - 2 || y > box.y + box.height + 2) continue;
      const away = x < box.x ? box.x - x : Math.max(0, x - box.x - box.width);
      if (away < distance) [best, distance] = [bucket, away];
    }
    return best;
  }

  begin(event) {
    const spot = this.spot(event);
    // On touch screens dragging scrolls.
    if (event.button === 0 && event.pointerType === "mouse" && spot.x >= this.left) this.dragged = { from: spot.x, to: spot.x };
  }

  move(event) {
    const spot = this.spot(event);
    if (this.dragged) {
      this.dragged.to = Math.min(Math.max(spot.x, this.left), this.left + this.inner);
      const [a, b] = [this.dragged.from, this.dragged.to].sort((p, q) => p - q);
      this.brush.setAttribute("x", a);
      this.brush.setAttribute("width", b - a);
      this.brush.setAttribute("visibility", b - a > 4 ? "visible" : "hidden");
    }
    const bucket = this.under(spot);
    if (!bucket) {
      this.tip.hidden = true;
      return;
    }
    this.tip.replaceChildren(...describe(bucket, this.full));
    this.tip.hidden = false;
    const { offsetWidth, offsetHeight } = this.tip;
    const above = event.clientY + offsetHeight + 24 > window.innerHeight;
    const flip = spot.x + 16 + offsetWidth > this.width;
    this.tip.style.left = `${Math.max(0, flip ? spot.x - 16 - offsetWidth : spot.x + 16)}px`;
    this.tip.style.top = `${this.scroll.offsetTop + spot.y - this.scroll.scrollTop + (above ? -offsetHeight - 12 : 16)}px`;
  }

  end(event) {
    const drag = this.dragged;
    this.dragged = null;
    this.brush.setAttribute("visibility", "hidden");
    if (drag && Math.abs(drag.to - drag.from) > 4) {
      const time = (x) => this.from + ((x - this.left) / this.inner) * (this.to - this.from);
      const [a, b] = [time(drag.from), time(drag.to)].sort((p, q) => p - q);
      this.view(a, b);
      return;
    }
    const bucket = this.under(this.spot(event));
    if (bucket) this.choose(bucket, true);
  }

  view(from, to) {
    if (to - from < 1) return;
    [this.from, this.to] = [from, to];
    this.tip.hidden = true;
    this.draw();
  }

  showAll() {
    this.view(...this.whole);
  }

  zoom(factor) {
    const middle = this.chosen ? (this.chosen.from + this.chosen.to) / 2 : (this.from + this.to) / 2;
    const half = ((this.to - this.from) * factor) / 2;
    const [first, last] = this.whole;
    const from = Math.max(first, middle - half);
    const to = Math.min(last, middle + half);
    this.view(from, to);
  }

  key(event) {
    if (event.key === "+" || event.key === "=") return this.zoom(0.5);
    if (event.key === "-") return this.zoom(2);
    if (event.key === "0" || event.key === "Escape") return this.showAll();
    if (event.key === "Enter" && this.chosen) return this.choose(this.chosen, true);
    const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const down = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!sideways && !down) return undefined;
    event.preventDefault();
    if (!this.chosen) return this.choose(this.all[0], false);
    const row = this.rows.findIndex(({ list }) => list.includes(this.chosen));
    if (sideways) {
      const { list } = this.rows[row];
      const next = list[list.indexOf(this.chosen) + sideways];
      return next ? this.choose(next, false) : undefined;
    }
    const other = this.rows[row + down];
    if (!other) return undefined;
    const middle = (this.chosen.from + this.chosen.to) / 2;
    const away = ({ from, to }) => Math.abs((from + to) / 2 - middle);
    return this.choose(other.list.reduce((a, b) => (away(b) < away(a) ? b : a)), false);
  }

  /** Marks a bucket and shows its facts; `whole` also loads its content. */
  choose(bucket, whole) {
    this.chosen = bucket;
    if (bucket.box) {
      const { x, y, width, height } = bucket.box;
      for (const [name, value] of Object.entries({ x: x - 1.5, y: y - 1.5, width: width + 3, height: height + 3 })) this.mark.setAttribute(name, value);
      this.mark.setAttribute("visibility", "visible");
      const out = y < this.scroll.scrollTop || y + height > this.scroll.scrollTop + this.scroll.clientHeight;
      if (out) this.scroll.scrollTop = y - this.scroll.clientHeight / 2;
    } else {
      this.mark.setAttribute("visibility", "hidden");
    }
    const body = h("div", { class: "describe" }, describe(bucket, this.full));
    const text = h("div");
    const open = h("button", { type: "button", class: "own", onclick: () => this.fetchWhole(bucket, text, open) }, "Show the bucket's document");
    this.details.replaceChildren(card("Chosen bucket", body, open, text));
    if (whole) this.fetchWhole(bucket, text, open);
  }

  async fetchWhole(bucket, place, button) {
    button.hidden = true;
    place.replaceChildren(h("p", { class: "quiet" }, "Reading…"));
    try {
      const { db, name } = this.target;
      const asked = { find: `system.buckets.${name}`, filter: { _id: bucket.idJson }, limit: 1 };
      const { documents } = await batch(db, asked);
      const gone = h("p", { class: "quiet" }, "It no longer exists.");
      place.replaceChildren(documents.length > 0 ? h("pre", { class: "json", tabindex: "0" }, pretty(documents[0])) : gone);
    } catch (error) {
      place.replaceChildren(failure(error));
    }
  }
}

function describe(bucket, full) {
  const row = (name, value) => h("div", { class: "row" }, h("span", null, name), h("b", null, value));
  const state = bucket.closed ? "closed" : "may still grow";
  return [
    h("strong", null, bucket.series === "" ? "(no series)" : bucket.series),
    row("first", dateText(new Date(bucket.from))),
    row("last", dateText(new Date(bucket.to))),
    row("spans", duration(bucket.to - bucket.from)),
    row("measurements", `${exact(bucket.count)} of ${exact(full)}`),
    row("size", `${bytes(bucket.bytes)}, ${exact(Math.round((10 * bucket.bytes) / Math.max(1, bucket.count)) / 10)} bytes each`),
    row("version", `${bucket.version}, ${state}`),
    row("_id", compact(bucket.id)),
  ];
}

function scaleLegend(full) {
  const boxes = Array.from({ length: SHADES }, (_, shade) => h("span", { class: `shade f${shade}` }));
  return h("span", { class: "fill", title: `Measurements in a bucket, of ${full}` }, "empty", h("span", { class: "shades" }, boxes), "full");
}
