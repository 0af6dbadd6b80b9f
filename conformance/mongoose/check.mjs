// A Mongoose model of a time-series collection: documents are created, changed and saved repeatedly.
//
// Reads NILOMETER_URI; prints one line per check, `ok NAME` or `not ok NAME: reason`. The names are
// listed in xtask/src/conformance/checks.rs.

import assert from "node:assert/strict";
import mongoose from "mongoose";

const START = Date.UTC(2024, 0, 1);
const at = (minute) => new Date(START + minute * 60_000);

const schema = new mongoose.Schema(
  {
    time: { type: Date, required: true },
    sensor: { room: String, floor: Number },
    value: Number,
    tags: [String],
    note: { text: String, by: String },
  },
  { timeseries: { timeField: "time", metaField: "sensor", granularity: "seconds" }, autoCreate: false },
);

await mongoose.connect(process.env.NILOMETER_URI, { dbName: "conformance_mongoose" });
await mongoose.connection.dropDatabase();
const Reading = mongoose.model("Reading", schema);

const hall = { room: "hall", floor: 0 };
const stored = (id) => Reading.findById(id).lean();

const checks = {
  async create_collection() {
    await Reading.createCollection();
    const [found] = await mongoose.connection.listCollections();
    assert.equal(found.type, "timeseries");
    // Like a program that restarts.
    await Reading.createCollection();
  },

  async save_new() {
    const reading = new Reading({ time: at(0), sensor: hall, value: 1, tags: ["raw"] });
    await reading.save();
    assert.equal((await stored(reading._id)).value, 1);
    await Reading.create([1, 2, 3].map((i) => ({ time: at(i), sensor: hall, value: i })));
    assert.equal(await Reading.countDocuments(), 4);
  },

  async save_changed() {
    const reading = await Reading.findOne({ value: 1, tags: "raw" });
    reading.value = 10;
    reading.tags.push("checked");
    reading.note = { text: "looks right", by: "me" };
    await reading.save();
    reading.note.text = undefined;
    await reading.save();
    const found = await stored(reading._id);
    assert.equal(found.value, 10);
    assert.deepEqual(found.tags, ["raw", "checked"]);
    assert.deepEqual(found.note, { by: "me" });
    assert.equal(await Reading.countDocuments({ _id: reading._id }), 1);
  },

  async save_to_another_time_and_series() {
    const reading = await Reading.findOne({ value: 10 });
    reading.time = at(600);
    reading.sensor.room = "attic";
    await reading.save();
    const found = await stored(reading._id);
    assert.deepEqual([found.time, found.sensor], [at(600), { room: "attic", floor: 0 }]);
    assert.equal(await Reading.countDocuments({ "sensor.room": "attic" }), 1);
    assert.equal(await Reading.countDocuments(), 4);
  },

  async save_in_bulk() {
    const readings = await Reading.find({ "sensor.room": "hall" });
    readings.forEach((reading) => (reading.value *= 100));
    const result = await Reading.bulkSave(readings);
    assert.equal(result.modifiedCount, 3);
    assert.deepEqual((await Reading.distinct("value")).sort((a, b) => a - b), [10, 100, 200, 300]);
  },

  async save_of_what_is_gone() {
    const reading = await Reading.create({ time: at(5), sensor: hall, value: 5 });
    await Reading.deleteOne({ _id: reading._id });
    reading.value = 6;
    await assert.rejects(reading.save(), { name: "DocumentNotFoundError" });
    assert.equal(await Reading.countDocuments({ value: 6 }), 0);
  },

  async save_of_arrays_by_position() {
    const reading = await Reading.create({ time: at(6), sensor: hall, tags: ["a", "b", "c"] });
    reading.tags.set(1, "B");
    await reading.save();
    const other = await Reading.findById(reading._id);
    other.tags.pull("a");
    await other.save();
    assert.deepEqual((await stored(reading._id)).tags, ["B", "c"]);
    // The version in memory is older than the stored one.
    reading.tags = ["from scratch"];
    reading.increment();
    await reading.save().catch((e) => assert.equal(e.name, "VersionError"));
    await reading.deleteOne();
  },

  async find_and_change() {
    const changed = await Reading.findOneAndUpdate({ value: 100 }, { $inc: { value: 1 } }, { returnDocument: "after" });
    assert.equal(changed.value, 101);
    const replaced = await Reading.findOneAndReplace(
      { _id: changed._id }, { time: at(1), sensor: hall, value: 7 }, { returnDocument: "after" },
    );
    assert.deepEqual([replaced.value, String(replaced._id)], [7, String(changed._id)]);
    const upserted = await Reading.findOneAndUpdate(
      { _id: new mongoose.Types.ObjectId(), sensor: { room: "cellar", floor: -1 } },
      { $set: { time: at(9), value: 8 } },
      { upsert: true, returnDocument: "after" },
    );
    assert.equal(upserted.sensor.room, "cellar");
  },

  async transactions() {
    const Account = mongoose.model("Account", new mongoose.Schema({ _id: String, balance: Number }));
    await Account.create([{ _id: "a", balance: 10 }, { _id: "b", balance: 0 }]);
    const readings = () => Reading.countDocuments({ "sensor.room": "vault" });
    const move = (amount) => mongoose.connection.transaction(async (session) => {
      const from = await Account.findById("a").session(session);
      from.balance -= amount;
      await from.save();
      await Account.updateOne({ _id: "b" }, { $inc: { balance: amount } }).session(session);
      await Reading.create([{ time: at(20), sensor: { room: "vault", floor: -2 }, value: amount }], { session });
      assert.equal(await readings().session(session), 1);
      assert.equal(await readings(), 0);
      if (amount > from.balance + amount) throw new Error("not enough");
    });
    await assert.rejects(move(11), { message: "not enough" });
    assert.equal(await readings(), 0);
    await move(4);
    assert.deepEqual((await Account.find().sort({ _id: 1 })).map((account) => account.balance), [6, 4]);
    assert.equal((await Reading.deleteMany({ "sensor.room": "vault" })).deletedCount, 1);
  },

  async watch() {
    const stream = Reading.watch([{ $match: { operationType: "insert" } }], { fullDocument: "updateLookup" });
    const changes = [];
    stream.on("change", (change) => changes.push(change));
    await new Promise((resolve) => stream.once("ready", resolve));
    // "ready" comes before the server has opened the stream: insert until one is seen.
    const inserted = [];
    for (let i = 0; i < 100 && changes.length === 0; i++) {
      inserted.push(...(await Reading.create([{ time: at(30), sensor: hall, value: 30 }])));
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    assert.ok(inserted.some((one) => String(one._id) === String(changes[0].fullDocument._id)));
    assert.equal(changes[0].fullDocument.value, 30);
    await stream.close();
    for (const one of inserted) await one.deleteOne();
  },

  async update_and_delete() {
    const updated = await Reading.updateMany({ "sensor.room": "hall" }, { $set: { "sensor.floor": 1 } });
    assert.equal(updated.modifiedCount, 3);
    const one = await Reading.findOne({ value: 7 });
    await one.deleteOne();
    assert.equal((await Reading.deleteMany({ "sensor.floor": 1 })).deletedCount, 2);
    assert.equal(await Reading.countDocuments(), 2);
    await mongoose.connection.dropDatabase();
  },
};

for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok ${name}`);
  } catch (e) {
    const line = /check\.mjs:(\d+)/.exec(e.stack ?? "")?.[1] ?? "?";
    console.log(`not ok ${name}: ${String(e.message ?? e).replaceAll("\n", " ")} (line ${line})`);
  }
}
await mongoose.disconnect();
