"""What analysts' programs read of `/api/query` and of files written by `nilometer export`: pandas, Polars, DuckDB, pyarrow.

Reads NILOMETER_URI, NILOMETER_WEB and NILOMETER_BINARY, of a server with the feature `arrow`; prints one line per check, `ok NAME`
or `not ok NAME: reason`. The names are listed in xtask/src/conformance/checks.rs.
"""

import datetime
import io
import json
import os
import subprocess
import tempfile
import traceback
import urllib.error
import urllib.parse
import urllib.request

import duckdb
import pandas
import polars
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pymongo
from pymongoarrow.api import Schema, find_arrow_all

URI = os.environ["NILOMETER_URI"]
WEB = os.environ["NILOMETER_WEB"]
DB = "conformance_columns"
ROWS = 30_000
START = datetime.datetime(2024, 5, 1, tzinfo=datetime.timezone.utc)
mongo = pymongo.MongoClient(URI, tz_aware=True)
collection = mongo[DB]["cpu"]


def equal(got, expected):
    assert got == expected, f"got {got!r}, expected {expected!r}"


def fill():
    mongo.drop_database(DB)
    mongo[DB].create_collection("cpu", timeseries={"timeField": "time", "metaField": "tags"})
    documents = []
    for i in range(ROWS):
        document = {
            "_id": i,
            "time": START + datetime.timedelta(seconds=i // 10),
            "tags": {"host": f"h{i % 10}", "rack": i % 3},
            "usage": i / 8,
            "count": i << 33,
            "up": i % 2 == 0,
        }
        if i % 5:
            document["note"] = f"no {i}"
        documents.append(document)
    collection.insert_many(documents)


def query(format, **parameters):
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in parameters.items()}
    target = urllib.parse.urlencode({"database": DB, "collection": "cpu", "format": format, **texts})
    return urllib.request.urlopen(f"{WEB.rstrip('/')}/api/query?{target}")


def table(**parameters):
    with query("arrow", **parameters) as answer:
        return pyarrow.ipc.open_stream(answer).read_all()


def check_frame(frame):
    """A frame of pandas, against the documents of the same query."""
    equal(len(frame), ROWS)
    frame = frame.sort_values("_id").reset_index(drop=True)
    for i, document in enumerate(collection.find(sort=[("_id", 1)], limit=50)):
        row = frame.iloc[i]
        equal(row["time"].to_pydatetime(), document["time"])
        equal((row["tags.host"], int(row["tags.rack"])), (document["tags"]["host"], document["tags"]["rack"]))
        equal((float(row["usage"]), int(row["count"]), bool(row["up"])), tuple(document[n] for n in ("usage", "count", "up")))
        equal(None if pandas.isna(row["note"]) else row["note"], document.get("note"))


def columns_pyarrow():
    read = table()
    equal(read.schema.field("time").type, pyarrow.timestamp("ms", tz="UTC"))
    equal(read.schema.field("tags.host").type, pyarrow.dictionary(pyarrow.int32(), pyarrow.string()))
    equal(read.schema.field("usage").type, pyarrow.float64())
    equal(read.schema.field("count").type, pyarrow.int64())
    read.validate(full=True)
    documents = list(collection.find(sort=[("_id", 1)]))
    ids = read.column("_id").to_pylist()
    usage = dict(zip(ids, read.column("usage").to_pylist()))
    equal([usage[d["_id"]] for d in documents], [d["usage"] for d in documents])
    host = dict(zip(ids, read.column("tags.host").to_pylist()))
    equal([host[d["_id"]] for d in documents], [d["tags"]["host"] for d in documents])
    groups = table(pipeline=[{"$group": {"_id": "$tags.host", "most": {"$max": "$usage"}}}, {"$sort": {"_id": 1}}])
    expected = collection.aggregate([{"$group": {"_id": "$tags.host", "most": {"$max": "$usage"}}}, {"$sort": {"_id": 1}}])
    equal(groups.to_pylist(), list(expected))


def columns_pandas():
    check_frame(table().to_pandas())
    with query("parquet") as answer:
        check_frame(pandas.read_parquet(io.BytesIO(answer.read())))
    with query("csv") as answer:
        frame = pandas.read_csv(answer)
        equal(len(frame), ROWS)
        equal(frame["usage"].sum(), sum(i / 8 for i in range(ROWS)))


