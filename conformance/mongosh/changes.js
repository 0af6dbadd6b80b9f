// Changes of measurements in a shell; run with `mongosh --file` after session.js.

const shell = db.getSiblingDB("conformance_mongosh_changes");
const at = (minute) => new Date(Date.UTC(2024, 0, 1, 0, minute));

function equal(got, expected) {
  const [a, b] = [EJSON.stringify(got), EJSON.stringify(expected)];
  if (a !== b) throw new Error(`got ${a}, expected ${b}`);
}

function fresh() {
  shell.dropDatabase();
  shell.createCollection("air", { timeseries: { timeField: "t", metaField: "room" } });
  const documents = Array.from({ length: 40 }, (_, i) => ({
    _id: i, t: at(i), room: i % 2 ? "hall" : "attic", co2: i, parts: [{ n: 1 }, { n: i }],
  }));
  shell.air.insertMany(documents);
}

const checks = {
  change_one() {
    fresh();
    equal(shell.air.updateOne({ _id: 3 }, { $set: { co2: 300 } }).modifiedCount, 1);
    equal(shell.air.updateOne({ _id: 3 }, { $set: { co2: 300 } }).modifiedCount, 0);
    equal(shell.air.replaceOne({ _id: 4 }, { t: at(4), room: "cellar", co2: 4 }).modifiedCount, 1);
    equal(shell.air.findOne({ _id: 4 }), { t: at(4), room: "cellar", _id: 4, co2: 4 });
    equal(shell.air.findOneAndUpdate({ _id: 5 }, { $inc: { co2: 1 } }, { returnDocument: "after" }).co2, 6);
    equal(shell.air.findAndModify({ query: { _id: 5 }, remove: true }).co2, 6);
    equal(shell.air.deleteOne({ _id: 6 }).deletedCount, 1);
    equal(shell.air.countDocuments(), 38);
  },

  change_many() {
    fresh();
    const byFilter = { "parts.n": { $gt: 30 } };
    const set = { $set: { "parts.$[big].n": 0 } };
    const updated = shell.air.updateMany(byFilter, set, { arrayFilters: [{ "big.n": { $gt: 30 } }] });
    equal([updated.matchedCount, updated.modifiedCount], [9, 9]);
    equal(shell.air.countDocuments({ "parts.n": 0 }), 10);
    shell.air.updateMany({ room: "hall" }, [{ $set: { room: { $concat: ["$room", "way"] } } }]);
    equal(shell.air.distinct("room").sort(), ["attic", "hallway"]);
    equal(shell.air.deleteMany({ room: "attic", co2: { $lt: 10 } }).deletedCount, 5);
    equal(shell.air.deleteMany({ room: "hallway" }).deletedCount, 20);
    equal(shell.air.countDocuments(), 15);
  },

  bulk_changes() {
    fresh();
    const bulk = shell.air.initializeUnorderedBulkOp();
    bulk.find({ _id: 1 }).updateOne({ $set: { co2: -1 } });
    bulk.find({ room: "attic" }).delete();
    bulk.find({ _id: 100 }).upsert().replaceOne({ t: at(100), room: "hall" });
    bulk.insert({ _id: 101, t: at(101), room: "hall" });
    const result = bulk.execute();
    equal([result.insertedCount, result.upsertedCount, result.modifiedCount, result.deletedCount], [1, 1, 1, 20]);
    equal(shell.air.countDocuments(), 22);
  },

  explain_changes() {
    fresh();
    shell.air.createIndex({ room: 1, t: 1 });
    const updates = [{ q: { room: "hall", co2: 3 }, u: { $set: { co2: 0 } }, multi: true }];
    const plan = shell.runCommand({ explain: { update: "air", updates } });
    const text = EJSON.stringify(plan);
    if (!text.includes("TS_MODIFY") || !text.includes("IXSCAN")) throw new Error(text);
    equal(shell.air.countDocuments({ co2: 3 }), 1);
    shell.dropDatabase();
  },
};

for (const [name, action] of Object.entries(checks)) {
  try {
    action();
    print(`ok ${name}`);
  } catch (e) {
    print(`not ok ${name}: ${String(e.message ?? e).replaceAll("\n", " ")}`);
  }
}
