"""What a Python program does with a time-series database, through pymongo.

Reads NILOMETER_URI; prints one line per check, `ok NAME` or `not ok NAME: reason`. The names are the
same for every client and are listed in xtask/src/conformance/checks.rs.
"""

import datetime as dt
import os
import time
import traceback

import bson
import changes
import logins
import tour
from bson import Decimal128, Int64, ObjectId, Regex
from bson.codec_options import CodecOptions
from parts import has
from pymongo import (
    ASCENDING, DESCENDING, CursorType, IndexModel, InsertOne, MongoClient, errors, monitoring,
)
from pymongo.collation import Collation, CollationStrength
from pymongo.write_concern import WriteConcern

URI = os.environ["NILOMETER_URI"]
START = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
MINUTE = dt.timedelta(minutes=1)
SENSORS = 4
SINGLE = 10
BULK = 1000
TOTAL = SINGLE + BULK
OPTIONS = {"timeField": "time", "metaField": "sensor", "granularity": "seconds"}

client = MongoClient(URI, tz_aware=True, serverSelectionTimeoutMS=10_000)
db = client["conformance_pymongo"]
readings = db["readings"]


def measurement(i):
    return {"time": START + i * MINUTE, "sensor": f"s{i % SENSORS}", "value": float(i), "n": i}


def code_of(action):
    """The code of the error that `action` must raise."""
    try:
        action()
    except errors.BulkWriteError as e:
        return e.details["writeErrors"][0]["code"]
    except errors.OperationFailure as e:
        return e.code
    raise AssertionError("no error")


def equal(got, expected):
    assert got == expected, f"got {got!r}, expected {expected!r}"


def connect_and_ping():
    equal(client.admin.command("ping")["ok"], 1.0)
    hello = client.admin.command("hello")
    equal(hello["maxBsonObjectSize"], 16 * 1024 * 1024)
    equal(client.server_info()["versionArray"][0], 8)
    watch_by_a_stream()


class Heartbeats(monitoring.ServerHeartbeatListener):
    """Counts the answers of the server's stream."""

    def __init__(self):
        self.streamed, self.failures = 0, []

    def started(self, event):
        pass

    def succeeded(self, event):
        self.streamed += event.awaited

    def failed(self, event):
        self.failures.append(event.reply)


def watch_by_a_stream():
    beats = Heartbeats()
    watching = MongoClient(
        URI,
        serverMonitoringMode="stream",
        heartbeatFrequencyMS=500,
        event_listeners=[beats],
    )
    watching.admin.command("ping")
    until = time.monotonic() + 20
    while beats.streamed < 3 and time.monotonic() < until:
        time.sleep(0.1)
    assert beats.streamed >= 3, beats.streamed
    equal(beats.failures, [])
    watching.close()


def create_time_series():
    client.drop_database(db.name)
    db.create_collection("readings", timeseries=OPTIONS)
    found = list(db.list_collections(filter={"name": "readings"}))
    equal(found[0]["type"], "timeseries")
    equal(found[0]["options"]["timeseries"]["metaField"], "sensor")


def insert_one_by_one():
    for i in range(SINGLE):
        assert readings.insert_one(measurement(i)).acknowledged
    equal(readings.count_documents({}), SINGLE)


def insert_in_bulk():
    result = readings.insert_many([measurement(i) for i in range(SINGLE, TOTAL)])
    equal(len(result.inserted_ids), BULK)
    equal(readings.count_documents({}), TOTAL)


def find_filter_sort_limit_projection():
    found = readings.find(
        {"sensor": "s1", "value": {"$gte": 100, "$lt": 900}, "time": {"$gt": START}},
        {"_id": 0, "n": 1, "time": 1},
        sort=[("time", DESCENDING)],
        limit=3,
        skip=1,
    )
    equal(list(found), [{"time": START + n * MINUTE, "n": n} for n in (893, 889, 885)])
    assert readings.find_one({"n": {"$in": [7, 8]}}, sort=[("n", ASCENDING)])["n"] == 7


def aggregate_by_hour():
    day = dt.timedelta(hours=12)
    got = readings.aggregate(
        [
            {"$match": {"time": {"$lt": START + day}}},
            {
                "$group": {
                    "_id": {
                        "hour": {"$dateTrunc": {"date": "$time", "unit": "hour"}},
                        "sensor": "$sensor",
                    },
                    "mean": {"$avg": "$value"},
                    "count": {"$sum": 1},
                }
            },
            {"$sort": {"_id.hour": 1, "_id.sensor": 1}},
        ]
    )
    expected = []
    for hour in range(12):
        for s in range(SENSORS):
            values = [i for i in range(hour * 60, hour * 60 + 60) if i % SENSORS == s]
            at = START + dt.timedelta(hours=hour)
            key = {"hour": at, "sensor": f"s{s}"}
            expected.append({"_id": key, "mean": sum(values) / len(values), "count": len(values)})
    equal(list(got), expected)


