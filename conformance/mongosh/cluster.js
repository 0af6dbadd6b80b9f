// What people type about a cluster; run with `mongosh --file` against one of three nodes with four partitions.
//
// `crates/nilometer-cluster/tests/it/shell.rs` starts the nodes and lists the names of the checks.

const shell = db.getSiblingDB("cluster_mongosh");
const START = Date.UTC(2024, 0, 1);

function equal(got, expected) {
  const [a, b] = [EJSON.stringify(got), EJSON.stringify(expected)];
  if (a !== b) throw new Error(`got ${a}, expected ${b}`);
}

function shows(value, ...texts) {
  const shown = EJSON.stringify(value);
  for (const text of texts) if (!shown.includes(text)) throw new Error(`no ${text} in ${shown}`);
}

function codeOf(action) {
  try {
    action();
  } catch (e) {
    return e.code;
  }
  throw new Error("no error");
}

const measurement = (i) => ({ t: new Date(START + i * 60_000), bed: { id: i % 20 }, moisture: i % 100 });

const checks = {
  cluster_is_shown() {
    equal(db.hello().msg, "isdbgrid");
    equal(db.adminCommand({ listShards: 1 }).shards.map((s) => s._id).sort(), ["p0001", "p0002", "p0003", "p0004"]);
    shows(sh.status(), "p0001", "p0004", "shardingVersion");
  },

  collections_are_sharded() {
    shell.dropDatabase();
    equal(sh.enableSharding("cluster_mongosh").ok, 1);
    shell.createCollection("soil", { timeseries: { timeField: "t", metaField: "bed" } });
    equal(sh.shardCollection("cluster_mongosh.soil", { "bed.id": "hashed" }).ok, 1);
    equal(sh.shardCollection("cluster_mongosh.gardeners", { _id: "hashed" }).ok, 1);
    equal(sh.shardCollection("cluster_mongosh.ranges", { k: 1 }).ok, 1);
    shell.soil.insertMany(Array.from({ length: 1000 }, (_, i) => measurement(i)));
    shell.gardeners.insertMany(Array.from({ length: 200 }, (_, i) => ({ _id: i, name: `n${i}` })));
    equal(shell.soil.countDocuments(), 1000);
    equal(shell.gardeners.findOne({ _id: 7 }).name, "n7");
    shows(sh.status(), "cluster_mongosh.system.buckets.soil", "cluster_mongosh.gardeners", "hashed");
    equal(codeOf(() => sh.shardCollection("cluster_mongosh.soil", { moisture: 1 })), 72);
  },

  distributions_are_shown() {
    for (const name of ["soil", "gardeners"]) {
      const told = shell[name].getShardDistribution();
      shows(told, "p0001", "p0004");
      if (JSON.stringify(told).match(/NaN|null/)) throw new Error(`no number: ${JSON.stringify(told)}`);
      const stats = shell[name].stats();
      equal([stats.sharded, Object.keys(stats.shards).length], [true, 4]);
    }
    const distribution = db.getSiblingDB("admin").aggregate([{ $shardedDataDistribution: {} }]).toArray();
    const of = distribution.find((d) => d.ns === "cluster_mongosh.gardeners");
    equal(of.shards.reduce((sum, shard) => sum + Number(shard.numOwnedDocuments), 0), 200);
    equal(shell.soil.validate().valid, true);
    shows(shell.soil.find({ "bed.id": 3 }).explain(), "shards");
  },

  ranges_are_split_and_moved() {
    equal(sh.splitAt("cluster_mongosh.ranges", { k: 100 }).ok, 1);
    equal(sh.moveChunk("cluster_mongosh.ranges", { k: 150 }, "p0003").ok, 1);
    equal(sh.moveRange("cluster_mongosh.ranges", "p0002", { k: 50 }, { k: 60 }).ok, 1);
    shell.ranges.insertMany([{ k: 1 }, { k: 55 }, { k: 150 }, {}]);
    equal(shell.ranges.find().itcount(), 4);
    // With its document, and back.
    for (const partition of ["p0001", "p0003"]) {
      equal(sh.moveChunk("cluster_mongosh.ranges", { k: 150 }, partition).ok, 1);
      equal(shell.ranges.find().itcount(), 4);
    }
    equal(codeOf(() => sh.moveChunk("cluster_mongosh.ranges", { k: 1 }, "p0009")), 70);
    const chunks = db.getSiblingDB("config").chunks.find({ shard: "p0003" }).toArray();
    shows(chunks, '"k":100');
    // The status counts what has moved.
    const moved = sh.status().value.balancer["Migration Results for the last 24 hours"];
    equal(Object.values(moved), ["Success"]);
    if (!(Number(Object.keys(moved)[0]) >= 3)) throw new Error(`moves: ${JSON.stringify(moved)}`);
    // A chunk at its median, and back into one.
    shell.ranges.insertMany(Array.from({ length: 10 }, (_, i) => ({ k: 200 + i })));
    equal(sh.splitFind("cluster_mongosh.ranges", { k: 205 }).ok, 1);
    equal(db.adminCommand({ mergeAllChunksOnShard: "cluster_mongosh.ranges", shard: "p0003" }).ok, 1);
    equal(shell.ranges.deleteMany({ k: { $gte: 200 } }).deletedCount, 10);
    equal(codeOf(() => sh.splitFind("cluster_mongosh.soil", { "bed.id": 3 })), 115);
  },

  indexes_of_shard_keys_stay() {
    equal(shell.fresh.createIndex({ x: 1 }), "x_1");
    const created = shell.runCommand({ createIndexes: "fresher", indexes: [{ key: { x: 1 }, name: "x_1" }] });
    equal(created.createdCollectionAutomatically, true);
    const again = shell.runCommand({ createIndexes: "fresher", indexes: [{ key: { y: 1 }, name: "y_1" }] });
    equal(again.createdCollectionAutomatically, false);
    equal(codeOf(() => shell.ranges.dropIndex("k_1")), 20);
    equal(codeOf(() => shell.ranges.dropIndex({ k: 1 })), 20);
    shell.ranges.createIndexes([{ k: 1, x: 1 }, { y: 1 }]);
    equal(shell.ranges.dropIndex("k_1").ok, 1);
    equal(codeOf(() => shell.ranges.dropIndex("k_1_x_1")), 20);
    equal(shell.ranges.dropIndexes().ok, 1);
    equal(shell.ranges.getIndexes().map((index) => index.name).sort(), ["_id_", "k_1_x_1"]);
    // That of a hashed key may go, as in MongoDB.
    equal(shell.soil.dropIndex("bed.id_hashed").ok, 1);
  },

  versions_and_shards_are_told() {
    equal(shell.ranges.getShardVersion().ok, 1);
    equal(codeOf(() => shell.nothing.getShardVersion()), 118);
    equal(sh.listShards().length, 4);
    equal(sh.isConfigShardEnabled(), { enabled: false });
    shows(sh.getShardedDataDistribution().toArray(), "cluster_mongosh.ranges", "cluster_mongosh.system.buckets.soil");
    equal(db.adminCommand({ flushRouterConfig: 1 }).flushed, true);
    equal(sh.balancerCollectionStatus("cluster_mongosh.ranges").balancerCompliant, true);
    equal(sh.balancerCollectionStatus("cluster_mongosh.soil").balancerCompliant, true);
  },

  balancer_is_switched() {
    equal(sh.getBalancerState(), false);
    equal(sh.startBalancer().ok, 1);
    equal(sh.getBalancerState(), true);
    equal(sh.isBalancerRunning().mode, "full");
    equal(sh.stopBalancer().ok, 1);
    equal(sh.getBalancerState(), false);
    equal(sh.setBalancerState(false).ok, 1);
    equal(sh.isAutoMergerEnabled(), false);
    equal(sh.startAutoMerger().matchedCount, 1);
    equal(sh.isAutoMergerEnabled(), true);
    equal(sh.stopAutoMerger().matchedCount, 1);
    equal(sh.isAutoMergerEnabled(), false);
    const { automerge, autosplit, balancer } = sh.status().value;
    equal([automerge, autosplit], [{ "Currently enabled": "no" }, { "Currently enabled": "no" }]);
    equal(balancer["Currently enabled"], "no");
    equal(balancer["Failed balancer rounds in last 5 attempts"], 0);
  },

  collections_are_left_alone_by_the_balancer() {
    const isExempt = (ns) => db.getSiblingDB("config").collections.findOne({ _id: ns }).noBalance;
    const ns = "cluster_mongosh.ranges";
    equal(isExempt(ns), false);
    equal(sh.disableBalancing(ns).modifiedCount, 1);
    equal(isExempt(ns), true);
    equal(sh.enableBalancing(ns).modifiedCount, 1);
    equal(isExempt(ns), false);
  },

  what_is_not_there_is_refused() {
    equal(codeOf(() => sh.addShardToZone("p0001", "zone")), 115);
    equal(codeOf(() => sh.updateZoneKeyRange("cluster_mongosh.ranges", { k: 0 }, { k: 1 }, "zone")), 115);
    const ranges = "cluster_mongosh.ranges";
    const refused = [
      () => sh.reshardCollection(ranges, { x: 1 }),
      () => sh.commitReshardCollection(ranges),
      () => sh.abortReshardCollection(ranges),
      () => sh.addShard("host:27017"),
      () => sh.removeShardFromZone("p0001", "zone"),
      () => sh.removeShardTag("p0001", "zone"),
      () => sh.addTagRange(ranges, { k: 0 }, { k: 1 }, "zone"),
      () => sh.removeRangeFromZone(ranges, { k: 0 }, { k: 1 }),
      () => sh.moveCollection("cluster_mongosh.fresh", "p0001"),
      () => sh.abortMoveCollection("cluster_mongosh.fresh"),
      () => sh.unshardCollection(ranges, "p0001"),
      () => sh.abortUnshardCollection(ranges),
      () => sh.disableMigrations(ranges),
      () => sh.enableMigrations(ranges),
      () => sh.disableAutoMerger(ranges),
      () => sh.checkMetadataConsistency().toArray(),
      () => shell.ranges.checkMetadataConsistency().toArray(),
      () => shell.ranges.analyzeShardKey({ k: 1 }),
      () => shell.ranges.configureQueryAnalyzer({ mode: "full", samplesPerSecond: 1 }),
      () => sh.enableSharding("cluster_mongosh", "p0001"),
    ];
    equal(refused.map(codeOf), refused.map(() => 115));
    // The collection is sharded; then it says that its documents stay.
    equal(codeOf(() => sh.shardAndDistributeCollection("cluster_mongosh.spread", { k: "hashed" })), 115);
    equal(shell.spread.stats().sharded, true);
    shell.createCollection("series", { timeseries: { timeField: "t", metaField: "bed" } });
    equal(sh.shardAndDistributeCollection("cluster_mongosh.series", { bed: "hashed" }).ok, 1);
    equal(sh.reshardCollection("cluster_mongosh.series", { "bed.id": 1 }).ok, 1);
  },

  writes_through_the_router() {
    const operations = [
      { insertOne: { document: { _id: 1000, name: "new" } } },
      { updateOne: { filter: { name: "n5" }, update: { $set: { seen: 1 } } } },
      { deleteMany: { filter: { _id: { $gte: 150, $lt: 1000 } } } },
    ];
    const done = shell.gardeners.bulkWrite(operations);
    equal([done.insertedCount, done.matchedCount, done.deletedCount], [1, 1, 50]);
    equal(shell.gardeners.replaceOne({ name: "n6" }, { _id: 6, name: "six" }).modifiedCount, 1);
    equal(shell.gardeners.findOneAndUpdate({}, { $set: { first: 1 } }, { sort: { _id: -1 } })._id, 1000);
    equal(shell.ranges.updateOne({ k: 55 }, { $set: { x: 1 } }).modifiedCount, 1);
    // A shard key changes, here to another partition and back.
    equal(codeOf(() => shell.ranges.updateOne({ x: 1 }, { $inc: { k: 1 } })), 31025);
    equal(codeOf(() => shell.ranges.updateMany({ k: 55 }, { $inc: { k: 1 } })), 72);
    equal(shell.ranges.updateOne({ k: 55 }, { $inc: { k: 100 } }).modifiedCount, 1);
    equal(shell.ranges.findOneAndUpdate({ k: 155 }, { $set: { k: 55 } }, { returnDocument: "after" }).k, 55);
    equal(shell.ranges.find({ k: { $in: [55, 155] } }).itcount(), 1);
  },

  rollups_and_outputs() {
    const hour = { $dateTrunc: { date: "$t", unit: "hour" } };
    const group = { $group: { _id: { at: hour }, n: { $count: {} } } };
    equal(shell.createCollection("hours", { rollup: { source: "soil", pipeline: [group] } }).ok, 1);
    equal(shell.hours.aggregate([{ $group: { _id: null, n: { $sum: "$n" } } }]).toArray()[0].n, 1000);
    const mean = { $group: { _id: "$bed.id", mean: { $avg: "$moisture" } } };
    shell.soil.aggregate([mean, { $out: "means" }]);
    equal(shell.means.countDocuments(), 20);
    shell.soil.aggregate([mean, { $merge: { into: "gardeners", whenNotMatched: "discard" } }]);
    equal(shell.gardeners.countDocuments({ mean: { $exists: true } }), 20);
    equal(codeOf(() => shell.soil.aggregate([{ $out: "gardeners" }])), 28769);
    // By default documents are identified by the shard key and _id.
    shell.ranges.aggregate([{ $match: { k: { $exists: true } } }, { $set: { merged: true } }, { $merge: "ranges" }]);
    equal(shell.ranges.countDocuments({ merged: true }), 3);
  },
};

for (const [name, check] of Object.entries(checks)) {
  try {
    check();
    print(`ok ${name}`);
  } catch (e) {
    print(`not ok ${name}: ${String(e.message ?? e).replaceAll("\n", " ")}`);
  }
}
shell.dropDatabase();
