// What a Node program does with a time-series database, through the official driver.
//
// Reads NILOMETER_URI; prints one line per check, `ok NAME` or `not ok NAME: reason`. The names are
// the same for every client and are listed in xtask/src/conformance/checks.rs.

import assert from "node:assert/strict";
import {
  BSONRegExp, Binary, Code, Decimal128, Double, Int32, Long, MaxKey, MinKey, MongoClient, ObjectId,
  Timestamp,
} from "mongodb";

import { has } from "./parts.mjs";
import { tour } from "./tour.mjs";

const URI = process.env.NILOMETER_URI;
const START = Date.UTC(2024, 0, 1);
const MINUTE = 60_000;
const SENSORS = 4;
const SINGLE = 10;
const BULK = 1000;
const TOTAL = SINGLE + BULK;
const OPTIONS = { timeField: "time", metaField: "sensor", granularity: "seconds" };

const client = new MongoClient(URI, { serverSelectionTimeoutMS: 10_000 });
const db = client.db("conformance_node");
const readings = db.collection("readings");

const at = (i) => new Date(START + i * MINUTE);
const measurement = (i) => ({ time: at(i), sensor: `s${i % SENSORS}`, value: new Double(i), n: i });
const range = (from, to) => Array.from({ length: to - from }, (_, i) => from + i);

/** Returns the code of the error that `action` must raise. */
async function codeOf(action) {
  try {
    await action();
  } catch (e) {
    return e.code;
  }
  throw new Error("no error");
}

async function defineIndexes() {
  const indexed = db.collection("indexed");
  assert.equal(await indexed.createIndex({ a: 1, b: -1 }), "a_1_b_-1");
  await indexed.insertMany(range(0, 30).map((i) => ({ _id: i, a: i % 3, b: i })));
  const made = await indexed.createIndexes([
    { key: { b: 1 }, name: "one_of_a_kind", unique: true },
    { key: { d: 1 }, expireAfterSeconds: 3600 },
  ]);
  assert.deepEqual(made, ["one_of_a_kind", "d_1"]);
  const names = (await indexed.indexes()).map((index) => index.name);
  assert.deepEqual(names, ["_id_", "a_1_b_-1", "one_of_a_kind", "d_1"]);
  assert.equal(await codeOf(() => indexed.insertOne({ _id: 100, b: 5 })), 11000);
  assert.equal(await codeOf(() => indexed.createIndex({ d: 1 }, { name: "other" })), 85);
  assert.equal(await indexed.createIndex({ c: "text" }), "c_text");
  await indexed.insertOne({ _id: 200, b: 200, c: "running cats" });
  const score = { $meta: "textScore" };
  const texts = indexed.find({ $text: { $search: "run" } }).project({ _id: 1, score }).sort({ score });
  assert.deepEqual(await texts.toArray(), [{ _id: 200, score: 0.75 }]);
  await indexed.dropIndex("a_1_b_-1");
  assert.equal(await codeOf(() => indexed.dropIndex("absent")), 27);
  assert.equal(await indexed.indexExists("d_1"), true);
  await indexed.dropIndexes();
  assert.equal((await indexed.listIndexes().toArray()).length, 1);
  await indexed.drop();
  assert.equal(await readings.createIndex({ value: 1 }), "value_1");
  if (has("buckets")) {
    const buckets = await db.collection("system.buckets.readings").indexes();
    const found = buckets.find((index) => index.name === "value_1");
    assert.deepEqual(found.key, { "control.min.value": 1, "control.max.value": 1 });
  }
  await readings.dropIndex("value_1");
}

async function rename() {
  const first = db.collection("first");
  await first.insertOne({ _id: 1 });
  const second = await first.rename("second");
  assert.equal(await second.countDocuments(), 1);
  const count = await readings.countDocuments();
  const other = await readings.rename("other");
  assert.equal(await other.countDocuments(), count);
  await other.rename("readings");
  assert.equal(await readings.countDocuments(), count);
  await second.drop();
}

async function validators() {
  const $jsonSchema = { required: ["name"], properties: { name: { bsonType: "string" } } };
  const people = await db.createCollection("people", { validator: { $jsonSchema } });
  await people.insertOne({ _id: 1, name: "Ann" });
  const error = await people.insertOne({ _id: 2, name: 5 }).then(
    () => assert.fail("no error"),
    (e) => e,
  );
  assert.equal(error.code, 121);
  assert.equal(error.errInfo.failingDocumentId, 2);
  const [rule] = error.errInfo.details.schemaRulesNotSatisfied;
  assert.equal(rule.propertiesNotSatisfied[0].propertyName, "name");
  const unset = { $unset: { name: 1 } };
  assert.equal(await codeOf(() => people.updateOne({ _id: 1 }, unset)), 121);
  assert.equal(await codeOf(() => people.findOneAndUpdate({ _id: 1 }, unset)), 121);
  await people.insertOne({ _id: 2 }, { bypassDocumentValidation: true });
  assert.equal((await people.options()).validator.$jsonSchema.required[0], "name");
  await people.drop();
}

