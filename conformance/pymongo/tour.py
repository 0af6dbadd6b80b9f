"""A tour of the language, through pymongo: filters, expressions, accumulators, windows, stages, outputs,
collations, places, indexes, cursors.

Everything is asked twice: of a time-series collection and of an ordinary one that holds the same
documents. Both must answer the same, and what it says here. Run by check.py; the names of the checks
are listed in xtask/src/conformance/checks.rs.
"""

import datetime as dt
import os

from parts import has
from pymongo import MongoClient, errors
from pymongo.collation import Collation

START = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
TEN_MINUTES = dt.timedelta(minutes=10)
HALL = {"name": "hall", "place": {"type": "Point", "coordinates": [0, 0]}}
ATTIC = {"name": "attic", "place": {"type": "Point", "coordinates": [0.01, 0]}}

# Eight measurements, every ten minutes, alternating between hall and attic. One has no value, two have no tags.
TEMPERATURES = [20, 15, 21, 14, 22, None, 19, 16]
TAGS = [["dry"], ["cold", "dry"], [], ["cold"], None, ["cold", "wet"], ["dry"], None]


def document(i):
    made = {"_id": i, "t": START + i * TEN_MINUTES, "room": ATTIC if i % 2 else HALL, "temp": TEMPERATURES[i]}
    return made if TAGS[i] is None else {**made, "tags": TAGS[i]}


DOCUMENTS = [document(i) for i in range(8)]

client = MongoClient(os.environ["NILOMETER_URI"], tz_aware=True, serverSelectionTimeoutMS=10_000)
db = client["tour_pymongo"]


def equal(got, expected):
    assert got == expected, f"got {got!r}, expected {expected!r}"


def code_of(action):
    try:
        action()
    except errors.OperationFailure as e:
        return e.code
    raise AssertionError("no error")


def ids(documents):
    return sorted(d["_id"] for d in documents)


def tour_begin(air):
    air.drop()
    if air.name == "series":
        db.create_collection("series", timeseries={"timeField": "t", "metaField": "room"})
    air.insert_many(DOCUMENTS)
    equal(list(air.find().sort("_id")), DOCUMENTS)
    owners = db["owners"]
    owners.drop()
    owners.insert_many([{"_id": "hall", "name": "Ada"}, {"_id": "attic", "name": "Bob", "boss": "hall"}])


def tour_match(air):
    for filter, expected in [
        ({"temp": {"$gt": 19}}, [0, 2, 4]),
        ({"temp": {"$gte": 15, "$lt": 20}}, [1, 6, 7]),
        ({"temp": None}, [5]),
        ({"tags": "cold"}, [1, 3, 5]),
        ({"tags": {"$all": ["cold", "dry"]}}, [1]),
        ({"tags": {"$size": 0}}, [2]),
        ({"tags": {"$exists": False}}, [4, 7]),
        ({"tags": {"$elemMatch": {"$in": ["wet"]}}}, [5]),
        ({"room.name": {"$in": ["hall"]}, "temp": {"$mod": [2, 0]}}, [0, 4]),
        ({"room.name": {"$regex": "^AT", "$options": "i"}}, [1, 3, 5, 7]),
        ({"$or": [{"temp": {"$lt": 15}}, {"temp": {"$type": "null"}}]}, [3, 5]),
        ({"$nor": [{"room.name": "hall"}, {"tags": "cold"}]}, [7]),
        # A value that is not a number is not greater than one.
        ({"temp": {"$not": {"$gt": 15}}}, [1, 3, 5]),
        ({"temp": {"$bitsAllSet": [0]}}, [1, 2, 6]),
        ({"t": {"$gte": START + 6 * TEN_MINUTES}}, [6, 7]),
        ({"$expr": {"$gt": ["$temp", {"$multiply": ["$_id", 5]}]}}, [0, 1, 2, 4]),
        ({"$jsonSchema": {"required": ["tags"], "properties": {"temp": {"minimum": 15}}}}, [0, 1, 2, 5, 6]),
    ]:
        equal((filter, ids(air.find(filter))), (filter, expected))
    equal(code_of(lambda: list(air.find({"temp": {"$noSuch": 1}}))), 2)


