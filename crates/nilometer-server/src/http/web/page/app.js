// The page: the user, the list of collections, and the view of the current address.
//
//   #/                     the server
//   #/queries              queries by time
//   #/import               import of a file, live demo data
//   #/cluster              the cluster, if the server is a node of one
//   #/c/DB/COLLECTION/TAB  a collection: query, buckets, about and other tabs

import { batch, call, command, onLoginNeeded } from "./api.js";
import { clusterView, isCluster } from "./cluster_view.js";
import { collectionView } from "./collection_view.js";
import { empty, failure, field, h, notice } from "./dom.js";
import { importView } from "./import_view.js";
import { sampler, serverView } from "./server_view.js";
import { topQueriesView } from "./top_queries.js";

/** Maximum collections listed for one database. */
const LISTED_MAX = 200;

/** Number of collections from which a filter is shown. */
const FILTER_FROM = 12;

/** Views beside those of collections: the address, the mark and the title in the list, and how they are opened. */
const VIEWS = [
  { path: "", mark: "◷", title: "Server", open: serverView },
  { path: "queries", mark: "⌕", title: "Queries", open: () => topQueriesView(address) },
  { path: "cluster", mark: "⬡", title: "Cluster", open: clusterView, isThere: () => session?.isCluster },
  { path: "import", mark: "⇥", title: "Import", open: () => importView(address) },
];

/** Interval of reloading the list. */
const LIST_EVERY_MS = 15_000;

const main = document.getElementById("main");
const tree = document.getElementById("tree");
const menu = document.getElementById("menu");
const who = document.getElementById("who");
const where = document.getElementById("where");
const logout = document.getElementById("logout");

let view = null;
let session = null;
let listing = "";
let opening = 0;

function show(element, close) {
  view?.close?.();
  view = { close };
  main.replaceChildren(element);
}

/** Returns the address of a collection. */
function address(db, name, tab) {
  const parts = ["c", db, name, tab].filter(Boolean).map(encodeURIComponent);
  return `#/${parts.join("/")}`;
}