async function followALog() {
  const log = await db.createCollection("log", { capped: true, size: 4096, max: 3 });
  await log.insertMany(range(0, 5).map((_id) => ({ _id })));
  assert.equal(await log.isCapped(), true);
  assert.deepEqual((await log.find().toArray()).map((d) => d._id), [2, 3, 4]);
  if (!has("tailable_cursors")) {
    await log.drop();
    return;
  }
  const cursor = log.find({}, { tailable: true, awaitData: true, maxAwaitTimeMS: 5000 });
  const next = async () => (await cursor.next())._id;
  assert.deepEqual([await next(), await next(), await next()], [2, 3, 4]);
  const coming = next();
  await log.insertOne({ _id: 5 });
  assert.equal(await coming, 5);
  await log.insertMany(range(6, 10).map((_id) => ({ _id })));
  assert.equal(await codeOf(() => cursor.next()), 136);
  await cursor.close();
  await log.drop();
}

async function clustered() {
  const clusteredIndex = { key: { _id: 1 }, unique: true, name: "by id" };
  const orders = await db.createCollection("orders", { clusteredIndex });
  await orders.insertMany([3, 1, 2].map((_id) => ({ _id })));
  assert.deepEqual((await orders.find().toArray()).map((d) => d._id), [1, 2, 3]);
  assert.equal((await orders.indexes())[0].clustered, true);
  const plan = await orders.find({ _id: { $gt: 1 } }).explain();
  // A router has the plans of its partitions in it.
  assert.match(JSON.stringify(plan.queryPlanner.winningPlan), /"CLUSTERED_IXSCAN"/);
  await orders.drop();
}

async function watchByAStream() {
  const watching = new MongoClient(URI, { serverMonitoringMode: "stream", heartbeatFrequencyMS: 500 });
  let streamed = 0;
  const failed = [];
  const three = new Promise((resolve) => {
    watching.on("serverHeartbeatSucceeded", (event) => {
      streamed += event.awaited ? 1 : 0;
      if (streamed >= 3) resolve();
    });
  });
  watching.on("serverHeartbeatFailed", (event) => failed.push(event.failure));
  await watching.connect();
  const late = new Promise((_, reject) => {
    setTimeout(() => reject(new Error(`${streamed} answers were streamed`)), 20_000).unref();
  });
  await Promise.race([three, late]);
  assert.deepEqual(failed, []);
  await watching.close();
}

