// The drivers' unified tests of change streams, transactions, sessions, and retryable reads and writes, run by the Node driver
// against a replica set of one. The files come with the source distribution of pymongo: the packages of the Node driver have none.
//
// Each test is a check, named after its folder, file and description. A folder is a check as well: it passes if one of its tests ran.

import { execFileSync } from "node:child_process";
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { BSON, GridFSBucket, MongoClient } from "mongodb";
import { match } from "./matching.mjs";
import { Unsupported, bulkResult, clientBulkResult, options, perform } from "./operations.mjs";

const { EJSON } = BSON;

const URI = process.env.NILOMETER_URI;

const FOLDERS = {
  change_streams: "change_streams/unified",
  retryable_reads: "retryable_reads/unified",
  retryable_writes: "retryable_writes/unified",
  sessions: "sessions",
  transactions: "transactions/unified",
  convenient_transactions: "transactions-convenient-api/unified",
};

// Commands that belong to no test.
const IGNORED_COMMANDS = ["configureFailPoint", "hello", "saslContinue", "saslStart"];

// A test that runs longer has failed.
const TEST_MS_MAX = 15_000;

// Tests that select a secondary, of which a set of one has none, and that the driver does not pass anywhere: it ends a transaction
// on a closed connection without `abortTransaction`, sends a write concern that it should refuse, and reports the ids of documents
// that it has not inserted.
const LEFT_OUT = [
  "First insertOne is never committed",
  "callback succeeds after multiple connection errors",
  "client bulkWrite with writeConcern in a transaction causes a transaction error",
  "readPreference inherited from client",
  "run command with secondary read preference in client option and primary read preference in transaction options",
];

const REASON_CHARS_MAX = 200;

class Skipped extends Error {}

// Returns the folder of the tests.
function unpacked() {
  const archive = readdirSync("target").find((name) => /^pymongo-.*\.tar\.gz$/.test(name));
  const folder = join("target", archive.replace(".tar.gz", ""), "test");
  if (!existsSync(folder)) execFileSync("tar", ["xzf", archive], { cwd: "target" });
  return folder;
}

function isAtLeast(version, other) {
  const [one, two] = [version, other].map((text) => text.split(".").map(Number));
  const at = one.findIndex((part, index) => part !== (two[index] ?? 0));
  return at === -1 || one[at] > (two[at] ?? 0);
}

// Copies an event: the driver goes on changing its command.
function copied({ command, reply, commandName, databaseName }) {
  const copy = (document) => document && BSON.deserialize(BSON.serialize(document, { ignoreUndefined: true }));
  return { event: { command: copy(command), reply: copy(reply), commandName, databaseName } };
}

// The server as `runOnRequirements` describe it.
class Server {
  static async connect() {
    const server = new Server();
    server.client = await new MongoClient(URI).connect();
    const admin = server.client.db("admin");
    server.version = (await admin.command({ buildInfo: 1 })).version;
    server.parameters = await admin.command({ getParameter: "*" });
    return server;
  }

  meets(requirements) {
    if (!requirements) return true;
    return requirements.some((one) => {
      const { minServerVersion, maxServerVersion, topologies, auth, csfle, serverParameters } = one;
      if (minServerVersion && !isAtLeast(this.version, minServerVersion)) return false;
      if (maxServerVersion && !isAtLeast(maxServerVersion, this.version)) return false;
      if (topologies && !topologies.includes("replicaset")) return false;
      if (auth || csfle || one.serverless === "require") return false;
      const has = ([name, value]) => EJSON.stringify(this.parameters[name]) === EJSON.stringify(value);
      return Object.entries(serverParameters ?? {}).every(has);
    });
  }
}

// The clients, sessions and so on of one test.
class Entities {
  constructor() {
    this.all = new Map();
    this.lsids = new Map();
    this.events = new Map();
    this.failPoints = [];
  }

  get(id) {
    if (!this.all.has(id)) throw new Skipped(`there is no entity ${id}`);
    return this.all.get(id).value;
  }