function place() {
  const [kind, db, name, tab] = location.hash.replace(/^#\//, "").split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return kind === "c" && db && name ? { db, name, tab } : null;
}

/** Returns the views that this server has. */
function views() {
  return VIEWS.filter(({ isThere }) => isThere?.() ?? true);
}

/** Returns the view of the address if it is none of a collection. */
function otherView() {
  const path = location.hash.replace(/^#\//, "");
  return views().find((one) => one.path === path) ?? VIEWS[0];
}

async function open() {
  opening += 1;
  const mine = opening;
  const at = place();
  closeMenu();
  markTree();
  if (!at) {
    const other = otherView();
    const { element, close } = other.open();
    document.title = other.path === "" ? "Nilometer" : `${other.title} · Nilometer`;
    show(element, close);
    return;
  }
  document.title = `${at.db}.${at.name} · Nilometer`;
  try {
    const go = (tab) => history.replaceState(null, "", address(at.db, at.name, tab));
    const opened = await collectionView(at.db, at.name, at.tab, go);
    if (mine === opening) show(opened.element, opened.close);
    else opened.close();
  } catch (error) {
    if (mine === opening && error.status !== 401) show(h("div", { class: "view" }, failure(error)));
  }
}

// The list.

/** All databases and what is in them: [{db, collections: [{name, type}]}]. */
async function readTree() {
  const { reply } = await command("admin", { listDatabases: 1, nameOnly: true });
  const names = (reply.databases ?? []).map((one) => one.name);
  const list = names.map(async (db) => {
    const asked = { listCollections: 1, nameOnly: true, authorizedCollections: true };
    const { documents } = await batch(db, asked).catch((error) => {
      // Databases that the user may not list are omitted.
      if (error.code === 13) return { documents: [] };
      throw error;
    });
    const collections = documents.map(({ name, type }) => ({ name, type })).filter(({ name }) => !name.startsWith("system."));
    collections.sort((a, b) => (a.name < b.name ? -1 : 1));
    return { db, collections };
  });
  return Promise.all(list);
}

async function refreshTree() {
  try {
    const found = await readTree();
    const text = JSON.stringify(found);
    if (text !== listing) {
      listing = text;
      drawTree(found);
    }
  } catch (error) {
    listing = "";
    if (error.status !== 401) tree.replaceChildren(failure(error));
  }
}

const MARKS = { timeseries: "≋", view: "◇", collection: "▤" };
const MARK_WORDS = { timeseries: "time series", view: "view", collection: "collection" };

function drawTree(found) {
  const full = found.filter(({ collections }) => collections.length > 0);
  const count = full.reduce((sum, { collections }) => sum + collections.length, 0);
  const lists = h("div");
  const draw = (filter) => {
    const groups = full.map(({ db, collections }) => {
      const fitting = collections.filter(({ name }) => `${db}.${name}`.toLowerCase().includes(filter));
      if (fitting.length === 0) return null;
      const items = fitting.slice(0, LISTED_MAX).map(({ name, type }) =>
        h(
          "li",
          null,
          h(
            "a",
            { href: address(db, name), "data-ns": `${db}.${name}` },
            h("span", { class: "mark", "aria-hidden": "true" }, MARKS[type] ?? "▤"),
            h("span", { class: "name" }, name),
            h("span", { class: "sr" }, `, ${MARK_WORDS[type] ?? type}`),
          ),
        ),
      );
      const rest = fitting.length > LISTED_MAX ? h("li", { class: "quiet" }, `and ${fitting.length - LISTED_MAX} more: filter them`) : null;
      return h("section", null, h("h2", null, db), h("ul", null, items, rest));
    });
    lists.replaceChildren(...groups.filter(Boolean));
    markTree();
  };
  const parts = views().map(({ path, mark, title }) =>
    h("a", { class: "home", href: `#/${path}`, "data-ns": path }, h("span", { class: "mark", "aria-hidden": "true" }, mark), h("span", null, title)),
  );
  if (count >= FILTER_FROM) {
    const input = h("input", { type: "search", placeholder: "Filter collections", "aria-label": "Filter collections" });
    input.addEventListener("input", () => draw(input.value.toLowerCase()));
    parts.push(input);
  }
  parts.push(lists);
  if (count === 0) parts.push(h("p", { class: "quiet none" }, "No collections yet."));
  tree.replaceChildren(...parts);
  draw("");
}

function markTree() {
  const at = place();
  const here = at ? `${at.db}.${at.name}` : otherView().path;
  for (const link of tree.querySelectorAll("a")) {
    if (link.dataset.ns === here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function closeMenu() {
  menu.setAttribute("aria-expanded", "false");
  tree.classList.remove("open");
}

menu.addEventListener("click", () => {
  const opened = tree.classList.toggle("open");
  menu.setAttribute("aria-expanded", opened);
});

// The user.

function loginView(error) {
  const user = h("input", { name: "user", autocomplete: "username", required: true, spellcheck: "false", autocapitalize: "off" });
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const db = h("input", { name: "db", value: "admin", spellcheck: "false", autocapitalize: "off" });
  const problem = h("div", null, error ? failure(error) : null);
  const button = h("button", { type: "submit", class: "main" }, "Log in");
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    problem.replaceChildren();
    try {
      await call("/api/login", { user: user.value, password: password.value, db: db.value || "admin" });
      await begin();
    } catch (wrong) {
      problem.replaceChildren(failure(wrong));
      password.value = "";
      password.focus();
    } finally {
      button.disabled = false;
    }
  };
  const closed = notice(
    "warn",
    "Passwords are not accepted without TLS from another machine.",
    "Start the server with --tlsMode and open this page with https, or use a tunnel: ssh -L 28080:localhost:28080 HOST.",
  );
  const form = h(
    "form",
    { class: "card login", onsubmit: submit },
    h("h1", null, "Log in"),
    field("User", user),
    field("Password", password),
    field("Database of the user", db),
    problem,
    button,
    h(
      "details",
      null,
      h("summary", null, "There is no user yet"),
      h("p", null, "The first one is created on the server's machine with mongosh:"),
      h("pre", null, 'use admin\ndb.createUser({user: "root",\n  pwd: passwordPrompt(), roles: ["root"]})'),
    ),
  );
  return h("div", { class: "view narrow" }, session.takesPassword ? form : closed);
}

function leave() {
  sampler.want(false);
  clearInterval(leave.timer);
  listing = "";
  tree.hidden = true;
  tree.replaceChildren();
  menu.hidden = true;
  logout.hidden = true;
  who.textContent = "";
}

function askForLogin(error) {
  opening += 1;
  leave();
  show(loginView(error));
  main.querySelector("input")?.focus();
}

async function begin() {
  session = await call("/api/session");
  where.textContent = location.host;
  where.title = `Version ${session.version}`;
  if (session.needsLogin && !session.user) return askForLogin();
  who.textContent = session.user ? `${session.user}@${session.db}` : "no login needed";
  who.title = session.user ? "" : "This server runs without --auth: every client may do everything.";
  logout.hidden = !session.user;
  tree.hidden = false;
  menu.hidden = false;
  sampler.want(true);
  session.isCluster = await isCluster().catch(() => false);
  await refreshTree();
  clearInterval(leave.timer);
  leave.timer = setInterval(() => document.hidden || refreshTree(), LIST_EVERY_MS);
  return open();
}

logout.addEventListener("click", async () => {
  await call("/api/logout").catch(() => {});
  askForLogin();
});

onLoginNeeded(() => {
  if (session?.user) askForLogin(new Error("Your session has ended. Log in again."));
  if (session) session.user = null;
});

window.addEventListener("hashchange", open);

begin().catch((error) => show(h("div", { class: "view narrow" }, empty("The page cannot start", failure(error)))));