def tour_expressions(air):
    found = air.aggregate([
        {"$match": {"_id": 1}},
        {"$project": {
            "fahrenheit": {"$add": [{"$multiply": ["$temp", 1.8]}, 32]},
            "at": {"$dateToString": {"date": "$t", "format": "%H:%M"}},
            "tokyo": {"$hour": {"date": "$t", "timezone": "Asia/Tokyo"}},
            "hour": {"$dateTrunc": {"date": "$t", "unit": "hour"}},
            "label": {"$concat": [{"$toUpper": "$room.name"}, "-", {"$toString": "$_id"}]},
            "lengths": {"$map": {"input": "$tags", "as": "tag", "in": {"$strLenCP": "$$tag"}}},
            "sum": {"$reduce": {"input": [1, 2, 3], "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}},
            "both": {"$setIntersection": [["dry", "wet"], "$tags"]},
            "state": {"$switch": {"branches": [{"case": {"$lt": ["$temp", 16]}, "then": "cool"}], "default": "warm"}},
            "none": {"$ifNull": ["$nothing", "-"]},
            "type": {"$type": "$temp"},
        }},
    ])
    equal(list(found), [{
        "_id": 1, "fahrenheit": 59.0, "at": "00:10", "tokyo": 9, "hour": START, "label": "ATTIC-1", "lengths": [4, 3],
        "sum": 6, "both": ["dry"], "state": "cool", "none": "-", "type": "int",
    }])
    equal(code_of(lambda: list(air.aggregate([{"$project": {"a": {"$divide": [1, 0]}}}]))), 16608)


def tour_accumulators(air):
    found = air.aggregate([
        {"$sort": {"t": 1}},
        {"$group": {
            "_id": "$room.name", "n": {"$sum": 1}, "sum": {"$sum": "$temp"}, "mean": {"$avg": "$temp"},
            "least": {"$min": "$temp"}, "most": {"$max": "$temp"}, "first": {"$first": "$temp"}, "last": {"$last": "$temp"},
            "ids": {"$push": "$_id"}, "warmest": {"$top": {"sortBy": {"temp": -1}, "output": "$_id"}},
            "median": {"$median": {"input": "$temp", "method": "approximate"}},
        }},
        {"$sort": {"_id": 1}},
    ])
    equal(list(found), [
        {"_id": "attic", "n": 4, "sum": 45, "mean": 15.0, "least": 14, "most": 16, "first": 15, "last": 16,
         "ids": [1, 3, 5, 7], "warmest": 7, "median": 15.0},
        {"_id": "hall", "n": 4, "sum": 82, "mean": 20.5, "least": 19, "most": 22, "first": 20, "last": 19,
         "ids": [0, 2, 4, 6], "warmest": 4, "median": 20.0},
    ])


def tour_windows(air):
    found = air.aggregate([
        {"$setWindowFields": {"partitionBy": "$room.name", "sortBy": {"t": 1}, "output": {
            "mean": {"$avg": "$temp", "window": {"documents": [-1, 0]}},
            "recent": {"$sum": "$temp", "window": {"range": [-20, 0], "unit": "minute"}},
            "before": {"$shift": {"output": "$temp", "by": -1}},
            "slope": {"$derivative": {"input": "$temp", "unit": "minute"}, "window": {"documents": [-1, 0]}},
            "known": {"$locf": "$temp"},
            "number": {"$documentNumber": {}},
        }}},
        {"$sort": {"_id": 1}},
        {"$project": {"mean": 1, "recent": 1, "before": 1, "slope": {"$round": ["$slope", 3]}, "known": 1, "number": 1}},
    ])
    keys = ["_id", "mean", "recent", "before", "slope", "known", "number"]
    equal([[d[k] for k in keys] for d in found], [
        [0, 20.0, 20, None, None, 20, 1],
        [1, 15.0, 15, None, None, 15, 1],
        [2, 20.5, 41, 20, 0.05, 21, 2],
        [3, 14.5, 29, 15, -0.05, 14, 2],
        [4, 21.5, 43, 21, 0.05, 22, 3],
        [5, 14.0, 14, 14, None, 14, 3],
        [6, 20.5, 41, 22, -0.15, 19, 4],
        [7, 16.0, 16, None, None, 16, 4],
    ])


def tour_stages(air):
    ask = lambda *stages: list(air.aggregate(list(stages)))
    equal(ask({"$bucket": {"groupBy": "$temp", "boundaries": [0, 15, 20], "default": "other"}}), [
        {"_id": 0, "count": 1}, {"_id": 15, "count": 3}, {"_id": "other", "count": 4},
    ])
    equal(ask({"$unwind": "$tags"}, {"$sortByCount": "$tags"}, {"$sort": {"count": -1, "_id": 1}}), [
        {"_id": "cold", "count": 3}, {"_id": "dry", "count": 3}, {"_id": "wet", "count": 1},
    ])
    warm = [{"$match": {"temp": {"$gt": 21}}}, {"$project": {"_id": 1}}]
    equal(ask({"$facet": {"all": [{"$count": "n"}], "warm": warm}}), [{"all": [{"n": 8}], "warm": [{"_id": 4}]}])
    lookup = {"from": "owners", "localField": "room.name", "foreignField": "_id", "as": "owner"}
    equal(ask({"$match": {"_id": 0}}, {"$lookup": lookup}, {"$project": {"owner": "$owner.name"}}), [{"_id": 0, "owner": ["Ada"]}])
    walk = {"from": "owners", "startWith": "$room.name", "connectFromField": "boss", "connectToField": "_id", "as": "chain"}
    [found] = ask({"$match": {"_id": 1}}, {"$graphLookup": walk}, {"$project": {"names": "$chain.name"}})
    equal(sorted(found["names"]), ["Ada", "Bob"])
    equal(ask({"$unionWith": "owners"}, {"$count": "n"}), [{"n": 10}])
    equal(
        ask(
            {"$match": {"room.name": "hall", "_id": {"$lte": 2}}},
            {"$densify": {"field": "t", "range": {"step": 10, "unit": "minute", "bounds": "full"}}},
            {"$fill": {"sortBy": {"t": 1}, "output": {"temp": {"method": "linear"}}}},
            {"$project": {"_id": 0, "temp": 1}},
        ),
        [{"temp": 20}, {"temp": 20.5}, {"temp": 21}],
    )
    equal(ask({"$sort": {"temp": -1}}, {"$skip": 1}, {"$limit": 1}, {"$replaceWith": {"id": "$_id"}}), [{"id": 2}])
    equal(ask({"$sample": {"size": 5}}, {"$count": "n"}), [{"n": 5}])
    equal(code_of(lambda: ask({"$limit": 0})), 15958)


def tour_out_and_merge(air):
    means = db["means"]
    air.aggregate([{"$group": {"_id": "$room.name", "mean": {"$avg": "$temp"}}}, {"$out": "means"}])
    equal(list(means.find().sort("_id")), [{"_id": "attic", "mean": 15.0}, {"_id": "hall", "mean": 20.5}])
    counts = {"$group": {"_id": "$room.name", "n": {"$sum": 1}}}
    air.aggregate([counts, {"$merge": {"into": "means", "whenMatched": "merge", "whenNotMatched": "fail"}}])
    equal(means.find_one({"_id": "hall"}), {"_id": "hall", "mean": 20.5, "n": 4})
    options = {"timeField": "t", "metaField": "room"}
    air.aggregate([{"$out": {"db": db.name, "coll": "copy", "timeseries": options}}])
    copy = db["copy"]
    equal(copy.options()["timeseries"]["metaField"], "room")
    equal(list(copy.find().sort("_id")), DOCUMENTS)
    copy.drop()
    means.drop()
    # A mongos has a code of its own.
    assert code_of(lambda: air.aggregate([{"$merge": {"into": "x", "on": "temp"}}])) in (51183, 51190)


def tour_collation(air):
    loose = Collation(locale="en", strength=2)
    equal(ids(air.find({"room.name": "HALL"}, collation=loose)), [0, 2, 4, 6])
    equal(ids(air.find({"room.name": "HALL"})), [])
    groups = air.aggregate([{"$group": {"_id": {"$eq": ["$room.name", "Attic"]}, "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}], collation=loose)
    equal(list(groups), [{"_id": False, "n": 4}, {"_id": True, "n": 4}])
    labels = [{"$documents": [{"l": "b"}, {"l": "a10"}, {"l": "a9"}]}, {"$sort": {"l": 1}}]
    numeric = Collation(locale="en", numericOrdering=True)
    equal([d["l"] for d in db.aggregate(labels, collation=numeric)], ["a9", "a10", "b"])


def tour_geo(air):
    air.create_index([("room.place", "2dsphere")])
    circle = {"$centerSphere": [[0, 0], 500 / 6378100]}
    equal(ids(air.find({"room.place": {"$geoWithin": circle}})), [0, 2, 4, 6])
    square = [[-1, -1], [0.005, -1], [0.005, 1], [-1, 1], [-1, -1]]
    area = {"$geometry": {"type": "Polygon", "coordinates": [square]}}
    equal(ids(air.find({"room.place": {"$geoIntersects": area}})), [0, 2, 4, 6])
    near = {"near": {"type": "Point", "coordinates": [0, 0]}, "key": "room.place", "distanceField": "d", "maxDistance": 2000}
    if has("geo_near"):
        found = air.aggregate([{"$geoNear": near}, {"$group": {"_id": {"$round": "$d"}, "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}])
        equal(list(found), [{"_id": 0.0, "n": 4}, {"_id": 1113.0, "n": 4}])
    equal(code_of(lambda: list(air.find({"room.place": {"$geoWithin": {"$geometry": near["near"]}}}))), 2)


def tour_hint_and_explain(air):
    name = air.create_index([("room.name", 1), ("t", -1)], name="by_room")
    equal(name, "by_room")
    equal("by_room" in air.index_information(), True)
    filter = {"room.name": "hall", "t": {"$gte": START + 2 * TEN_MINUTES}}
    equal(ids(air.find(filter).hint("by_room")), [2, 4, 6])
    equal(ids(air.find(filter).hint([("room.name", 1), ("t", -1)])), [2, 4, 6])
    plan = lambda hint: str({k: v for k, v in air.find(filter).hint(hint).explain().items() if k != "command"})
    by_index, by_order = plan("by_room"), plan([("$natural", 1)])
    assert "IXSCAN" in by_index and "by_room" in by_index, by_index
    assert "by_room" not in by_order, by_order
    ran = db.command("explain", {"count": air.name, "query": {"room.name": "hall"}}, verbosity="executionStats")
    assert "executionStats" in str(ran), ran
    equal(code_of(lambda: list(air.find(filter).hint("no_such_index"))), 2)
    air.drop_index("by_room")


def tour_cursors(air):
    equal([d["_id"] for d in air.find().sort("t", -1).batch_size(3)], list(range(7, -1, -1)))
    equal([d["_id"] for d in air.find().sort("t", 1).skip(2).limit(3)], [2, 3, 4])
    equal([d["_id"] for d in air.aggregate([{"$sort": {"t": 1}}], batchSize=3, allowDiskUse=True)], list(range(8)))
    equal(air.find_one({"_id": 2}, {"_id": 0, "temp": 1, "room.name": 1}), {"room": {"name": "hall"}, "temp": 21})
    equal(ids(air.find({"$expr": {"$gt": ["$temp", "$$least"]}}, let={"least": 20}, comment="tour", max_time_ms=10_000)), [2, 4])
    equal(sorted(air.distinct("tags")), ["cold", "dry", "wet"])
    equal((air.count_documents({"temp": {"$gt": 15}}), air.estimated_document_count()), (5, 8))
    with air.find(batch_size=2, no_cursor_timeout=True) as cursor:
        next(cursor)
        assert cursor.alive and cursor.cursor_id
    # A time series is read through a view; an ordinary collection would have to be capped.
    expected = 168 if air.name == "series" else 2
    if expected == 168 or has("tailable_cursors"):
        equal(code_of(lambda: db.command("find", air.name, tailable=True)), expected)


def tour_end(air):
    air.drop()
    equal(air.name in db.list_collection_names(), False)


CHECKS = [
    tour_begin, tour_match, tour_expressions, tour_accumulators, tour_windows, tour_stages, tour_out_and_merge,
    tour_collation, tour_geo, tour_hint_and_explain, tour_cursors, tour_end,
]


def run(report):
    """Reports each check, done on both kinds of collection."""
    client.drop_database(db.name)
    for check in CHECKS:
        def on_both():
            for name in ("series", "plain"):
                try:
                    check(db[name])
                except AssertionError as e:
                    raise AssertionError(f"{name}: {e}") from e
        report(check.__name__, on_both)
    client.drop_database(db.name)
