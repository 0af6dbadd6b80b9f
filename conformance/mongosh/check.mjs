// mongosh against the server: the tour of README.md, line by line, and typical input.
//
// Reads NILOMETER_URI; prints `ok NAME` or `not ok NAME: reason`. The tour is in the blocks marked
// "```js tour" in README.md: a line `db> command` is typed, the lines below it (to the next prompt or
// blank line) are what mongosh must print. `…` stands for any text within a line.

import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const HERE = dirname(fileURLToPath(import.meta.url));
const README = join(HERE, "..", "..", "README.md");
const MONGOSH = join(HERE, "node_modules", "mongosh", "bin", "mongosh.js");
const PROMPT = /^(?:rs \[primary\] )?[a-z]+> /;

const home = mkdtempSync(join(tmpdir(), "mongosh-"));

/** Runs mongosh. Returns the output of both streams together. */
function mongosh(arguments_, input) {
  const child = spawn(process.execPath, [MONGOSH, process.env.NILOMETER_URI, ...arguments_], {
    env: { ...process.env, HOME: home, NO_COLOR: "1" },
    stdio: ["pipe", "pipe", "pipe"],
  });
  let out = "";
  child.stdout.on("data", (data) => (out += data));
  child.stderr.on("data", (data) => (out += data));
  child.stdin.end(input);
  return new Promise((resolve) => child.on("close", (code) => resolve({ out, code })));
}

/** Returns the steps of the tour: input and expected output. */
function tour() {
  const blocks = [...readFileSync(README, "utf8").matchAll(/^```js tour\n([^]*?)^```/gm)];
  if (blocks.length === 0) throw new Error("README.md has no block marked `js tour`");
  const steps = [];
  for (const line of blocks.map((block) => block[1]).join("").split("\n")) {
    if (PROMPT.test(line)) steps.push({ typed: line.replace(PROMPT, ""), expected: [] });
    else if (line.trim() !== "") steps.at(-1).expected.push(line.trimEnd());
  }
  return steps;
}

const mark = (i) => `@@ ${i} @@`;

/** Returns the text between two marks, without blank lines. */
function section(out, i) {
  const from = out.indexOf(mark(i));
  const to = out.indexOf(mark(i + 1));
  if (from < 0) return null;
  const text = out.slice(from + mark(i).length, to < 0 ? undefined : to);
  return text.replaceAll("\r", "").split("\n").map((l) => l.trimEnd()).filter((l) => l !== "");
}

function matches(got, expected) {
  const escape = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const pattern = (line) => new RegExp(`^${line.split("…").map(escape).join(".*")}$`);
  return got.length === expected.length && expected.every((line, i) => pattern(line).test(got[i]));
}

async function runTour() {
  const steps = tour();
  const lines = ['prompt = ""', `print("${mark(0)}")`];
  steps.forEach(({ typed }, i) => lines.push(typed, `print("${mark(i + 1)}")`));
  const { out } = await mongosh(["--quiet", "--norc"], `${lines.join("\n")}\n`);
  const wrong = [];
  steps.forEach(({ typed, expected }, i) => {
    const got = section(out, i);
    if (!got) wrong.push(`\`${typed}\` was never reached`);
    else if (!matches(got, expected)) {
      wrong.push(`\`${typed}\` printed\n${got.join("\n")}\n--- instead of\n${expected.join("\n")}\n`);
    }
  });
  return wrong;
}

async function check(name, action) {
  let wrong;
  try {
    wrong = await action();
  } catch (e) {
    wrong = [e.stack];
  }
  if (wrong.length === 0) return console.log(`ok ${name}`);
  console.log(`not ok ${name}: ${wrong[0].split("\n")[0]}`);
  for (const text of wrong) console.log(text.replaceAll(/^/gm, "    "));
}

await check("tour", runTour);

await check("greeting", async () => {
  const { out, code } = await mongosh(["--norc"], "exit\n");
  const wrong = [];
  if (code !== 0) wrong.push(`exit status ${code}`);
  if (!/Using MongoDB:\s+8\.0/.test(out)) wrong.push("no version in the greeting");
  if (/non-genuine/i.test(out)) wrong.push("a warning in the greeting");
  return wrong.length === 0 ? [] : [...wrong, out];
});

const LOGIN = ["-u", "gauge", "--authenticationDatabase", "logins_mongosh", "--quiet", "--norc"];

await check("log_in_by_scram", async () => {
  const made = `db.getSiblingDB("logins_mongosh").createUser({user: "gauge", pwd: "weir, Ω", roles: ["readWrite"]}).ok`;
  const first = await mongosh(["--quiet", "--norc", "--eval", made], "");
  const asked = "db.runCommand({connectionStatus: 1}).authInfo.authenticatedUsers[0].user";
  const { out } = await mongosh([...LOGIN, "-p", "weir, Ω", "--eval", asked], "");
  return first.out.trim() === "1" && out.trim() === "gauge" ? [] : [first.out, out];
});

await check("wrong_password", async () => {
  const { out, code } = await mongosh([...LOGIN, "-p", "weir", "--eval", "1"], "");
  const dropped = `db.getSiblingDB("logins_mongosh").dropUser("gauge").ok`;
  const last = await mongosh(["--quiet", "--norc", "--eval", dropped], "");
  const right = code !== 0 && /Authentication failed/.test(out) && last.out.trim() === "1";
  return right ? [] : [out, last.out];
});

// These print their own lines.
for (const file of ["session.js", "tour.js", "changes.js"]) {
  const { out, code } = await mongosh(["--quiet", "--norc", "--file", join(HERE, file)], "");
  process.stdout.write(out);
  if (code !== 0) process.exitCode = 1;
}
rmSync(home, { recursive: true, force: true });
