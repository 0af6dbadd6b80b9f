// A cluster: its nodes, its partitions and which node writes them, how a sharded collection is divided and how that was before,
// and what has moved. Read again every few seconds; sizes less often, because every partition counts them.

import { batch, command } from "./api.js";
import { card, empty, failure, field, h, notice } from "./dom.js";
import { bytes, duration, exact } from "./scale.js";
import { dateText, decode, numberOf, textOf } from "./values.js";

const PERIOD_MS = 3000;

/** Periods between two counts of the sizes. */
const SIZES_EVERY = 10;

/** Maximum databases of which sizes are counted. */
const DATABASES_MAX = 50;

/** Chunks of a page. */
const CHUNKS_SHOWN = 40;

/** Moves that are listed, the latest. */
const MOVES_MAX = 50;

/** Rounds of the balancer that are listed, the latest. */
const ROUNDS_MAX = 10;

/** Colours; partitions beyond share them. */
const COLOURS = 10;

/** Maximum sharded collections to choose from. */
const COLLECTIONS_MAX = 500;

/** True if the server is a node of a cluster. */
export async function isCluster() {
  const { reply } = await command("admin", { hello: 1 });
  return reply.msg === "isdbgrid";
}

export function clusterView() {
  const view = new ClusterView();
  return { element: view.element, close: () => view.stop.abort() };
}

/** Returns a table with columns of [title, class]. */
function table(name, columns, rows) {
  const head = h("tr", null, columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title)));
  const cells = (row) => h("tr", null, row.map((cell, at) => h("td", { class: columns[at][1] }, cell)));
  const inside = h("table", null, h("thead", null, head), h("tbody", null, rows.map(cells)));
  return h("div", { class: "tablescroll", tabindex: "0", role: "region", "aria-label": name }, inside);
}

function colourOf(at) {
  return `p${Math.max(0, at) % COLOURS}`;
}

/** Formats a bound of a chunk by the parts of the shard key. */
function boundText(bound) {
  const part = (value) => ({ MinKey: "−∞", MaxKey: "∞" })[textOf(value)] ?? textOf(value);
  const parts = Object.entries(bound);
  // A bound of nothing but ends is the end of all keys.
  const ends = new Set(parts.map(([, value]) => part(value)));
  if (ends.size === 1 && ["−∞", "∞"].includes([...ends][0])) return [...ends][0];
  return parts.map(([name, value]) => `${name.replace(/^control\.min\./, "")} ${part(value)}`).join(", ");
}

/** Returns the name of a collection as users know it. */
function plain(namespace) {
  return namespace.replace(".system.buckets.", ".");
}

/** Returns the time of a timestamp in ms; 0 if it is not known. */
function msOf(timestamp) {
  return Number(textOf(timestamp).split(":")[0]) * 1000 || 0;
}

function ago(ms) {
  return ms > 0 ? duration(Math.max(0, Math.round((Date.now() - ms) / 1000) * 1000)) : "–";
}

class ClusterView {
  constructor() {
    this.stop = new AbortController();
    this.page = 0;
    this.nodes = h("div");
    this.partitions = h("div");
    this.moves = h("div");
    this.balancer = h("div");
    this.tiles = h("div", { class: "tiles" });
    this.problem = h("div");
    this.chosen = h("select", { onchange: () => this.choose() });
    this.chunks = h("div", { class: "stack" });
    this.collections = h("section", { class: "card" }, h("h2", null, "Sharded collections"), this.pick(), this.chunks);
    this.element = h("div", { class: "view" }, h("h1", null, "Cluster"), this.problem, this.tiles, this.nodes, this.partitions, this.collections, this.balancer, this.moves);
    this.run();
  }

  pick() {
    return field("Collection", this.chosen);
  }

  async run() {
    for (let round = 0; !this.stop.signal.aborted; round += 1) {
      if (!document.hidden) {
        try {
          await this.load(round);
          this.problem.replaceChildren();
        } catch (error) {
          if (this.stop.signal.aborted) return;
          this.problem.replaceChildren(error.code === 13 ? forbidden() : failure(error));
        }
      }
      await new Promise((resolve) => {
        setTimeout(resolve, PERIOD_MS);
        this.stop.signal.addEventListener("abort", resolve, { once: true });
      });
    }
  }

