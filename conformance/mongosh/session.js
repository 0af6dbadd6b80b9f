// Typical input in mongosh besides the tour; run with `mongosh --file`.

const shell = db.getSiblingDB("conformance_mongosh");
const START = Date.UTC(2024, 0, 1);

function equal(got, expected) {
  const [a, b] = [EJSON.stringify(got), EJSON.stringify(expected)];
  if (a !== b) throw new Error(`got ${a}, expected ${b}`);
}

function ensure(holds, message) {
  if (!holds) throw new Error(message);
}

function codeOf(action) {
  try {
    action();
  } catch (e) {
    return e.code;
  }
  throw new Error("no error");
}

const checks = {
  create_and_insert() {
    shell.dropDatabase();
    shell.createCollection("air", { timeseries: { timeField: "t", metaField: "room" } });
    const documents = Array.from({ length: 500 }, (_, i) => ({
      t: new Date(START + i * 1000), room: i % 2 ? "hall" : "attic", co2: i,
    }));
    equal(Object.keys(shell.air.insertMany(documents).insertedIds).length, 500);
  },

  iterate_a_cursor() {
    const seen = shell.air.find({}, { _id: 0, co2: 1 }).sort({ t: 1 }).batchSize(50).toArray();
    equal(seen.map((d) => d.co2), Array.from({ length: 500 }, (_, i) => i));
    equal(shell.air.find({ room: "hall" }).itcount(), 250);
    ensure(shell.air.find().limit(5).hasNext(), "nothing found");
  },

  collection_helpers() {
    equal(shell.air.countDocuments({ co2: { $lt: 10 } }), 10);
    equal(shell.air.estimatedDocumentCount(), 500);
    equal(shell.air.distinct("room").sort(), ["attic", "hall"]);
    equal(shell.air.aggregate([{ $sortByCount: "$room" }]).toArray().map((d) => d.count), [250, 250]);
    ensure(Array.isArray(shell.air.getIndexes()), "no indexes");
    equal(shell.getCollectionInfos({ name: "air" })[0].type, "timeseries");
  },

  statistics() {
    equal(shell.stats().ok, 1);
    const stats = shell.air.stats();
    equal(stats.ok, 1);
    ensure(stats.timeseries.bucketCount >= 2, "no buckets in the statistics");
    ensure(shell.air.dataSize() > 0, "no size");
  },

  server_information() {
    equal(db.hello().isWritablePrimary, true);
    ensure(db.version().startsWith("8.0"), db.version());
    equal(db.serverStatus().ok, 1);
    equal(db.hostInfo().ok, 1);
    equal(db.adminCommand({ connectionStatus: 1 }).ok, 1);
    ensure(db.adminCommand({ listDatabases: 1 }).databases.length > 0, "no databases");
    equal(db.adminCommand({ getParameter: 1, featureCompatibilityVersion: 1 }).featureCompatibilityVersion.version, "8.0");
    ensure(db.getSiblingDB("admin").aggregate([{ $currentOp: {} }]).toArray().length >= 0, "no operations");
  },

  explain() {
    const plan = shell.air.find({ room: "hall" }).explain();
    equal(plan.ok, 1);
  },

  views() {
    shell.createView("halls", "air", [{ $match: { room: "hall" } }, { $project: { co2: 1, _id: 0 } }]);
    equal(shell.halls.countDocuments(), 250);
    shell.halls.drop();
  },

  errors() {
    equal(codeOf(() => shell.runCommand({ noSuchCommand: 1 })), 59);
    equal(codeOf(() => shell.air.aggregate([{ $noSuchStage: {} }]).toArray()), 40324);
    equal(codeOf(() => shell.air.find({ co2: { $noSuchOperator: 1 } }).toArray()), 2);
    equal(codeOf(() => shell.air.insertOne({ room: "hall" })), 2);
  },

  drop() {
    equal(shell.air.drop(), true);
    equal(shell.dropDatabase().ok, 1);
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
