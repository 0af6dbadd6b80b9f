// The operations of the unified test format, by the Node driver.

import { ReadPreference } from "mongodb";

// The test cannot run: the driver has no such operation.
export class Unsupported extends Error {}

// Turns concerns and preferences, as tests give them, into those of the driver.
export function options(given = {}) {
  const out = { ...given };
  if (given.readPreference) {
    const { mode, tagSets, maxStalenessSeconds } = given.readPreference;
    const name = mode[0].toLowerCase() + mode.slice(1);
    out.readPreference = new ReadPreference(name, tagSets, maxStalenessSeconds && { maxStalenessSeconds });
  }
  return out;
}

async function bytesOf(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return Buffer.concat(parts);
}

// A stream whose `aggregate` has run, as drivers with eager streams return it.
async function watch(target, { pipeline, ...rest }) {
  const stream = target.watch(pipeline, rest);
  stream.on("error", () => {});
  await stream.cursor.cursorInit();
  return stream;
}

// Models of `MongoClient.bulkWrite`, and its result with objects for maps.
async function clientBulkWrite(client, { models, ...rest }) {
  const flat = models.map((model) => {
    const [name, fields] = Object.entries(model)[0];
    return { name, ...fields };
  });
  return clientBulkResult(await client.bulkWrite(flat, rest));
}

export function clientBulkResult(result) {
  const out = { ...result };
  for (const name of ["insertResults", "updateResults", "deleteResults"]) {
    if (result?.[name]) out[name] = Object.fromEntries(result[name]);
  }
  for (const update of Object.values(out.updateResults ?? {})) delete update.didUpsert;
  return out;
}

export function bulkResult(result) {
  const names = ["insertedCount", "matchedCount", "modifiedCount", "deletedCount", "upsertedCount", "insertedIds", "upsertedIds"];
  return Object.fromEntries(names.map((name) => [name, result[name]]));
}

async function runCommand(database, { command, commandName, ...rest }) {
  const name = Object.keys(command).find((key) => key === commandName);
  const { [name]: first, ...others } = command;
  const { readConcern, writeConcern, ...runOptions } = rest;
  const concerns = { ...(readConcern && { readConcern }), ...(writeConcern && { writeConcern }) };
  return database.command({ [name]: first, ...others, ...concerns }, runOptions);
}

const ON_COLLECTION = {
  aggregate: (c, { pipeline, ...rest }) => c.aggregate(pipeline, rest).toArray(),
  bulkWrite: async (c, { requests, ...rest }) => bulkResult(await c.bulkWrite(requests, rest)),
  count: (c, { filter, ...rest }) => c.count(filter, rest),
  countDocuments: (c, { filter, ...rest }) => c.countDocuments(filter, rest),
  createIndex: (c, { keys, ...rest }) => c.createIndex(keys, rest),
  deleteMany: (c, { filter, ...rest }) => c.deleteMany(filter, rest),
  deleteOne: (c, { filter, ...rest }) => c.deleteOne(filter, rest),
  distinct: (c, { fieldName, filter, ...rest }) => c.distinct(fieldName, filter, rest),
  dropIndex: (c, { name, ...rest }) => c.dropIndex(name, rest),
  estimatedDocumentCount: (c, rest) => c.estimatedDocumentCount(rest),
  find: (c, { filter, ...rest }) => c.find(filter, rest).toArray(),
  findOne: (c, { filter, ...rest }) => c.findOne(filter, rest),
  findOneAndDelete: (c, { filter, ...rest }) => c.findOneAndDelete(filter, rest),
  findOneAndReplace: (c, { filter, replacement, ...rest }) => c.findOneAndReplace(filter, replacement, returning(rest)),
  findOneAndUpdate: (c, { filter, update, ...rest }) => c.findOneAndUpdate(filter, update, returning(rest)),
  insertMany: (c, { documents, ...rest }) => c.insertMany(documents, rest),
  insertOne: (c, { document, ...rest }) => c.insertOne(document, rest),
  listIndexes: (c, rest) => c.listIndexes(rest).toArray(),
  listIndexNames: async (c, rest) => (await c.listIndexes(rest).toArray()).map((index) => index.name),
  rename: (c, { to, ...rest }) => c.rename(to, rest),
  replaceOne: (c, { filter, replacement, ...rest }) => c.replaceOne(filter, replacement, rest),
  updateMany: (c, { filter, update, ...rest }) => c.updateMany(filter, update, rest),
  updateOne: (c, { filter, update, ...rest }) => c.updateOne(filter, update, rest),
};

function returning({ returnDocument, ...rest }) {
  return returnDocument ? { ...rest, returnDocument: returnDocument.toLowerCase() } : rest;
}

const ON_DATABASE = {
  aggregate: (d, { pipeline, ...rest }) => d.aggregate(pipeline, rest).toArray(),
  createCollection: (d, { collection, ...rest }) => d.createCollection(collection, rest),
  dropCollection: (d, { collection, ...rest }) => d.dropCollection(collection, rest),
  listCollectionNames: async (d, { filter, ...rest }) => (await d.listCollections(filter, { ...rest, nameOnly: true }).toArray()).map((c) => c.name),
  listCollections: (d, { filter, ...rest }) => d.listCollections(filter, rest).toArray(),
  runCommand,
};

const ON_CLIENT = {
  clientBulkWrite,
  listDatabaseNames: async (client, rest) => (await client.db().admin().listDatabases({ ...rest, nameOnly: true })).databases.map((d) => d.name),
  listDatabases: async (client, rest) => (await client.db().admin().listDatabases(rest)).databases,
};

const ON_SESSION = {
  abortTransaction: (session) => session.abortTransaction(),
  commitTransaction: (session) => session.commitTransaction(),
  endSession: (session) => session.endSession(),
  startTransaction: (session, rest) => session.startTransaction(rest),
};

const ON_BUCKET = {
  download: (bucket, { id }) => bytesOf(bucket.openDownloadStream(id)),
  downloadByName: (bucket, { filename, ...rest }) => bytesOf(bucket.openDownloadStreamByName(filename, rest)),
};

const ON_STREAM = {
  close: (stream) => stream.close(),
  iterateUntilDocumentOrError: (stream) => stream.next(),
};

const TABLES = {
  bucket: ON_BUCKET,
  client: ON_CLIENT,
  collection: ON_COLLECTION,
  database: ON_DATABASE,
  session: ON_SESSION,
  stream: ON_STREAM,
};

// Runs an operation on an entity of this kind.
export async function perform(kind, entity, name, given) {
  if (name === "createChangeStream") return watch(entity, given);
  const run = TABLES[kind]?.[name];
  if (!run) throw new Unsupported(`${name} on a ${kind}`);
  return run(entity, given);
}
