// The view of a cluster, in a real browser at one of three nodes with four partitions.
//
// Reads NILOMETER_URI and NILOMETER_WEB as check.mjs does. `crates/nilometer-cluster/tests/it/web.rs` starts the nodes and lists
// the names of the checks.

import assert from "node:assert/strict";
import { MongoClient } from "mongodb";
import { openBrowser } from "./browser.mjs";

const WEB = process.env.NILOMETER_WEB;
const START = Date.UTC(2024, 0, 1);
const PARTITIONS = ["p0001", "p0002", "p0003", "p0004"];
/** The balancer looks every ten seconds, moves what it finds, and the page shows it some seconds later. */
const BALANCED_MS = 60_000;

const client = new MongoClient(process.env.NILOMETER_URI, { serverSelectionTimeoutMS: 10_000 });
const admin = client.db("admin");
const db = client.db("garden");
const browser = await openBrowser();
const page = await browser.open();

const cardOf = (title) => page.locator("section.card", { has: page.getByRole("heading", { name: title, exact: true }) });
const cells = (row) => row.locator("td").allTextContents();

/** Returns the rows of the table of a card, each a list of texts. */
async function rowsOf(title) {
  const rows = cardOf(title).locator("tbody tr");
  await rows.first().waitFor();
  return Promise.all((await rows.all()).map(cells));
}

/** Chooses a collection, and returns its ranges: [from, to, the partitions over time, the one of now]. */
async function rangesOf(namespace) {
  await page.getByLabel("Collection", { exact: true }).selectOption({ label: namespace });
  await page.locator(".chunks li").first().waitFor();
  return page.locator(".chunks li").evaluateAll((rows) =>
    rows.map((row) => {
      const ends = [...row.querySelectorAll(".range span")].map((end) => end.textContent);
      const turns = [...row.querySelectorAll(".turns span")].map((turn) => turn.textContent);
      return [...ends, turns, row.querySelector(".partition").textContent];
    }),
  );
}

async function fill() {
  await db.createCollection("soil", { timeseries: { timeField: "time", metaField: "bed" } });
  await admin.command({ shardCollection: "garden.soil", key: { "bed.id": 1, time: 1 } });
  await admin.command({ shardCollection: "garden.gardeners", key: { _id: "hashed" } });
  const move = (from, to, shard) => admin.command({ moveRange: "garden.soil", min: from, max: to, toShard: shard });
  const bound = (id, time) => ({ "meta.id": id, "control.min.time": time });
  await move(bound(10, new Date(START)), bound(20, new Date(START)), "p0002");
  await new Promise((resolve) => setTimeout(resolve, 1500));
  await move(bound(10, new Date(START)), bound(20, new Date(START)), "p0003");
  await db.collection("soil").insertMany(Array.from({ length: 300 }, (_, i) => ({ time: new Date(START + i * 60_000), bed: { id: i % 30 }, moisture: i })));
  await db.collection("gardeners").insertMany(Array.from({ length: 200 }, (_, i) => ({ _id: i })));
}

