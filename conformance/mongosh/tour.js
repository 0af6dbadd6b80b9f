// A tour of the query language in mongosh; run with `mongosh --file`.
//
// Every query runs on a time-series collection and on an ordinary one with the same documents. Both must return the
// result given here. xtask/src/conformance/checks.rs lists the names of the checks.

const shell = db.getSiblingDB("tour_mongosh");
// The collections are sharded there.
const ON_ROUTER = db.hello().msg === "isdbgrid";
const at = (minutes) => new Date(Date.UTC(2024, 0, 1) + minutes * 60_000);
const HALL = { name: "hall", place: { type: "Point", coordinates: [0, 0] } };
const ATTIC = { name: "attic", place: { type: "Point", coordinates: [0.01, 0] } };

// Eight measurements, every ten minutes, alternating between hall and attic. One has no value, two have no tags.
const TEMPERATURES = [20, 15, 21, 14, 22, null, 19, 16];
const TAGS = [["dry"], ["cold", "dry"], [], ["cold"], undefined, ["cold", "wet"], ["dry"], undefined];
const DOCUMENTS = TEMPERATURES.map((temp, i) => {
  const made = { _id: i, t: at(10 * i), room: i % 2 ? ATTIC : HALL, temp };
  return TAGS[i] ? { ...made, tags: TAGS[i] } : made;
});

function equal(got, expected) {
  const [a, b] = [EJSON.stringify(got), EJSON.stringify(expected)];
  if (a !== b) throw new Error(`got ${a}, expected ${b}`);
}

function codeOf(action) {
  try {
    action();
  } catch (e) {
    return e.code;
  }
  throw new Error("no error");
}

const ids = (cursor) => cursor.toArray().map((d) => d._id).sort();