  /** Returns the documents of a collection of `config`. */
  async config(name, options = {}) {
    const { documents } = await batch("config", { find: name, ...options }, this.stop.signal);
    return documents.map(decode);
  }

  async load(round) {
    const [shards, nodes, moves, settings, rounds, collections] = await Promise.all([
      this.config("shards", { sort: { _id: 1 } }),
      this.config("mongos", { sort: { _id: 1 } }),
      // Each range that moved has two entries.
      this.config("changelog", { filter: { what: { $ne: "moveChunk.from" } }, sort: { _id: -1 }, limit: MOVES_MAX }),
      this.config("settings"),
      this.config("actionlog", { sort: { time: -1 }, limit: ROUNDS_MAX }),
      this.config("collections", { sort: { _id: 1 }, limit: COLLECTIONS_MAX }),
    ]);
    this.names = shards.map(({ _id }) => _id);
    const balancer = settings.find(({ _id }) => _id === "balancer");
    const chunk = settings.find(({ _id }) => _id === "chunksize");
    this.drawTiles(shards, nodes, collections, balancer);
    this.drawBalancer({ balancer, chunk, rounds, collections });
    this.drawNodes(nodes, shards);
    this.drawPartitions(shards);
    this.drawMoves(moves);
    this.offer(collections);
    await this.loadChunks();
    if (round % SIZES_EVERY === 0) {
      this.sizes = await this.readSizes(shards);
      this.drawPartitions(shards);
    }
  }

  drawTiles(shards, nodes, collections, balancer) {
    const tile = (name, value, more) => h("div", { class: "tile" }, h("span", null, name), h("b", null, value), h("small", null, more));
    const silent = shards.filter(({ host }) => !host).length;
    this.tiles.replaceChildren(
      tile("Nodes", exact(nodes.length), `${nodes.filter(({ noPartitions }) => noPartitions).length} only route`),
      tile("Partitions", exact(shards.length), silent > 0 ? `${silent} without a node` : "all have a node"),
      tile("Sharded", exact(collections.length), "collections"),
      tile("Balancer", isOn(balancer) ? "on" : "off", windowText(balancer)),
    );
  }

  /** Returns the mark of a partition. */
  mark(name) {
    return h("span", { class: `partition ${colourOf(this.names.indexOf(name))}` }, name);
  }

  drawNodes(nodes, shards) {
    const rows = nodes.map((node) => {
      const own = shards.filter(({ host }) => host === node._id).map(({ _id }) => this.mark(_id));
      const writes = node.noPartitions ? "only routes" : own.length > 0 ? h("span", { class: "chips" }, own) : "none at the moment";
      return [node._id, ago(node.created.getTime()), `${ago(node.ping.getTime())} ago`, writes];
    });
    const columns = [["Address", "whole"], ["Alive for", "date"], ["Last seen", "date"], ["Writes", ""]];
    this.nodes.replaceChildren(card("Nodes", table("Nodes", columns, rows)));
  }

  drawPartitions(shards) {
    const size = (name, part) => this.sizes?.get(name)?.[part];
    const rows = shards.map(({ _id, host, term, since }) => [
      this.mark(_id),
      host || "no node at the moment",
      textOf(term) || "–",
      since ? ago(since.getTime()) : "–",
      exact(size(_id, "documents")),
      bytes(size(_id, "bytes")),
    ]);
    const columns = [["Partition", ""], ["Node", "whole"], ["Term", "number"], ["There for", "date"], ["Documents", "number"], ["Size", "number"]];
    const note = h("p", { class: "quiet" }, this.sizesNote ?? "A bucket of measurements counts as one document. Each turn of a node to write a partition has a term of its own.");
    this.partitions.replaceChildren(card("Partitions", table("Partitions", columns, rows), note));
  }