const checks = {
  async cluster_shows_nodes_and_partitions() {
    await page.goto(`${WEB}/`);
    await page.getByRole("navigation").getByText("Cluster").click();
    await page.getByRole("heading", { name: "Cluster", exact: true }).waitFor();
    const shards = await client.db("config").collection("shards").find().sort({ _id: 1 }).toArray();
    assert.deepEqual(shards.map(({ _id }) => _id), PARTITIONS);
    const nodes = await rowsOf("Nodes");
    assert.equal(nodes.length, 3);
    for (const [address, alive, , writes] of nodes) {
      const own = shards.filter(({ host }) => host === address).map(({ _id }) => _id);
      assert.equal(writes, own.join(""));
      assert.match(alive, /^[\d.]+ (s|min)$/);
    }
    const partitions = await rowsOf("Partitions");
    partitions.forEach(([name, host, term, since], at) => {
      assert.deepEqual([name, host], [shards[at]._id, shards[at].host]);
      assert.ok(Number(term) >= 1 && /^[\d.]+ (s|min|ms)$/.test(since), `${term}, ${since}`);
    });
    // Documents, and buckets of measurements.
    await cardOf("Partitions").getByText(/bytes|KiB/).first().waitFor();
    const counts = (await rowsOf("Partitions")).map((row) => Number(row[4]));
    assert.ok(counts.reduce((sum, count) => sum + count) > 200 && counts.every((count) => count > 0), counts.join());
  },

  async cluster_shows_ranges_over_time() {
    const soil = await rangesOf("garden.soil");
    const from = "meta.id 10, time 2024-01-01T00:00:00Z";
    const to = "meta.id 20, time 2024-01-01T00:00:00Z";
    const [first] = soil[0][2];
    assert.deepEqual(soil, [
      ["−∞", from, [first], first],
      [from, to, [first, "p0002", "p0003"], "p0003"],
      [to, "∞", [first], first],
    ]);
    const widths = await page.locator(".chunks li").nth(1).locator(".turns span").evaluateAll((all) => all.map((one) => one.getBoundingClientRect().width));
    assert.ok(widths.every((width) => width >= 4), widths.join());
    await page.getByText("Shard key meta.id, control.min.time · time series").waitFor();
    const gardeners = await rangesOf("garden.gardeners");
    assert.deepEqual(gardeners.map(([, , , owner]) => owner).sort(), PARTITIONS);
  },

  async cluster_shows_moves() {
    const moves = await rowsOf("Moves");
    const ranges = moves.filter(([, what]) => what === "range");
    assert.deepEqual(ranges.map(([, , , from, to]) => [from, to])[0], ["p0002", "p0003"]);
    assert.match(ranges[0][2], /^garden\.soil: from meta\.id 10, time/);
    // Partitions went from the first node to the others.
    assert.ok(moves.some(([, what]) => what === "partition"), JSON.stringify(moves));
  },

  async cluster_shows_the_balancer() {
    const told = cardOf("Balancer");
    await told.getByText("It is off").waitFor();
    await told.getByText("It has moved nothing so far.").waitFor();
    const config = client.db("config");
    const window = { start: "0:00", stop: "23:59" };
    await config.collection("settings").updateOne({ _id: "balancer" }, { $set: { activeWindow: window, stopped: false, mode: "full" } }, { upsert: true });
    await config.collection("settings").updateOne({ _id: "chunksize" }, { $set: { value: 1 } }, { upsert: true });
    await config.collection("collections").updateOne({ _id: "garden.gardeners" }, { $set: { noBalance: true } });
    await told.getByText("It is on · from 0:00 to 23:59 UTC · chunks of 1 MB · not for garden.gardeners").waitFor();
    // A range of about one chunk moves.
    await admin.command({ shardCollection: "garden.texts", key: { _id: 1 } });
    const text = "x".repeat(100_000);
    await db.collection("texts").insertMany(Array.from({ length: 60 }, (_, _id) => ({ _id, text })));
    await told.locator("tbody tr").first().waitFor({ timeout: BALANCED_MS });
    const [time, node, moved] = (await rowsOf("Balancer")).at(-1);
    assert.ok(/^\d{4}-/.test(time) && node !== "" && Number(moved) > 0, [time, node, moved].join());
    await admin.command({ balancerStop: 1 });
    await told.getByText("It is off").waitFor();
  },

  async cluster_has_no_buckets_to_show() {
    await page.goto(`${WEB}/#/c/garden/soil/buckets`);
    await page.getByText("Buckets are in the partitions").waitFor();
    await page.goto(`${WEB}/#/c/garden/soil/health`);
    await page.getByText("this server is a node of a cluster").first().waitFor();
    await page.getByText("Mean bucket").waitFor();
    await page.goto(`${WEB}/#/c/garden/soil/query`);
    await page.getByText("300 documents").waitFor();
    await page.goto(`${WEB}/#/cluster`);
    await page.locator(".chunks li").first().waitFor();
  },

  async cluster_is_used_by_keyboard() {
    const chosen = page.getByLabel("Collection", { exact: true });
    await chosen.focus();
    const before = await chosen.inputValue();
    await page.keyboard.press(before.includes("gardeners") ? "ArrowDown" : "ArrowUp");
    await page.waitForFunction((value) => document.querySelector("select").value !== value, before);
    // Its ranges are shown, and the focus stays while the view is read again.
    await page.waitForTimeout(3500);
    assert.equal(await page.evaluate(() => document.activeElement.tagName), "SELECT");
  },

  async cluster_fits_narrow_and_dark_screens() {
    await page.setViewportSize({ width: 400, height: 900 });
    await page.emulateMedia({ colorScheme: "dark" });
    await page.waitForTimeout(200);
    assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 400);
    const [range, turns] = await Promise.all([".range", ".turns"].map((part) => page.locator(`.chunks li ${part}`).first().boundingBox()));
    assert.ok(turns.y >= range.y + range.height - 1, "the bar is below its range");
    if (process.env.NILOMETER_PICTURES) await page.screenshot({ path: `${process.env.NILOMETER_PICTURES}/narrow.png`, fullPage: true });
    await page.setViewportSize({ width: 1280, height: 860 });
    await page.emulateMedia({ colorScheme: "light" });
    if (process.env.NILOMETER_PICTURES) await page.screenshot({ path: `${process.env.NILOMETER_PICTURES}/wide.png`, fullPage: true });
  },

  async cluster_loads_nothing_from_elsewhere() {
    assert.deepEqual([...browser.asked].filter((host) => host !== "" && !host.startsWith("127.0.0.1:")), []);
    assert.deepEqual(browser.complaints, []);
  },
};

await fill();
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok ${name}`);
  } catch (e) {
    const at = /cluster\.mjs:(\d+)/.exec(e.stack ?? "")?.[1] ?? "?";
    console.log(`not ok ${name}: ${String(e.message ?? e).replaceAll("\n", " ")} (line ${at})`);
  }
}
await browser.close();
await client.close();
process.exit();
