// Serves the page's files from the checkout, and passes all other requests to a running server: a change of a file is seen after
// a reload, without a build.
//
//     node conformance/web/serve_page.mjs http://127.0.0.1:28080 28081
//
// The arguments are the address of the server's web page and the port to listen on, on this machine only. Files are sent with the
// headers of the server's own answers, so that the content security policy holds here, too.

import { readFile } from "node:fs/promises";
import { createServer, request } from "node:http";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const FOLDER = join(dirname(fileURLToPath(import.meta.url)), "../../crates/nilometer-server/src/http/web/page");
const KINDS = { html: "text/html", css: "text/css", js: "text/javascript", svg: "image/svg+xml" };

const [server, port] = process.argv.slice(2);
if (!port) {
  console.error("serve_page.mjs ADDRESS_OF_SERVER PORT");
  process.exit(2);
}
const { hostname, port: serverPort } = new URL(server);

/** Headers of the server's files that matter to a browser. */
async function policy() {
  const { headers } = await fetch(server);
  const kept = ["content-security-policy", "cross-origin-opener-policy", "referrer-policy", "x-frame-options"];
  return Object.fromEntries(kept.map((name) => [name, headers.get(name)]).filter(([, value]) => value !== null));
}

const headers = await policy();

createServer(async (asked, answer) => {
  const path = new URL(asked.url, "http://page").pathname;
  const name = path === "/" ? "index.html" : path.slice(1);
  const kind = KINDS[name.split(".").pop()];
  if (asked.method === "GET" && kind && /^[a-z_]+\.[a-z]+$/.test(name)) {
    try {
      const text = await readFile(join(FOLDER, name));
      answer.writeHead(200, { ...headers, "content-type": `${kind}; charset=utf-8`, "cache-control": "no-store" });
      answer.end(text);
      return;
    } catch (error) {
      if (error.code !== "ENOENT") throw error;
    }
  }
  // The host is passed on: the server compares it with the origin.
  const passed = request({ hostname, port: serverPort, method: asked.method, path: asked.url, headers: asked.headers }, (reply) => {
    answer.writeHead(reply.statusCode, reply.headers);
    reply.pipe(answer);
  });
  passed.on("error", () => answer.destroy());
  answer.on("close", () => passed.destroy());
  asked.pipe(passed);
}).listen(Number(port), "127.0.0.1", () => console.log(`http://127.0.0.1:${port}/`));