  /** Counts what each partition has of all databases. */
  async readSizes(shards) {
    const sizes = new Map();
    try {
      const { reply } = await command("admin", { listDatabases: 1, nameOnly: true }, this.stop.signal);
      const own = (reply.databases ?? []).map(({ name }) => name).filter((name) => !["admin", "config", "local"].includes(name));
      const replies = await Promise.all(own.slice(0, DATABASES_MAX).map((db) => command(db, { dbStats: 1 }, this.stop.signal)));
      for (const { reply: stats } of replies) {
        for (const [shard, part] of Object.entries(decode(stats).raw ?? {})) {
          const name = shard.split("/")[0];
          const known = sizes.get(name) ?? { documents: 0, bytes: 0 };
          sizes.set(name, { documents: known.documents + (numberOf(part.objects) ?? 0), bytes: known.bytes + (numberOf(part.dataSize) ?? 0) });
        }
      }
      for (const { _id } of shards) if (!sizes.has(_id)) sizes.set(_id, { documents: 0, bytes: 0 });
      this.sizesNote = own.length > DATABASES_MAX ? `Sizes are those of the first ${DATABASES_MAX} databases.` : undefined;
    } catch (error) {
      if (this.stop.signal.aborted) throw error;
      this.sizesNote = error.code === 13 ? "Sizes are not for this user." : "Sizes are not known at the moment.";
    }
    return sizes;
  }

  /** What the balancer may do, and the last rounds in which it did something. */
  drawBalancer({ balancer, chunk, rounds, collections }) {
    const exempt = collections.filter(({ noBalance }) => noBalance === true).map(({ _id }) => plain(_id));
    const said = [
      isOn(balancer) ? "It is on" : "It is off: sh.startBalancer() in mongosh starts it",
      windowText(balancer),
      chunk ? `chunks of ${textOf(chunk.value)} MB` : "",
      exempt.length > 0 ? `not for ${exempt.join(", ")}` : "",
    ];
    const rows = rounds.map(({ time, server, details }) => [
      dateText(time),
      server,
      exact(numberOf(details.chunksMoved)),
      duration(numberOf(details.executionTimeMillis) ?? 0),
      details.errmsg ?? "",
    ]);
    const columns = [["Time", "date"], ["Node", "whole"], ["Ranges moved", "number"], ["Took", "date"], ["Error", ""]];
    const shown = rows.length > 0 ? table("Rounds of the balancer", columns, rows) : h("p", { class: "quiet" }, "It has moved nothing so far.");
    const about = h("p", { class: "sum" }, said.filter((text) => text !== "").join(" · "));
    this.balancer.replaceChildren(card("Balancer", about, shown, h("p", { class: "quiet" }, "Rounds that moved something or failed, the latest first. Times are UTC.")));
  }

  drawMoves(moves) {
    const rows = moves.map(({ time, what, ns, details }) => {
      const isRange = what !== "partition.move";
      const end = (name) => (name === undefined ? "several" : isRange ? this.mark(name) : name || "none");
      const moved = isRange ? `${plain(ns)}: from ${boundText(details.min)} to ${boundText(details.max)}` : this.mark(ns);
      return [dateText(time), isRange ? "range" : ns === "config" ? "catalog" : "partition", moved, end(details.from), end(details.to)];
    });
    const columns = [["Time", "date"], ["What", "whole"], ["Which", ""], ["From", "whole"], ["To", "whole"]];
    const shown = rows.length > 0 ? table("Moves", columns, rows) : h("p", { class: "quiet" }, "Nothing has moved.");
    const note = "Ranges of keys that were assigned to other partitions, and partitions that other nodes took since this node began. Times are UTC.";
    this.moves.replaceChildren(card("Moves", shown, h("p", { class: "quiet" }, note)));
  }

  /** Offers the sharded collections, and keeps the choice. */
  offer(collections) {
    const text = JSON.stringify(collections.map(({ _id }) => _id));
    this.keys = new Map(collections.map((one) => [one._id, one]));
    if (text === this.offered) return;
    this.offered = text;
    const before = this.chosen.value;
    this.chosen.replaceChildren(...collections.map(({ _id }) => h("option", { value: _id }, plain(_id))));
    if (this.keys.has(before)) this.chosen.value = before;
    this.chosen.parentElement.hidden = collections.length === 0;
  }

  choose() {
    this.drawn = undefined;
    this.chunks.replaceChildren(h("p", { class: "quiet" }, "Reading ranges…"));
    this.turnTo(0);
  }

  turnTo(page) {
    this.page = page;
    this.loadChunks().catch((error) => this.stop.signal.aborted || this.problem.replaceChildren(failure(error)));
  }

