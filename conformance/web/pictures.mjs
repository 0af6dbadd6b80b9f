// Makes the pictures of the README: docs/images/demo.svg from what `nilometer demo` prints, and docs/images/web_page.png from
// the web page over the demo's database. `cargo xtask pictures` builds the server and the browser's driver and runs this file.
//
// Reads NILOMETER_BINARY. Both pictures show real output; only paths and the time of loading are left out.

import { spawn, spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { freePort, openBrowser } from "./browser.mjs";

const BINARY = process.env.NILOMETER_BINARY;
const IMAGES = join(dirname(fileURLToPath(import.meta.url)), "../../docs/images");
const BYTES_MAX = 300_000;

/** Metrics of a character cell of the terminal picture, in pixels. */
const CELL = { width: 8.4, height: 20, size: 14 };
const MARGIN = 20;
const TITLE_BAR = 36;

/** Lines of the demo's output from `first` up to the line before `last`. */
function section(lines, first, last) {
  const begin = lines.findIndex((line) => line.startsWith(first));
  const end = lines.findIndex((line, at) => at > begin && line.startsWith(last));
  if (begin < 0 || end < 0) throw new Error(`the demo prints neither "${first}" nor "${last}"`);
  return lines.slice(begin, end);
}

const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

/** One line of text; a run of full blocks becomes a rectangle, so that bars look the same in every font. */
function drawnLine(line, row, kind) {
  const y = TITLE_BAR + MARGIN + row * CELL.height;
  const bar = /█+/.exec(line);
  const text = bar ? line.slice(0, bar.index).trimEnd() : line;
  const parts = [];
  if (text.trim()) {
    const x = MARGIN + text.search(/\S/) * CELL.width;
    const words = text.trim();
    const width = (words.length * CELL.width).toFixed(1);
    parts.push(`<text class="${kind}" x="${x.toFixed(1)}" y="${y}" textLength="${width}" lengthAdjust="spacing">${escaped(words)}</text>`);
  }
  if (bar) {
    const x = MARGIN + bar.index * CELL.width;
    parts.push(`<rect class="bar" x="${x.toFixed(1)}" y="${y - 13}" width="${(bar[0].length * CELL.width).toFixed(1)}" height="16" rx="2"/>`);
  }
  return parts.join("");
}

/** A window of a terminal that shows the command and its output. */
function terminal(command, lines) {
  const columns = Math.max(...lines.map((line) => line.length));
  const width = Math.ceil(columns * CELL.width + 2 * MARGIN);
  const height = TITLE_BAR + 2 * MARGIN + (lines.length + 1) * CELL.height;
  const buttons = ["#e0655b", "#e3b341", "#57a65b"].map((color, at) => `<circle cx="${22 + at * 20}" cy="18" r="6" fill="${color}"/>`);
  const isTitle = (line) => /^\S.*\.$/.test(line) && !/^\d/.test(line) && !line.startsWith("(");
  const rows = lines.map((line, row) => drawnLine(line, row + 1, isTitle(line) ? "title" : "text"));
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" aria-label="The output of nilometer demo">
<style>
text { font: ${CELL.size}px ui-monospace, "SFMono-Regular", Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #c9d6d9; white-space: pre; }
.title { fill: #f2d9a0; }
.prompt { fill: #74c0a8; }
.bar { fill: #2f94a8; }
</style>
<rect width="${width}" height="${height}" rx="8" fill="#10202a"/>
<rect width="${width}" height="${TITLE_BAR}" rx="8" fill="#1b313d"/>
${buttons.join("")}
${drawnLine(`$ ${command}`, 0, "prompt")}
${rows.filter(Boolean).join("\n")}
</svg>
`;
}

function write(name, content) {
  const path = join(IMAGES, name);
  mkdirSync(IMAGES, { recursive: true });
  writeFileSync(path, content);
  const { size } = statSync(path);
  console.log(`docs/images/${name}: ${size} bytes`);
  if (size > BYTES_MAX) throw new Error(`${name} has more than ${BYTES_MAX} bytes`);
}

/** Loads the demo and draws its answers. */
function demo(folder) {
  const ended = spawnSync(BINARY, ["demo"], { cwd: folder, encoding: "utf8" });
  if (ended.status !== 0) throw new Error(`the demo failed: ${ended.stderr}`);
  const lines = ended.stdout.split("\n").map((line) => line.trimEnd());
  const sections = [
    section(lines, "2325 measurements", "The flow"),
    section(lines, "The flow", "CO2"),
    section(lines, "CO2", "The same by month"),
  ].flat();
  while (sections.at(-1) === "") sections.pop();
  write("demo.svg", terminal("cargo run --release -- demo", ["", ...sections]));
}

/** The carbon dioxide of each week and its mean over a year: a query with a window, answered as a chart of two lines. */
const PIPELINE = `[
  {"$match": {"series": "mauna loa", "time": {"$gte": {"$date": "1975-01-01T00:00:00Z"}}}},
  {"$setWindowFields": {"sortBy": {"time": 1}, "output": {
    "mean of a year": {"$avg": "$value", "window": {"range": [-6, 6], "unit": "month"}}}}},
  {"$project": {"_id": 0, "time": 1, "CO2 (ppm)": "$value", "mean of a year": 1}}
]`;

/** Photographs the query view of the web page. */
async function webPage(folder) {
  const [port, http] = [await freePort(), await freePort()];
  const line = ["serve", "--quiet", "--dbpath", join(folder, "nilometer-data"), "--port", port, "--httpPort", http, "--webPage"];
  const server = spawn(BINARY, line.map(String), { stdio: "ignore" });
  const ended = new Promise((resolve) => server.once("exit", resolve));
  const browser = await openBrowser({ deviceScaleFactor: 1.5 });
  try {
    const page = await browser.open();
    await page.setViewportSize({ width: 1240, height: 900 });
    for (let tries = 0; ; tries += 1) {
      const opened = await page.goto(`http://127.0.0.1:${http}/#/c/demo/measurements/query`).catch((error) => error);
      if (!(opened instanceof Error)) break;
      if (tries > 100) throw opened;
      await page.waitForTimeout(100);
    }
    await page.getByRole("tab", { name: "Aggregate", exact: true }).click();
    await page.getByLabel("Pipeline").fill(PIPELINE);
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await page.waitForFunction(() => document.querySelectorAll(".result path.line").length === 2);
    await page.mouse.move(0, 0);
    await page.evaluate(() => document.activeElement?.blur());
    await page.waitForTimeout(300);
    const height = await page.evaluate(() => Math.ceil(document.querySelector(".result").getBoundingClientRect().bottom + window.scrollY + 24));
    await page.setViewportSize({ width: 1240, height });
    await page.waitForTimeout(300);
    write("web_page.png", await page.screenshot());
  } finally {
    await browser.close();
    server.kill("SIGTERM");
    await ended;
  }
}

const folder = mkdtempSync(join(tmpdir(), "nilometer-pictures-"));
try {
  demo(folder);
  await webPage(folder);
} finally {
  rmSync(folder, { recursive: true, force: true });
}