  kind(id) {
    this.get(id);
    return this.all.get(id).kind;
  }

  set(id, kind, value) {
    this.all.set(id, { kind, value });
  }

  async create(description) {
    const [kind, given] = Object.entries(description)[0];
    switch (kind) {
      case "client":
        return this.set(given.id, kind, await this.client(given));
      case "database":
        return this.set(given.id, kind, this.get(given.client).db(given.databaseName, options(given.databaseOptions)));
      case "collection": {
        const database = this.get(given.database);
        return this.set(given.id, kind, database.collection(given.collectionName, options(given.collectionOptions)));
      }
      case "session": {
        const { defaultTransactionOptions, ...rest } = given.sessionOptions ?? {};
        const defaults = defaultTransactionOptions && { defaultTransactionOptions: options(defaultTransactionOptions) };
        const session = this.get(given.client).startSession({ ...rest, ...defaults });
        this.lsids.set(given.id, session.id);
        return this.set(given.id, kind, session);
      }
      case "bucket":
        return this.set(given.id, kind, new GridFSBucket(this.get(given.database), given.bucketOptions));
      default:
        throw new Skipped(`entities of the kind ${kind}`);
    }
  }

  async client(given) {
    const uri = new URL(URI);
    for (const [name, value] of Object.entries(given.uriOptions ?? {})) uri.searchParams.set(name, value);
    const serverApi = given.serverApi && { serverApi: given.serverApi };
    const client = new MongoClient(uri.href, { monitorCommands: true, ...serverApi });
    const ignored = [...IGNORED_COMMANDS, ...(given.ignoreCommandMonitoringEvents ?? [])];
    const seen = [];
    this.events.set(given.id, seen);
    for (const kind of ["commandStarted", "commandSucceeded", "commandFailed"]) {
      if (!given.observeEvents?.includes(`${kind}Event`)) continue;
      client.on(kind, (event) => ignored.includes(event.commandName) || seen.push({ kind: `${kind}Event`, ...copied(event) }));
    }
    return client.connect();
  }

  // Returns the arguments with the sessions that they name.
  arguments(given = {}) {
    const out = options(given);
    if (given.session) out.session = this.get(given.session);
    return out;
  }

  async close() {
    for (const [client, name] of this.failPoints) {
      await client.db("admin").command({ configureFailPoint: name, mode: "off" });
    }
    for (const { kind, value } of [...this.all.values()].reverse()) {
      if (kind === "session") await value.endSession();
      if (["client", "stream"].includes(kind)) await value.close();
    }
  }
}

// Operations on the runner itself.
const RUNNER = {
  async failPoint(entities, server, { client, failPoint }) {
    await entities.get(client).db("admin").command(failPoint);
    entities.failPoints.push([server.client, failPoint.configureFailPoint]);
  },
  async createEntities(entities, _, given) {
    for (const entity of given.entities) await entities.create(entity);
  },
  async assertSessionUnpinned() {},
  async assertSessionTransactionState(entities, _, { session, state }) {
    const states = { none: "NO_TRANSACTION", starting: "STARTING_TRANSACTION", in_progress: "TRANSACTION_IN_PROGRESS" };
    Object.assign(states, { committed: "TRANSACTION_COMMITTED", aborted: "TRANSACTION_ABORTED" });
    match(states[state], entities.get(session).transaction.state, entities);
  },
  async assertSameLsidOnLastTwoCommands(entities, _, { client }) {
    const [one, two] = lastLsids(entities, client);
    match(one, two, entities);
  },
  async assertDifferentLsidOnLastTwoCommands(entities, _, { client }) {
    const [one, two] = lastLsids(entities, client);
    if (one === two) throw new Error("two commands had the same lsid");
  },
  async assertSessionDirty(entities, _, { session }) {
    match(true, entities.get(session).serverSession.isDirty, entities);
  },
  async assertSessionNotDirty(entities, _, { session }) {
    match(false, entities.get(session).serverSession.isDirty, entities);
  },
  assertCollectionExists: (entities, server, given) => assertCollection(server, given, true),
  assertCollectionNotExists: (entities, server, given) => assertCollection(server, given, false),
  assertIndexExists: (entities, server, given) => assertIndex(server, given, true),
  assertIndexNotExists: (entities, server, given) => assertIndex(server, given, false),
};