const checks = {
  async connect_and_ping() {
    await client.connect();
    assert.equal((await client.db("admin").command({ ping: 1 })).ok, 1);
    const hello = await client.db("admin").command({ hello: 1 });
    assert.equal(hello.maxBsonObjectSize, 16 * 1024 * 1024);
    assert.equal((await client.db("admin").admin().serverInfo()).versionArray[0], 8);
    await watchByAStream();
  },

  async create_time_series() {
    await db.dropDatabase();
    await db.createCollection("readings", { timeseries: OPTIONS });
    const [found] = await db.listCollections({ name: "readings" }).toArray();
    assert.equal(found.type, "timeseries");
    assert.equal(found.options.timeseries.metaField, "sensor");
  },

  async insert_one_by_one() {
    for (const i of range(0, SINGLE)) {
      assert.ok((await readings.insertOne(measurement(i))).acknowledged);
    }
    assert.equal(await readings.countDocuments(), SINGLE);
  },

  async insert_in_bulk() {
    const result = await readings.insertMany(range(SINGLE, TOTAL).map(measurement));
    assert.equal(result.insertedCount, BULK);
    assert.equal(await readings.countDocuments(), TOTAL);
  },

  async find_filter_sort_limit_projection() {
    const found = await readings
      .find({ sensor: "s1", value: { $gte: 100, $lt: 900 }, time: { $gt: at(0) } })
      .project({ _id: 0, n: 1, time: 1 })
      .sort({ time: -1 })
      .skip(1)
      .limit(3)
      .toArray();
    assert.deepEqual(found, [893, 889, 885].map((n) => ({ time: at(n), n })));
    assert.equal((await readings.findOne({ n: { $in: [7, 8] } }, { sort: { n: 1 } })).n, 7);
  },

  async aggregate_by_hour() {
    const got = await readings
      .aggregate([
        { $match: { time: { $lt: at(12 * 60) } } },
        {
          $group: {
            _id: { hour: { $dateTrunc: { date: "$time", unit: "hour" } }, sensor: "$sensor" },
            mean: { $avg: "$value" },
            count: { $sum: 1 },
          },
        },
        { $sort: { "_id.hour": 1, "_id.sensor": 1 } },
      ])
      .toArray();
    const expected = range(0, 12).flatMap((hour) =>
      range(0, SENSORS).map((s) => {
        const values = range(hour * 60, hour * 60 + 60).filter((i) => i % SENSORS === s);
        const mean = values.reduce((a, b) => a + b) / values.length;
        return { _id: { hour: at(hour * 60), sensor: `s${s}` }, mean, count: values.length };
      }),
    );
    assert.deepEqual(got, expected);
  },

  async cursor_over_batches() {
    const found = await readings.find({}, { batchSize: 64 }).sort({ time: 1 }).toArray();
    assert.deepEqual(found.map((d) => d.n), range(0, TOTAL));
    const stages = [{ $project: { n: 1 } }, { $sort: { n: -1 } }];
    const sorted = await readings.aggregate(stages, { batchSize: 64 }).toArray();
    assert.deepEqual(sorted.map((d) => d.n), range(0, TOTAL).reverse());
  },

  async cursor_closed_early() {
    const cursor = readings.find({}, { batchSize: 10 });
    await cursor.next();
    const id = cursor.id;
    assert.ok(id && !id.isZero(), "the server kept no cursor");
    await cursor.close();
    assert.equal(await codeOf(() => db.command({ getMore: id, collection: "readings" })), 43);
  },

  async count_and_distinct() {
    assert.equal(await readings.countDocuments({ sensor: "s2" }), Math.ceil((TOTAL - 2) / SENSORS));
    assert.equal(await readings.estimatedDocumentCount(), TOTAL);
    const names = await readings.distinct("sensor");
    assert.deepEqual(names.sort(), range(0, SENSORS).map((i) => `s${i}`));
  },

  async list_collections_and_databases() {
    const { databases } = await client.db().admin().listDatabases();
    assert.ok(databases.some((d) => d.name === db.databaseName));
    const names = (await db.listCollections({}, { nameOnly: true }).toArray()).map((c) => c.name);
    assert.deepEqual(names.filter((n) => !n.startsWith("system.")), ["readings"]);
  },

  async read_buckets() {
    if (!has("buckets")) return;
    const buckets = await db.collection("system.buckets.readings").find().toArray();
    assert.ok(buckets.length >= SENSORS, `${buckets.length} buckets`);
    const series = [...new Set(buckets.map((b) => b.meta))].sort();
    assert.deepEqual(series, range(0, SENSORS).map((i) => `s${i}`));
    assert.ok(buckets.every((b) => [2, 3].includes(b.control.version)));
    assert.equal(buckets.reduce((sum, b) => sum + b.control.count, 0), TOTAL);
  },

  async every_type_comes_back() {
    await db.createCollection("types", { timeseries: { timeField: "t" } });
    const collection = db.collection("types");
    const values = [
      new Double(1.5), new Double(Infinity), "text", { a: { b: [new Int32(1), "x"] } },
      [new Int32(1), [new Int32(2)], { c: null }], new Binary(Buffer.from([0, 1])),
      new ObjectId("0123456789abcdef01234567"), true, null, new BSONRegExp("^a", "i"),
      new Int32(2147483647), Long.fromString("1099511627776"), new Timestamp({ t: 5, i: 6 }),
      Decimal128.fromString("1.10"), new MinKey(), new MaxKey(), new Code("f()"),
      new Date(Date.UTC(1901, 0, 1)),
    ];
    const early = Date.UTC(1871, 0, 1);
    const documents = values.map((v, i) => ({ _id: new Int32(i), t: new Date(early + i * MINUTE), v }));
    await collection.insertMany(documents);
    const keep = { promoteValues: false, bsonRegExp: true };
    const got = await collection.find({}, keep).sort({ _id: 1 }).toArray();
    assert.deepEqual(got.map((d) => d.v), values);
    assert.deepEqual(got.map((d) => d.t), documents.map((d) => d.t));
    await collection.drop();
  },

  async ordinary_collection() {
    const plain = db.collection("plain");
    await plain.insertMany(range(0, 6).map((i) => ({ _id: i, tags: ["a", "b"].slice(0, i % 3) })));
    const found = await plain.find({ tags: "b" }).sort({ _id: 1 }).toArray();
    assert.deepEqual(found.map((d) => d._id), [2, 5]);
    assert.equal(await codeOf(() => plain.insertOne({ _id: 3 })), 11000);
    await plain.drop();
    await defineIndexes();
    await rename();
    await validators();
    await followALog();
    await clustered();
  },

  async unacknowledged_write() {
    await readings.insertOne(measurement(TOTAL), { writeConcern: { w: 0 } });
    // Another connection of the pool may be faster than the write.
    for (let tries = 0; tries < 100; tries += 1) {
      if ((await readings.countDocuments()) === TOTAL + 1) return;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    throw new Error("the measurement never arrived");
  },

  async compressed_messages() {
    const other = new MongoClient(URI, { compressors: ["zlib"] });
    try {
      const found = other.db(db.databaseName).collection("readings").find({ n: { $lt: TOTAL } });
      assert.equal((await found.toArray()).length, TOTAL);
    } finally {
      await other.close();
    }
  },

  async ordered_and_unordered_errors() {
    await db.createCollection("mixed", { timeseries: OPTIONS });
    const mixed = db.collection("mixed");
    for (const [ordered, inserted] of [[true, 1], [false, 2]]) {
      const batch = [measurement(0), { sensor: "x" }, measurement(1)];
      const error = await mixed.insertMany(batch, { ordered }).then(
        () => assert.fail("no error"),
        (e) => e,
      );
      assert.equal(error.insertedCount, inserted);
      assert.deepEqual([error.writeErrors].flat().map((w) => w.index), [1]);
    }
    assert.equal(await mixed.countDocuments(), 3);
    await mixed.drop();
  },

  async error_create_with_other_options() {
    const other = { ...OPTIONS, granularity: "hours" };
    const create = () => db.createCollection("readings", { timeseries: other });
    assert.equal(await codeOf(create), 48);
  },

  async error_no_date() {
    assert.equal(await codeOf(() => readings.insertOne({ sensor: "s0", value: 1 })), 2);
    assert.equal(await codeOf(() => readings.insertOne({ time: "today", sensor: "s0" })), 2);
  },

  async error_unknown_command() {
    assert.equal(await codeOf(() => db.command({ noSuchCommand: 1 })), 59);
  },

  async error_unknown_stage() {
    assert.equal(await codeOf(() => readings.aggregate([{ $noSuchStage: {} }]).toArray()), 40324);
  },

  async drop() {
    await readings.drop();
    const names = (await db.listCollections().toArray()).map((c) => c.name);
    assert.ok(!names.includes("readings") && !names.includes("system.buckets.readings"));
    await db.dropDatabase();
    const { databases } = await client.db().admin().listDatabases();
    assert.ok(!databases.some((d) => d.name === db.databaseName));
  },
};

async function report(name, check) {
  try {
    await check();
    console.log(`ok ${name}`);
  } catch (e) {
    const at = /(?:check|tour)\.mjs:(\d+)/.exec(e.stack ?? "")?.[1] ?? "?";
    console.log(`not ok ${name}: ${String(e.message ?? e).replaceAll("\n", " ")} (line ${at})`);
  }
}

for (const [name, check] of Object.entries(checks)) await report(name, check);

const gauge = { username: "gauge", password: "p@ss: weir, Ω" };

/** Runs an action with a client that logs in like this, then closes its connections. */
async function loggedIn(auth, options, action) {
  const own = new MongoClient(URI, { auth, authSource: "logins_node", ...options });
  try {
    return await action(own);
  } finally {
    await own.close();
  }
}

await report("log_in_by_scram", async () => {
  const user = { createUser: gauge.username, pwd: gauge.password, roles: ["readWrite"] };
  await client.db("logins_node").command(user);
  for (const authMechanism of ["SCRAM-SHA-1", "SCRAM-SHA-256", "DEFAULT"]) {
    await loggedIn(gauge, { authMechanism }, async (own) => {
      const { authInfo } = await own.db("admin").command({ connectionStatus: 1 });
      assert.deepEqual(authInfo.authenticatedUsers, [{ user: "gauge", db: "logins_node" }]);
      await own.db("logins_node").collection("levels").insertOne({ level: 7 });
    });
  }
});

await report("wrong_password", async () => {
  const wrong = { ...gauge, password: "weir" };
  const ask = (own) => own.db("logins_node").collection("levels").findOne();
  assert.equal(await codeOf(() => loggedIn(wrong, {}, ask)), 18);
  await client.db("logins_node").command({ dropUser: gauge.username });
  await client.db("logins_node").dropDatabase();
});

const toured = client.db("tour_node");
await toured.dropDatabase();
for (const [name, check] of Object.entries(tour(toured))) {
  await report(name, async () => {
    for (const kind of ["series", "plain"]) await check(toured.collection(kind));
  });
}
await toured.dropDatabase();
await client.close();