def cursor_over_batches():
    found = [d["n"] for d in readings.find({}, sort=[("time", ASCENDING)], batch_size=64)]
    equal(found, list(range(TOTAL)))
    grouped = readings.aggregate([{"$project": {"n": 1}}, {"$sort": {"n": -1}}], batchSize=64)
    equal([d["n"] for d in grouped], list(range(TOTAL - 1, -1, -1)))


def cursor_closed_early():
    cursor = readings.find({}, batch_size=10)
    next(cursor)
    number = cursor.cursor_id
    assert number, "the server kept no cursor"
    cursor.close()
    again = lambda: db.command("getMore", Int64(number), collection="readings")
    equal(code_of(again), 43)


def count_and_distinct():
    equal(readings.count_documents({"sensor": "s2"}), len(range(2, TOTAL, SENSORS)))
    equal(readings.estimated_document_count(), TOTAL)
    equal(sorted(readings.distinct("sensor")), [f"s{i}" for i in range(SENSORS)])


def list_collections_and_databases():
    assert db.name in client.list_database_names()
    equal(sorted(n for n in db.list_collection_names() if not n.startswith("system.")), ["readings"])


def read_buckets():
    if not has("buckets"):
        return
    buckets = list(db["system.buckets.readings"].find())
    assert len(buckets) >= SENSORS, f"{len(buckets)} buckets"
    equal(sorted({b["meta"] for b in buckets}), [f"s{i}" for i in range(SENSORS)])
    assert all(b["control"]["version"] in (2, 3) for b in buckets)
    equal(sum(b["control"]["count"] for b in buckets), TOTAL)


def every_type_comes_back():
    collection = db["types"]
    collection.drop()
    db.create_collection("types", timeseries={"timeField": "t"})
    values = [
        1.5, float("inf"), "text", {"a": {"b": [1, "x"]}}, [1, [2], {"c": None}], b"\x00\x01",
        ObjectId("0123456789abcdef01234567"), True, None, Regex("^a", "i"), 2**31 - 1, Int64(2**40),
        bson.Timestamp(5, 6), Decimal128("1.10"), bson.MinKey(), bson.MaxKey(), bson.Code("f()"),
        dt.datetime(1901, 1, 1, tzinfo=dt.timezone.utc),
    ]
    early = dt.datetime(1871, 1, 1, tzinfo=dt.timezone.utc)
    documents = [{"_id": i, "t": early + i * MINUTE, "v": v} for i, v in enumerate(values)]
    collection.insert_many(documents)
    options = CodecOptions(tz_aware=True)
    got = list(collection.with_options(options).find({}, sort=[("_id", ASCENDING)]))
    equal([d["v"] for d in got], values)
    equal([d["t"] for d in got], [d["t"] for d in documents])


def ordinary_collection():
    plain = db["plain"]
    plain.drop()
    plain.insert_many([{"_id": i, "tags": ["a", "b"][: i % 3]} for i in range(6)])
    equal([d["_id"] for d in plain.find({"tags": "b"}, sort=[("_id", 1)])], [2, 5])
    equal(code_of(lambda: plain.insert_one({"_id": 3})), 11000)
    plain.drop()
    follow_collations()
    define_indexes()
    search_texts()
    rename()
    validators()
    follow_a_log()
    clustered()


def define_indexes():
    indexed = db["indexed"]
    equal(indexed.create_index([("a", ASCENDING), ("b", DESCENDING)]), "a_1_b_-1")
    indexed.insert_many([{"_id": i, "a": i % 3, "b": i} for i in range(30)])
    unique = IndexModel([("b", ASCENDING)], name="one_of_a_kind", unique=True)
    partial = IndexModel([("a", 1)], partialFilterExpression={"b": {"$gt": 10}}, sparse=False)
    equal(indexed.create_indexes([unique, partial]), ["one_of_a_kind", "a_1"])
    equal(sorted(indexed.index_information()), ["_id_", "a_1", "a_1_b_-1", "one_of_a_kind"])
    equal(indexed.index_information()["one_of_a_kind"]["unique"], True)
    equal(code_of(lambda: indexed.insert_one({"_id": 100, "b": 5})), 11000)
    equal(code_of(lambda: indexed.create_index([("b", 1)], name="another", unique=True)), 85)
    equal(code_of(lambda: indexed.create_index([("c", 1)], name="a_1")), 86)
    equal(code_of(lambda: indexed.create_index([("c", "text"), ("d", 2)])), 67)
    indexed.drop_index([("a", ASCENDING), ("b", DESCENDING)])
    equal(code_of(lambda: indexed.drop_index("absent")), 27)
    indexed.drop_indexes()
    equal([d["name"] for d in indexed.list_indexes()], ["_id_"])
    indexed.drop()
    # On a time series: the user's keys on one side, the buckets' on the other.
    equal(readings.create_index([("value", DESCENDING)]), "value_-1")
    if has("buckets"):
        buckets = db["system.buckets.readings"].index_information()
        equal(buckets["value_-1"]["key"], [("control.max.value", -1), ("control.min.value", -1)])
    equal(readings.index_information()["value_-1"]["key"], [("value", -1)])
    equal(code_of(lambda: readings.create_index("value", unique=True)), 72)
    readings.drop_index("value_-1")
    equal("value_-1" in readings.index_information(), False)