function lastLsids(entities, client) {
  const started = entities.events.get(client).filter((one) => one.kind === "commandStartedEvent");
  return started.slice(-2).map((one) => EJSON.stringify(one.event.command.lsid));
}

async function assertCollection(server, { databaseName, collectionName }, exists) {
  const found = await server.client.db(databaseName).listCollections({ name: collectionName }).toArray();
  if (found.length > 0 !== exists) throw new Error(`collection ${collectionName}: exists is not ${exists}`);
}

async function assertIndex(server, { databaseName, collectionName, indexName }, exists) {
  const indexes = server.client.db(databaseName).collection(collectionName).listIndexes();
  const found = await indexes.toArray().catch(() => []);
  if (found.some((index) => index.name === indexName) !== exists) throw new Error(`index ${indexName}: exists is not ${exists}`);
}

function checkError(expected, error, entities) {
  const { isClientError, errorContains, errorCode, errorCodeName, errorLabelsContain, errorLabelsOmit } = expected;
  if (error instanceof Unsupported || error instanceof Skipped) throw error;
  const fromServer = error.name.startsWith("MongoServerError") || /Bulk/.test(error.name) || error.code !== undefined;
  if (isClientError !== undefined && isClientError === (fromServer && !/Network/.test(error.name))) {
    throw new Error(`isClientError is not ${isClientError}: ${error}`);
  }
  if (errorContains && !error.message.toLowerCase().includes(errorContains.toLowerCase())) {
    throw new Error(`'${errorContains}' is not in '${error.message}'`);
  }
  // That of `MongoClient.bulkWrite` has the error of the server as its cause.
  const places = [error, error.errorResponse, error.cause, error.cause?.errorResponse, error.result?.writeConcernError];
  const first = (name) => places.find((place) => place?.[name] !== undefined)?.[name];
  if (errorCode !== undefined) match(errorCode, first("code"), entities, "code");
  if (errorCodeName !== undefined) match(errorCodeName, first("codeName"), entities, "codeName");
  const has = (label) => places.some((place) => Boolean(place?.hasErrorLabel?.(label)));
  for (const label of errorLabelsContain ?? []) match(true, has(label), entities, label);
  for (const label of errorLabelsOmit ?? []) match(false, has(label), entities, label);
  if (expected.expectResult) {
    const partial = error.partialResult ? clientBulkResult(error.partialResult) : bulkResult(error.result ?? error);
    match(expected.expectResult, partial, entities);
  }
}

async function run(operation, entities, server) {
  const { object, name } = operation;
  if (object === "testRunner") {
    if (!RUNNER[name]) throw new Skipped(`${name} of the runner`);
    return RUNNER[name](entities, server, operation.arguments ?? {});
  }
  const given = entities.arguments(operation.arguments);
  if (name === "withTransaction") {
    const { callback, ...rest } = given;
    return entities.get(object).withTransaction(async () => {
      for (const inner of callback) await step(inner, entities, server, true);
    }, rest);
  }
  return perform(entities.kind(object), entities.get(object), name, given);
}

// Runs an operation and checks its result. `rethrows` lets an error leave a callback of `withTransaction`.
async function step(operation, entities, server, rethrows = false) {
  const { expectError, expectResult, saveResultAsEntity, ignoreResultAndError } = operation;
  let result;
  try {
    result = await run(operation, entities, server);
  } catch (error) {
    if (expectError) {
      checkError(expectError, error, entities);
      if (rethrows) throw error;
      return;
    }
    if (ignoreResultAndError && !(error instanceof Skipped) && !(error instanceof Unsupported)) return;
    throw error;
  }
  if (expectError) throw new Error(`${operation.name} has no error`);
  if (expectResult !== undefined) match(expectResult, result, entities, operation.name);
  if (saveResultAsEntity) entities.set(saveResultAsEntity, "stream", result);
}