const checks = {
  tour_begin(air) {
    air.drop();
    if (air.getName() === "series") {
      shell.createCollection("series", { timeseries: { timeField: "t", metaField: "room" } });
    }
    if (ON_ROUTER) {
      const key = air.getName() === "series" ? { "room.name": "hashed" } : { _id: "hashed" };
      equal(sh.shardCollection(`${shell.getName()}.${air.getName()}`, key).ok, 1);
    }
    equal(air.insertMany(DOCUMENTS).acknowledged, true);
    equal(air.find().sort({ _id: 1 }).toArray().length, 8);
    shell.owners.drop();
    shell.owners.insertMany([{ _id: "hall", name: "Ada" }, { _id: "attic", name: "Bob", boss: "hall" }]);
  },

  tour_match(air) {
    const expected = [
      [{ temp: { $lte: 15 } }, [1, 3]],
      [{ temp: null }, [5]],
      [{ "room.name": { $ne: "hall" }, temp: { $exists: true } }, [1, 3, 5, 7]],
      [{ tags: { $all: ["cold"], $size: 2 } }, [1, 5]],
      [{ tags: [] }, [2]],
      [{ tags: { $elemMatch: { $gte: "w" } } }, [5]],
      [{ tags: { $not: { $exists: true } } }, [4, 7]],
      [{ $or: [{ _id: { $in: [0, 1] } }, { temp: { $type: "null" } }] }, [0, 1, 5]],
      [{ $nor: [{ temp: { $gt: 14 } }, { temp: null }] }, [3]],
      [{ temp: { $mod: [5, 0] } }, [0, 1]],
      [{ "room.name": /^h/ }, [0, 2, 4, 6]],
      [{ t: { $lt: at(20) } }, [0, 1]],
      [{ $expr: { $eq: [{ $minute: "$t" }, { $multiply: ["$_id", 10] }] } }, [0, 1, 2, 3, 4, 5]],
      [{ $jsonSchema: { properties: { temp: { bsonType: "null" } } } }, [5]],
    ];
    for (const [filter, found] of expected) equal([filter, ids(air.find(filter))], [filter, found]);
    equal(codeOf(() => air.find({ temp: { $in: 5 } }).toArray()), 2);
    equal(codeOf(() => air.find({ $where: "true" }).toArray()), 2);
  },

  tour_expressions(air) {
    const found = air.aggregate([
      { $match: { _id: { $lt: 2 } } },
      { $sort: { _id: 1 } },
      { $project: {
        kelvin: { $round: [{ $add: ["$temp", 273.15] }, 2] },
        day: { $dayOfWeek: "$t" },
        text: { $dateToString: { date: "$t", format: "%d.%m.%Y %H:%M", timezone: "Europe/Berlin" } },
        first: { $first: "$tags" },
        upper: { $map: { input: "$tags", in: { $toUpper: "$$this" } } },
        range: { $range: [0, "$_id"] },
        cond: { $cond: [{ $gte: ["$temp", 20] }, "warm", "$$REMOVE"] },
        sorted: { $sortArray: { input: [3, "$_id", 2], sortBy: -1 } },
        merged: { $mergeObjects: [{ a: 1 }, { b: "$_id" }] },
      } },
    ]).toArray();
    equal(found, [
      { _id: 0, kelvin: 293.15, day: 2, text: "01.01.2024 01:00", first: "dry", upper: ["DRY"], range: [], cond: "warm", sorted: [3, 2, 0], merged: { a: 1, b: 0 } },
      { _id: 1, kelvin: 288.15, day: 2, text: "01.01.2024 01:10", first: "cold", upper: ["COLD", "DRY"], range: [0], sorted: [3, 2, 1], merged: { a: 1, b: 1 } },
    ]);
    equal(codeOf(() => air.aggregate([{ $set: { a: { $toInt: "x" } } }]).toArray()), 241);
  },

  tour_accumulators(air) {
    equal(air.aggregate([
      { $group: { _id: { $dateTrunc: { date: "$t", unit: "hour" } }, n: { $sum: 1 }, mean: { $avg: "$temp" }, top: { $max: "$temp" }, last: { $bottom: { sortBy: { t: 1 }, output: "$temp" } } } },
      { $sort: { _id: 1 } },
    ]).toArray(), [
      { _id: at(0), n: 6, mean: 18.4, top: 22, last: null },
      { _id: at(60), n: 2, mean: 17.5, top: 19, last: 16 },
    ]);
  },

  tour_windows(air) {
    equal(air.aggregate([
      { $setWindowFields: { partitionBy: "$room.name", sortBy: { t: 1 }, output: {
        max: { $max: "$temp", window: { documents: ["unbounded", "current"] } },
        half_hour: { $avg: "$temp", window: { range: [-30, 0], unit: "minute" } },
        next: { $shift: { output: "$_id", by: 1, default: "none" } },
      } } },
      { $match: { "room.name": "attic" } },
      { $sort: { _id: 1 } },
      { $project: { max: 1, half_hour: 1, next: 1 } },
    ]).toArray(), [
      { _id: 1, max: 15, half_hour: 15, next: 3 },
      { _id: 3, max: 15, half_hour: 14.5, next: 5 },
      { _id: 5, max: 15, half_hour: 14, next: 7 },
      { _id: 7, max: 16, half_hour: 16, next: "none" },
    ]);
  },

  tour_stages(air) {
    const ask = (...stages) => air.aggregate(stages).toArray();
    equal(ask({ $sortByCount: { $gt: ["$temp", 19] } }), [{ _id: false, count: 5 }, { _id: true, count: 3 }]);
    equal(ask({ $facet: { hall: [{ $match: { "room.name": "hall" } }, { $count: "n" }], tags: [{ $unwind: "$tags" }, { $count: "n" }] } }), [{ hall: [{ n: 4 }], tags: [{ n: 7 }] }]);
    equal(ask({ $match: { _id: 3 } }, { $lookup: { from: "owners", localField: "room.name", foreignField: "_id", as: "o" } }, { $replaceRoot: { newRoot: { $first: "$o" } } }), [{ _id: "attic", name: "Bob", boss: "hall" }]);
    equal(ask({ $project: { temp: 1 } }, { $match: { _id: { $gte: 4, $lte: 6 } } }, { $sort: { _id: 1 } }, { $fill: { sortBy: { _id: 1 }, output: { temp: { method: "linear" } } } }), [{ _id: 4, temp: 22 }, { _id: 5, temp: 20.5 }, { _id: 6, temp: 19 }]);
    equal(ask({ $unionWith: { coll: "owners", pipeline: [{ $match: { boss: "hall" } }] } }, { $count: "n" }), [{ n: 9 }]);
    equal(codeOf(() => ask({ $sort: {} })), 15976);
  },

  tour_out_and_merge(air) {
    air.aggregate([{ $group: { _id: "$room.name", most: { $max: "$temp" } } }, { $out: "most" }]);
    equal(shell.most.find().sort({ _id: 1 }).toArray(), [{ _id: "attic", most: 16 }, { _id: "hall", most: 22 }]);
    air.aggregate([{ $match: { _id: 4 } }, { $project: { _id: "$room.name", most: { $literal: 30 } } }, { $merge: { into: "most", whenMatched: "replace" } }]);
    equal(shell.most.findOne({ _id: "hall" }), { _id: "hall", most: 30 });
    equal(shell.most.renameCollection("most_of_all").ok, 1);
    equal(shell.most_of_all.countDocuments(), 2);
    equal(shell.most_of_all.drop(), true);
  },

  tour_collation(air) {
    equal(ids(air.find({ "room.name": "Hall" }).collation({ locale: "en", strength: 2 })), [0, 2, 4, 6]);
    equal(air.find({ "room.name": "Hall" }).itcount(), 0);
    equal(codeOf(() => air.find().collation({ locale: "nowhere" }).toArray()), 2);
  },

  tour_geo(air) {
    equal(air.createIndex({ "room.place": "2dsphere" }), "room.place_2dsphere");
    equal(ids(air.find({ "room.place": { $geoWithin: { $centerSphere: [[0, 0], 0.0001] } } })), [0, 2, 4, 6]);
    const near = () => air.aggregate([
      { $geoNear: { near: ATTIC.place, key: "room.place", distanceField: "d" } },
      { $group: { _id: "$room.name", d: { $max: { $trunc: "$d" } } } },
      { $sort: { d: 1 } },
    ]).toArray();
    equal(near(), [{ _id: "attic", d: 0 }, { _id: "hall", d: 1113 }]);
  },

  tour_hint_and_explain(air) {
    equal(air.createIndex({ "room.name": 1, t: 1 }, { name: "by_room" }), "by_room");
    const find = () => air.find({ "room.name": "attic", t: { $lt: at(40) } });
    equal(ids(find().hint("by_room")), [1, 3]);
    const [by_index, by_order] = [find().hint("by_room").explain(), find().hint({ $natural: -1 }).explain("executionStats")].map((plan) => EJSON.stringify(plan));
    if (!/IXSCAN/.test(by_index) || !/"by_room"/.test(by_index)) throw new Error(by_index);
    if (/"by_room"/.test(by_order) || !/executionStats/.test(by_order)) throw new Error(by_order);
    equal(codeOf(() => find().hint("none").toArray()), 2);
    equal(air.dropIndex("by_room").ok, 1);
  },

  tour_cursors(air) {
    equal(air.find({}, { _id: 1 }).sort({ t: -1 }).batchSize(3).toArray().map((d) => d._id), [7, 6, 5, 4, 3, 2, 1, 0]);
    equal(air.find().sort({ t: 1 }).skip(6).limit(5).toArray().map((d) => d.temp), [19, 16]);
    equal(air.distinct("tags", { "room.name": "hall" }), ["dry"]);
    const { cursor } = shell.runCommand({ find: air.getName(), batchSize: 2 });
    equal(shell.runCommand({ killCursors: air.getName(), cursors: [cursor.id] }).cursorsKilled.length, 1);
    equal(codeOf(() => shell.runCommand({ getMore: cursor.id, collection: air.getName() })), 43);
    equal(air.find().maxTimeMS(10_000).comment("tour").itcount(), 8);
    // Changes the view, so that its definition is seen to be stored.
    equal(air.updateOne({ _id: 5 }, { $set: { temp: 17 } }).modifiedCount, 1);
    equal(air.findOne({ _id: 5 }).temp, 17);
    equal(air.deleteMany({ "room.name": "attic", temp: { $gt: 14 } }).deletedCount, 3);
    equal(ids(air.find()), [0, 2, 3, 4, 6]);
  },

  tour_end(air) {
    equal(air.drop(), true);
    equal(shell.getCollectionNames().includes(air.getName()), false);
  },
};

for (const [name, check] of Object.entries(checks)) {
  try {
    for (const kind of ["series", "plain"]) check(shell.getCollection(kind));
    print(`ok ${name}`);
  } catch (e) {
    print(`not ok ${name}: ${String(e.message ?? e).replaceAll("\n", " ")}`);
  }
}
shell.dropDatabase();
