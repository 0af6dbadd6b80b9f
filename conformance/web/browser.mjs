// Headless Chromium with a temporary profile, and a test server where one is needed.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

/** The first is required in containers, the others prevent connections to other hosts. */
const ARGUMENTS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

/** Timeout for a page to show something. */
const PATIENCE_MS = 15_000;

function folder(name) {
  const path = mkdtempSync(join(tmpdir(), `nilometer-web-${name}-`));
  return { path, remove: () => rmSync(path, { recursive: true, force: true }) };
}

/** Opens a browser. `complaints` collects script errors and violations of the page's policy. */
export async function openBrowser(options = {}) {
  const profile = folder("profile");
  const context = await chromium.launchPersistentContext(profile.path, {
    executablePath: process.env.NILOMETER_CHROMIUM ?? "/usr/bin/chromium",
    headless: true,
    args: ARGUMENTS,
    viewport: { width: 1280, height: 860 },
    colorScheme: "light",
    ...options,
  });
  context.setDefaultTimeout(PATIENCE_MS);
  const complaints = [];
  const asked = new Set();
  const open = async () => {
    const page = await context.newPage();
    page.on("pageerror", (error) => complaints.push(error.message));
    page.on("console", (message) => {
      // The browser also reports a refused login, which is expected and tested.
      const expected = /status of 40[13]/.test(message.text());
      if (["error", "warning"].includes(message.type()) && !expected) complaints.push(message.text());
    });
    page.on("request", (request) => asked.add(new URL(request.url()).host));
    return page;
  };
  const close = async () => {
    await context.close();
    profile.remove();
  };
  return { open, close, complaints, asked };
}

/** A port on which nothing listens at this moment. */
export async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Starts a server with `--auth` and its web page. */
export async function startSecured() {
  const data = folder("data");
  const [port, http] = [await freePort(), await freePort()];
  const line = ["serve", "--auth", "--quiet", "--dbpath", data.path, "--port", port, "--httpPort", http, "--webPage"];
  const child = spawn(process.env.NILOMETER_BINARY, line.map(String), { stdio: "ignore" });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  const stop = async () => {
    child.kill("SIGTERM");
    assert.equal(await ended, 0, "the server ends cleanly");
    data.remove();
  };
  return { uri: `mongodb://127.0.0.1:${port}/`, web: `http://127.0.0.1:${http}`, stop };
}