function checkEvents(expected, entities) {
  for (const { client, eventType, events, ignoreExtraEvents } of expected) {
    if (eventType && eventType !== "command") throw new Skipped(`events of the type ${eventType}`);
    const seen = entities.events.get(client);
    if (ignoreExtraEvents ? seen.length < events.length : seen.length !== events.length) {
      const names = seen.map((one) => `${one.kind} ${one.event.commandName}`);
      throw new Error(`expected ${events.length} events of ${client}, found ${names.join(", ")}`);
    }
    events.forEach((one, at) => {
      const [kind, fields] = Object.entries(one)[0];
      match(kind, seen[at].kind, entities, `event ${at}`);
      const { command, reply, commandName, databaseName } = fields;
      const { event } = seen[at];
      if (command) match(command, event.command, entities, `event ${at}`);
      if (reply) match(reply, event.reply, entities, `event ${at}`);
      if (commandName) match(commandName, event.commandName, entities, `event ${at}`);
      if (databaseName) match(databaseName, event.databaseName, entities, `event ${at}`);
    });
  }
}

async function prepare(server, initialData) {
  await server.client.db("admin").command({ killAllSessions: [] });
  for (const { databaseName, collectionName, documents, createOptions } of initialData ?? []) {
    const database = server.client.db(databaseName);
    await database.dropCollection(collectionName);
    await database.createCollection(collectionName, createOptions);
    if (documents.length > 0) await database.collection(collectionName).insertMany(documents);
  }
}

async function runTest(server, file, test) {
  if (LEFT_OUT.includes(test.description)) throw new Skipped("left out");
  const reason = test.skipReason ?? (server.meets(file.runOnRequirements) && server.meets(test.runOnRequirements) ? null : "requirements");
  if (reason) throw new Skipped(reason);
  await prepare(server, file.initialData);
  const entities = new Entities();
  try {
    for (const entity of file.createEntities ?? []) await entities.create(entity);
    for (const operation of test.operations) await step(operation, entities, server);
    checkEvents(test.expectEvents ?? [], entities);
    for (const { databaseName, collectionName, documents } of test.outcome ?? []) {
      const found = await server.client.db(databaseName).collection(collectionName).find({}, { sort: { _id: 1 } }).toArray();
      match(documents, found, entities, "outcome", false);
    }
  } finally {
    await entities.close();
  }
}

function limited(promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`took more than ${TEST_MS_MAX} ms`)), TEST_MS_MAX);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

async function main() {
  const server = await Server.connect();
  const tests = unpacked();
  for (const [name, folder] of Object.entries(FOLDERS)) {
    let count = 0;
    for (const fileName of readdirSync(join(tests, folder)).sort()) {
      const text = readFileSync(join(tests, folder, fileName), "utf8");
      for (const at of JSON.parse(text).tests.keys()) {
        // Parsed for each test: the driver changes options that it is given.
        const file = EJSON.parse(text);
        const test = file.tests[at];
        const check = `${name}::${fileName.replace(".json", "")}::${test.description}`.replaceAll(": ", ":");
        try {
          await limited(runTest(server, file, test));
          console.log(`ok ${check}`);
        } catch (error) {
          if (error instanceof Skipped || error instanceof Unsupported) {
            if (process.env.VERBOSE) console.log(`# skipped ${check}: ${error.message}`);
            continue;
          }
          console.log(`not ok ${check}: ${String(error.message ?? error).replaceAll(/\s+/g, " ").slice(0, REASON_CHARS_MAX)}`);
        }
        count += 1;
      }
    }
    console.log(count > 0 ? `ok ${name}` : `not ok ${name}: no test ran`);
  }
  await server.client.close();
}

await main();