def search_texts():
    texts = db["texts"]
    equal(code_of(lambda: list(texts.find({"$text": {"$search": "cat"}}))), 27)
    key = [("title", "text"), ("body", "text")]
    equal(texts.create_index(key, weights={"title": 10}), "title_text_body_text")
    equal(code_of(lambda: texts.create_index([("other", "text")])), 85)
    texts.insert_many([
        {"_id": 1, "title": "Cats", "body": "a cat and a dog"},
        {"_id": 2, "title": "Dogs", "body": "no cats here"},
        {"_id": 3, "title": "Birds"},
    ])
    score = {"$meta": "textScore"}
    found = texts.find({"$text": {"$search": "cat"}}, {"score": score}).sort([("score", score)])
    equal([d["_id"] for d in found], [1, 2])
    equal([d["_id"] for d in texts.find({"$text": {"$search": "cat -dog"}})], [])
    equal(texts.count_documents({"$text": {"$search": '"CATS here"'}}), 1)
    equal(texts.index_information()["title_text_body_text"]["weights"], {"body": 1, "title": 10})
    texts.drop()


def rename():
    first, second = db["first"], db["second"]
    first.insert_one({"_id": 1})
    first.create_index("a")
    second.insert_one({"_id": 2})
    equal(code_of(lambda: first.rename("second")), 48)
    first.rename("second", dropTarget=True)
    equal(list(second.find()), [{"_id": 1}])
    equal(sorted(second.index_information()), ["_id_", "a_1"])
    equal(code_of(lambda: first.rename("third")), 26)
    count = readings.count_documents({})
    readings.rename("other")
    equal(db["other"].count_documents({}), count)
    db["other"].rename("readings")
    equal(readings.count_documents({}), count)
    second.drop()


def validators():
    rules = {"$jsonSchema": {"required": ["name"], "properties": {"name": {"bsonType": "string"}}}}
    people = db.create_collection("people", validator=rules)
    people.insert_one({"_id": 1, "name": "Ann"})
    try:
        people.insert_one({"_id": 2, "name": 5})
        raise AssertionError("no error")
    except errors.WriteError as e:
        equal(e.code, 121)
        equal(e.details["errInfo"]["failingDocumentId"], 2)
        rule = e.details["errInfo"]["details"]["schemaRulesNotSatisfied"][0]
        equal(rule["propertiesNotSatisfied"][0]["propertyName"], "name")
    equal(code_of(lambda: people.update_one({"_id": 1}, {"$unset": {"name": 1}})), 121)
    equal(code_of(lambda: people.find_one_and_update({"_id": 1}, {"$unset": {"name": 1}})), 121)
    people.insert_one({"_id": 2}, bypass_document_validation=True)
    equal(len(db.validate_collection(people)["warnings"]), 1)
    db.command("collMod", "people", validationAction="warn")
    people.insert_one({"_id": 3})
    equal(people.options()["validationAction"], "warn")
    people.drop()


