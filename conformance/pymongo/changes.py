"""Changes of measurements as a Python program makes them: bulk writes of every kind through pymongo.

Imported by check.py, whose way of reporting it follows; the names are listed in
xtask/src/conformance/checks.rs.
"""

import datetime as dt
import os

from pymongo import (
    DeleteMany, DeleteOne, InsertOne, MongoClient, ReplaceOne, ReturnDocument, UpdateMany, UpdateOne,
    errors,
)

START = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)

client = MongoClient(os.environ["NILOMETER_URI"], tz_aware=True, serverSelectionTimeoutMS=10_000)
db = client["conformance_changes"]
readings = db["readings"]


def at(minute):
    return START + dt.timedelta(minutes=minute)


def measurement(i):
    return {"_id": i, "time": at(i), "sensor": {"room": f"r{i % 3}"}, "value": i, "log": [i]}


def equal(got, expected):
    assert got == expected, f"got {got!r}, expected {expected!r}"


def fresh():
    client.drop_database(db.name)
    db.create_collection("readings", timeseries={"timeField": "time", "metaField": "sensor"})
    readings.insert_many([measurement(i) for i in range(90)])


def bulk_write_of_all_kinds():
    fresh()
    result = readings.bulk_write([
        InsertOne(measurement(90)),
        UpdateOne({"_id": 5}, {"$set": {"value": 500}, "$push": {"log": 1}}),
        UpdateMany({"sensor.room": "r1"}, {"$inc": {"value": 1000}}),
        ReplaceOne({"_id": 6}, {"time": at(6), "sensor": {"room": "r9"}, "value": 6}),
        UpdateOne({"_id": 1000, "sensor": {"room": "r0"}}, {"$set": {"time": at(1)}}, upsert=True),
        ReplaceOne({"_id": 1001}, {"time": at(2), "value": 1}, upsert=True),
        DeleteOne({"_id": 7}),
        DeleteMany({"value": {"$gte": 80, "$lt": 90}, "sensor.room": "r0"}),
    ])
    equal((result.inserted_count, result.matched_count, result.modified_count), (1, 32, 32))
    equal(result.upserted_ids, {4: 1000, 5: 1001})
    equal(result.deleted_count, 4)
    equal(readings.count_documents({}), 89)
    equal(readings.find_one({"_id": 5})["log"], [5, 1])
    equal(readings.find_one({"_id": 6})["sensor"], {"room": "r9"})


def bulk_write_that_fails():
    fresh()
    changes = [
        UpdateOne({"_id": 1}, {"$set": {"value": -1}}),
        UpdateOne({"_id": 2}, {"$unset": {"time": ""}}),
        UpdateOne({"_id": 3}, {"$set": {"value": -1}}),
    ]
    for ordered, changed in [(True, 1), (False, 2)]:
        try:
            readings.bulk_write(changes, ordered=ordered)
            raise AssertionError("no error")
        except errors.BulkWriteError as e:
            equal([(w["index"], w["code"]) for w in e.details["writeErrors"]], [(1, 2)])
        equal(readings.count_documents({"value": -1}), changed)


def bulk_write_of_the_client():
    fresh()
    db.create_collection("others", timeseries={"timeField": "time", "metaField": "sensor"})
    names = [f"{db.name}.readings", f"{db.name}.others"]
    models = [
        InsertOne(namespace=names[1], document=measurement(1)),
        UpdateMany(namespace=names[0], filter={}, update={"$mul": {"value": 2}}),
        ReplaceOne(namespace=names[1], filter={"_id": 1}, replacement={"time": at(5), "value": 0}),
        DeleteMany(namespace=names[0], filter={"value": {"$lt": 20}}),
    ]
    result = client.bulk_write(models=models, verbose_results=True)
    equal((result.inserted_count, result.matched_count, result.deleted_count), (1, 91, 10))
    equal(result.delete_results[3].deleted_count, 10)
    equal(db["others"].find_one(), {"_id": 1, "time": at(5), "value": 0})


def find_and_change():
    fresh()
    before = readings.find_one_and_update({"_id": 4}, [{"$set": {"value": {"$add": ["$value", 1]}}}])
    equal(before["value"], 4)
    after = readings.find_one_and_replace(
        {"_id": 4}, {"time": at(4), "value": 44}, return_document=ReturnDocument.AFTER
    )
    equal(after, {"_id": 4, "time": at(4), "value": 44})
    equal(readings.find_one_and_delete({"_id": 4}), after)
    equal(readings.find_one({"_id": 4}), None)


def change_of_many_series():
    fresh()
    moved = readings.update_many({"sensor.room": "r2"}, {"$set": {"sensor.room": "r0", "moved": True}})
    equal((moved.matched_count, moved.modified_count), (30, 30))
    later = [{"$set": {"time": {"$add": ["$time", 7 * 24 * 3600 * 1000]}}}]
    equal(readings.update_many({"moved": True}, later).modified_count, 30)
    equal(readings.count_documents({"time": {"$gte": at(7 * 24 * 60)}, "sensor.room": "r0"}), 30)
    equal(readings.delete_many({"sensor.room": "r0"}).deleted_count, 60)
    equal(readings.delete_many({}).deleted_count, 30)


def no_duplicates():
    client.drop_database(db.name)
    options = {"timeField": "time", "metaField": "sensor", "nilometer": {"duplicates": "error"}}
    db.create_collection("readings", timeseries=options)
    readings.insert_many([measurement(i) for i in range(3)])
    again = [dict(measurement(i), _id=i + 10) for i in [1, 5, 2, 6]]
    try:
        readings.insert_many(again, ordered=False)
        raise AssertionError("no error")
    except errors.BulkWriteError as e:
        equal([(w["index"], w["code"]) for w in e.details["writeErrors"]], [(0, 11000), (2, 11000)])
        equal(e.details["nInserted"], 2)
    db.command("collMod", "readings", timeseries={"nilometer": {"duplicates": "replace"}})
    readings.insert_one(dict(measurement(1), _id=77))
    equal(readings.find_one({"time": at(1)})["_id"], 77)
    db.command("collMod", "readings", timeseries={"nilometer": {"duplicates": "ignore"}})
    equal(readings.insert_one(dict(measurement(1), _id=78)).acknowledged, True)
    equal(sorted(d["_id"] for d in readings.find({}, {"_id": 1})), [0, 2, 15, 16, 77])
    client.drop_database(db.name)


CHECKS = [
    bulk_write_of_all_kinds, bulk_write_that_fails, bulk_write_of_the_client, find_and_change,
    change_of_many_series, no_duplicates,
]


def run(report):
    for check in CHECKS:
        report(check.__name__, check)