def columns_polars():
    with query("arrow") as answer:
        frame = polars.read_ipc_stream(io.BytesIO(answer.read()))
    equal(frame.height, ROWS)
    equal(frame["usage"].sum(), sum(i / 8 for i in range(ROWS)))
    equal(frame["note"].null_count(), ROWS // 5)
    equal(sorted(frame["tags.host"].cast(polars.String).unique()), [f"h{i}" for i in range(10)])
    equal(frame["time"].min(), START)
    with query("parquet") as answer:
        frame = polars.read_parquet(io.BytesIO(answer.read()))
    equal(frame["count"].max(), (ROWS - 1) << 33)
    with query("ndjson", filter={"_id": {"$lt": 10}}) as answer:
        equal(polars.read_ndjson(io.BytesIO(answer.read())).height, 10)


def columns_duckdb():
    read = table()
    con = duckdb.connect()
    con.register("cpu", read)
    found = con.sql('select "tags.host" host, max(usage) m, count(note) n from cpu group by all order by host').fetchall()
    stages = [
        {"$group": {"_id": "$tags.host", "m": {"$max": "$usage"}, "n": {"$sum": {"$cond": [{"$gt": ["$note", None]}, 1, 0]}}}},
        {"$sort": {"_id": 1}},
    ]
    equal(found, [(d["_id"], d["m"], d["n"]) for d in collection.aggregate(stages)])
    with tempfile.TemporaryDirectory() as folder, query("parquet") as answer:
        path = os.path.join(folder, "cpu.parquet")
        with open(path, "wb") as file:
            file.write(answer.read())
        equal(con.sql(f"select count(*) from '{path}'").fetchall(), [(ROWS,)])


def columns_pymongoarrow():
    schema = Schema({"_id": pyarrow.int32(), "usage": pyarrow.float64(), "count": pyarrow.int64()})
    documents = find_arrow_all(collection, {}, schema=schema).sort_by("_id")
    columns = table().select(["_id", "usage", "count"]).sort_by("_id")
    for name in ("_id", "usage", "count"):
        equal(columns.column(name).to_pylist(), documents.column(name).to_pylist())


def columns_files():
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cpu.arrow", "cpu.parquet"):
            path = os.path.join(folder, name)
            base = [os.environ["NILOMETER_BINARY"]]
            at = ["--uri", URI, "--db", DB]
            subprocess.run([*base, "export", *at, "--collection", "cpu", path], check=True, capture_output=True)
            if name.endswith("arrow"):
                with open(path, "rb") as file:
                    check_frame(pyarrow.ipc.open_stream(file).read_pandas())
            else:
                check_frame(pandas.read_parquet(path))
        # A file of another program, compressed.
        feather = os.path.join(folder, "other.feather")
        pandas.DataFrame({"a": [1, 2], "b.c": ["x", None], "t": pandas.to_datetime(["2024-05-01", "2024-05-02"])}).to_feather(feather)
        subprocess.run([*base, "import", *at, "--collection", "other", feather], check=True, capture_output=True)
        found = list(mongo[DB]["other"].find({}, {"_id": 0}).sort("a"))
        equal(found[0], {"a": 1, "b": {"c": "x"}, "t": START})
        equal(found[1], {"a": 2, "t": START + datetime.timedelta(days=1)})


def columns_errors():
    for parameters, status, text in [
        ({"what": "1"}, 400, "no parameter 'what'"),
        ({"filter": '{"a":'}, 400, "line 1"),
        ({"pipeline": [{"$out": "x"}]}, 403, "$out"),
    ]:
        try:
            query("arrow", **parameters)
        except urllib.error.HTTPError as e:
            equal(e.code, status)
            error = json.load(e)["error"]
            assert text in error, error
        else:
            raise AssertionError("no error")


CHECKS = [columns_pyarrow, columns_pandas, columns_polars, columns_duckdb, columns_pymongoarrow, columns_files, columns_errors]


def main():
    fill()
    for check in CHECKS:
        try:
            check()
        except Exception as e:  # noqa: BLE001
            traceback.print_exc()
            print(f"not ok {check.__name__}: {type(e).__name__}: {e}".replace("\n", " "), flush=True)
        else:
            print(f"ok {check.__name__}", flush=True)
    mongo.drop_database(DB)


main()