def follow_a_log():
    log = db.create_collection("log", capped=True, size=4096, max=3)
    log.insert_many([{"_id": i} for i in range(5)])
    equal(log.options()["capped"], True)
    equal([d["_id"] for d in log.find()], [2, 3, 4])
    if not has("tailable_cursors"):
        log.drop()
        return
    cursor = log.find(cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(100)
    equal([d["_id"] for d in cursor], [2, 3, 4])
    log.insert_one({"_id": 5})
    equal([d["_id"] for d in cursor], [5])
    assert cursor.alive
    log.insert_many([{"_id": i} for i in range(6, 10)])
    # The driver ends a cursor whose position in the collection is lost.
    equal([d["_id"] for d in cursor], [])
    assert not cursor.alive
    equal([d["_id"] for d in log.find().sort("$natural", DESCENDING)], [9, 8, 7])
    log.drop()


def clustered():
    index = {"key": {"_id": 1}, "unique": True, "name": "by id"}
    orders = db.create_collection("orders", clusteredIndex=index)
    orders.insert_many([{"_id": i} for i in (3, 1, 2)])
    equal([d["_id"] for d in orders.find()], [1, 2, 3])
    equal(orders.index_information()["by id"]["clustered"], True)
    plan = orders.find({"_id": {"$gt": 1}}).explain()["queryPlanner"]["winningPlan"]
    # A router has the plans of its partitions in it.
    assert "CLUSTERED_IXSCAN" in str(plan), plan
    orders.drop()


def follow_collations():
    folding = Collation("en", strength=CollationStrength.SECONDARY)
    names = db.create_collection("names", collation=folding)
    names.insert_many([{"_id": i, "name": n} for i, n in enumerate(["b", "A", "a", "\u00e1"])])
    equal(names.count_documents({"name": "a"}), 2)
    equal(names.count_documents({"name": "a"}, collation=Collation("simple")), 1)
    primary = Collation("en", strength=CollationStrength.PRIMARY)
    equal([d["_id"] for d in names.find({"name": "A"}).collation(primary)], [1, 2, 3])
    equal([d["_id"] for d in names.find().sort([("name", 1), ("_id", 1)])], [1, 2, 3, 0])
    equal(names.update_many({"name": "B"}, {"$set": {"seen": True}}).modified_count, 1)
    equal(names.options()["collation"]["version"], "57.1")
    equal(code_of(lambda: names.find_one(collation=Collation("xx"))), 2)
    names.drop()


def unacknowledged_write():
    silent = readings.with_options(write_concern=WriteConcern(w=0))
    silent.insert_one(measurement(TOTAL))
    client.admin.command("ping")
    equal(readings.count_documents({}), TOTAL + 1)


def compressed_messages():
    with MongoClient(URI, compressors="zlib", tz_aware=True) as other:
        collection = other[db.name]["readings"]
        equal(len(list(collection.find({"n": {"$lt": TOTAL}}))), TOTAL)


def ordered_and_unordered_errors():
    collection = db["mixed"]
    collection.drop()
    db.create_collection("mixed", timeseries=OPTIONS)
    batch = lambda: [InsertOne(measurement(0)), InsertOne({"sensor": "x"}), InsertOne(measurement(1))]
    for ordered, inserted in ((True, 1), (False, 2)):
        try:
            collection.bulk_write(batch(), ordered=ordered)
            raise AssertionError("no error")
        except errors.BulkWriteError as e:
            equal(e.details["nInserted"], inserted)
            equal([w["index"] for w in e.details["writeErrors"]], [1])
    equal(collection.count_documents({}), 3)
    collection.drop()


def error_create_with_other_options():
    other = {**OPTIONS, "granularity": "hours"}
    equal(code_of(lambda: db.create_collection("readings", check_exists=False, timeseries=other)), 48)


def error_no_date():
    equal(code_of(lambda: readings.insert_one({"sensor": "s0", "value": 1})), 2)
    equal(code_of(lambda: readings.insert_one({"time": "today", "sensor": "s0"})), 2)


def error_unknown_command():
    equal(code_of(lambda: db.command("noSuchCommand")), 59)


def error_unknown_stage():
    equal(code_of(lambda: list(readings.aggregate([{"$noSuchStage": {}}]))), 40324)


def drop():
    readings.drop()
    assert "readings" not in db.list_collection_names()
    assert "system.buckets.readings" not in db.list_collection_names()
    client.drop_database(db.name)
    assert db.name not in client.list_database_names()


CHECKS = [
    connect_and_ping, create_time_series, insert_one_by_one, insert_in_bulk,
    find_filter_sort_limit_projection, aggregate_by_hour, cursor_over_batches, cursor_closed_early,
    count_and_distinct, list_collections_and_databases, read_buckets, every_type_comes_back,
    ordinary_collection, unacknowledged_write, compressed_messages, ordered_and_unordered_errors,
    error_create_with_other_options, error_no_date, error_unknown_command, error_unknown_stage, drop,
]


def report(name, check):
    try:
        check()
        print(f"ok {name}", flush=True)
    except Exception as e:  # every failure is reported, the next check still runs
        files = (__file__, tour.__file__, changes.__file__, logins.__file__)
        where = [f for f in traceback.extract_tb(e.__traceback__) if f.filename in files][-1]
        text = f"{type(e).__name__}: {e}".replace("\n", " ")
        print(f"not ok {name}: {text} (line {where.lineno})", flush=True)


for check in CHECKS:
    report(check.__name__, check)
tour.run(report)
changes.run(report)
logins.run(report)