  /** Reads a page of the chunks of the chosen collection. */
  async loadChunks() {
    const key = this.keys?.get(this.chosen.value);
    if (!key) {
      const line = 'sh.shardCollection("garden.soil", {"bed.id": "hashed"})';
      this.chunks.replaceChildren(empty("No collection is sharded", h("p", null, "Each collection is whole in one partition. In mongosh:"), h("pre", { tabindex: "0" }, line)));
      return;
    }
    const page = this.page;
    const uuid = { $binary: { base64: base64Of(textOf(key.uuid)), subType: "04" } };
    const asked = { filter: { uuid }, sort: { _id: 1 }, skip: page * CHUNKS_SHOWN, limit: CHUNKS_SHOWN + 1 };
    const found = await this.config("chunks", asked);
    if (this.chosen.value !== key._id || this.page !== page) return;
    const text = JSON.stringify([key._id, page, found.map(({ min, shard, history }) => [Object.values(min).map(textOf), shard, history.length])]);
    // The same is not drawn again, so that focus and selection stay.
    if (text === this.drawn && Date.now() - this.drawnAt < 20 * PERIOD_MS) return;
    [this.drawn, this.drawnAt] = [text, Date.now()];
    this.drawChunks(key, found.slice(0, CHUNKS_SHOWN), { page, isLast: found.length <= CHUNKS_SHOWN });
  }

  drawChunks(key, chunks, { page, isLast }) {
    const now = Date.now();
    const times = chunks.flatMap(({ history }) => history.map(({ validAfter }) => msOf(validAfter))).filter((ms) => ms > 0);
    const from = Math.min(now - 1000, ...times);
    const parts = Object.entries(key.key).map(([name, kind]) => (kind === "hashed" ? `${name} hashed` : name));
    const rows = chunks.map((chunk) => this.chunkRow(chunk, [from, now]));
    const turn = (title, to, isOff) => h("button", { type: "button", disabled: isOff, onclick: () => this.turnTo(to) }, title);
    const pager = page === 0 && isLast ? null : h("div", { class: "pager" }, h("span", null, `Page ${page + 1}`), turn("Previous", page - 1, page === 0), turn("Next", page + 1, isLast));
    const isSeries = key._id.includes(".system.buckets.");
    const note = isSeries ? "A range says where new buckets go. Older ones stay in the partitions that had the range before, and queries ask these, too." : "A document is in the partition that has the range of its key.";
    this.chunks.replaceChildren(
      h("p", { class: "sum" }, `Shard key ${parts.join(", ")} · ${isSeries ? "time series" : "documents"}`),
      h("div", { class: "chunkaxis quiet" }, h("span", null, dateText(new Date(Math.floor(from / 1000) * 1000))), h("span", null, "now")),
      h("ol", { class: "chunks" }, rows),
      ...(pager ? [pager] : []),
      h("p", { class: "quiet" }, note),
    );
  }

  /** A range, and a bar of the partitions that had it over time. */
  chunkRow({ min, max, shard, history }, [from, now]) {
    const turns = history.map(({ shard: name, validAfter }) => ({ name, since: Math.max(from, msOf(validAfter)) })).reverse();
    const segments = turns.map(({ name, since }, at) => {
      const until = turns[at + 1]?.since ?? now;
      const segment = h("span", { class: colourOf(this.names.indexOf(name)), title: `${name} since ${dateText(new Date(since))}` }, name);
      segment.style.flexGrow = String(Math.max(0.001, (until - since) / (now - from)));
      return segment;
    });
    const told = turns.map(({ name, since }) => `${name} since ${dateText(new Date(since))}`).join(", then ");
    return h(
      "li",
      null,
      h("span", { class: "range" }, h("span", null, boundText(min)), " to ", h("span", null, boundText(max))),
      h("span", { class: "turns", role: "img", "aria-label": told }, segments),
      this.mark(shard),
    );
  }
}

/** True if the balancer is on. */
function isOn(balancer) {
  return balancer !== undefined && balancer.stopped !== true && balancer.mode !== "off";
}

/** Returns when the balancer may run, if that is not always. */
function windowText(balancer) {
  const window = balancer?.activeWindow;
  return window ? `from ${window.start} to ${window.stop} UTC` : "";
}

function base64Of(uuid) {
  const pairs = uuid.replaceAll("-", "").match(/../g) ?? [];
  return btoa(String.fromCharCode(...pairs.map((pair) => Number.parseInt(pair, 16))));
}

function forbidden() {
  return notice("info", "The cluster is not for this user.", "The role clusterMonitor in admin allows it; so do clusterAdmin and root.");
}
