"""What mongodump, mongorestore, mongoexport and mongoimport do with a server, and what comes back.

Reads NILOMETER_URI and NILOMETER_BINARY; the tools are on the PATH. Prints one line per check, `ok NAME` or
`not ok NAME: reason`. The names are listed in xtask/src/conformance/checks.rs. Copies go from the server at
NILOMETER_URI to servers that this program starts, and back.
"""

import contextlib
import datetime as dt
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import ports  # noqa: E402

URI = os.environ["NILOMETER_URI"]
BINARY = os.environ["NILOMETER_BINARY"]
START = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
START_SECONDS_MAX = 20
TOOL_SECONDS_MAX = 60
NAME = "conformance_tools"
MEASUREMENTS = 3000

folder = pathlib.Path(tempfile.mkdtemp(prefix="nilometer-tools-"))


def equal(got, expected):
    assert got == expected, f"got {got!r:.300}, expected {expected!r:.300}"


def tool(program, uri, *arguments):
    """Runs a tool; returns what it wrote to standard output."""
    done = subprocess.run(
        [program, f"--uri={uri}", *arguments],
        capture_output=True, timeout=TOOL_SECONDS_MAX, text=True, check=False,
    )
    assert done.returncode == 0, f"{program} {arguments}: {done.stderr[-600:]}"
    assert "Failed" not in done.stderr, done.stderr[-600:]
    return done.stdout


@contextlib.contextmanager
def server(*arguments):
    """A server of its own; yields its address."""
    port = ports.free_port(ports.TOOLS)
    data = tempfile.mkdtemp(dir=folder)
    process = subprocess.Popen(
        [BINARY, "serve", "--dbpath", data, "--port", str(port), "--bind_ip", "127.0.0.1",
         "--quiet", *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + START_SECONDS_MAX
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert time.monotonic() < until, "the server does not start"
            time.sleep(0.05)
        yield f"mongodb://127.0.0.1:{port}/"
    finally:
        process.terminate()
        assert process.wait(START_SECONDS_MAX) == 0, "the server ended badly"
        shutil.rmtree(data, ignore_errors=True)


def fill(client, name=NAME):
    """A database with a collection of each kind."""
    client.drop_database(name)
    db = client[name]
    db.create_collection("readings", timeseries={
        "timeField": "time", "metaField": "sensor", "granularity": "seconds"})
    for part in range(3):
        db.readings.insert_many([
            {"time": START + dt.timedelta(seconds=7 * i), "sensor": {"n": i % 5},
             "value": i * 0.5, "text": "x" * (i % 9)}
            for i in range(part, MEASUREMENTS, 3)])
    # A bucket that is no longer the newest of its series, and one that was changed.
    db.readings.delete_many({"sensor.n": 2, "value": {"$lt": 100}})
    db.readings.create_index([("sensor.n", 1), ("time", -1)], name="by_sensor")
    db.plain.insert_many([{"_id": i, "a": i % 10, "b": {"c": [i, str(i)]}} for i in range(500)])
    db.plain.create_index("a", name="a_1")
    db.plain.create_index([("b.c", 1)], name="several", sparse=True)
    db.create_collection("capped", capped=True, size=65536, max=100)
    db.capped.insert_many([{"_id": i} for i in range(150)])
    db.create_collection("checked", validator={"n": {"$gte": 0}}, collation={"locale": "de"})
    db.checked.insert_one({"_id": "ä", "n": 1})
    db.create_collection("few", viewOn="plain", pipeline=[{"$match": {"a": 3}}])
    return db


def raw(db, name):
    """The bytes of all documents of a stored collection, by `_id`."""
    found = db[name].with_options(
        codec_options=db.codec_options.with_options(document_class=RawBSONDocument)).find()
    return sorted(document.raw for document in found)


STORED = ["system.buckets.readings", "plain", "capped", "checked"]


def contents(db):
    """Everything a restore must bring back, as bytes where bytes must be the same."""
    listed = {}
    for entry in db.list_collections():
        entry.get("info", {}).pop("uuid", None)
        listed[entry["name"]] = entry
    indexes = {
        name: sorted(index["name"] for index in db[name].list_indexes())
        for name in ["readings", "plain", "capped", "checked"]
    }
    return listed, indexes, {name: raw(db, name) for name in STORED}


def users_of(client):
    users = raw(client.admin, "system.users")
    roles = raw(client.admin, "system.roles")
    return users, roles


def create_users(client, name=NAME):
    db = client[name]
    db.command("createRole", "watcher", roles=["read"], privileges=[])
    db.command("createUser", "gauge", pwd="weir", roles=["watcher", "readWrite"])
    client.admin.command("createUser", "keeper", pwd="sluice", roles=["root"],
                         customData={"since": 1824}, mechanisms=["SCRAM-SHA-256"])


def drop_users(client, name=NAME):
    client[name].command("dropAllUsersFromDatabase")
    client[name].command("dropAllRolesFromDatabase")
    client.admin.command("dropUser", "keeper")


def dump_everything_and_restore():
    with MongoClient(URI) as source, server() as uri, MongoClient(uri) as target:
        db = fill(source)
        create_users(source)
        path = str(folder / "everything")
        tool("mongodump", URI, f"--out={path}")
        assert (folder / "everything/admin/system.users.bson").exists()
        tool("mongorestore", uri, path)
        equal(contents(target[NAME]), contents(db))
        equal(users_of(target), users_of(source))
        with MongoClient(uri, username="keeper", password="sluice") as keeper:
            keeper[NAME].plain.find_one()
        # And back, over what is there.
        db.plain.update_many({}, {"$set": {"a": -1}})
        back = str(folder / "back")
        tool("mongodump", uri, f"--out={back}")
        tool("mongorestore", URI, "--drop", back)
        equal(contents(db), contents(target[NAME]))
        drop_users(source)


def restore_an_archive_under_other_names():
    with MongoClient(URI) as source, server() as uri, MongoClient(uri) as target:
        db = fill(source)
        archive = str(folder / "archive.gz")
        tool("mongodump", URI, f"--db={NAME}", f"--archive={archive}", "--gzip")
        tool("mongorestore", uri, f"--archive={archive}", "--gzip",
             f"--nsFrom={NAME}.*", "--nsTo=other.*")
        equal(contents(target["other"]), contents(db))
        assert NAME not in target.list_database_names()


def restore_compressed_files():
    with MongoClient(URI) as source, server() as uri, MongoClient(uri) as target:
        db = fill(source)
        path = str(folder / "compressed")
        tool("mongodump", URI, f"--db={NAME}", f"--out={path}", "--gzip")
        tool("mongorestore", uri, "--gzip", path)
        equal(contents(target[NAME]), contents(db))


def dump_what_a_query_finds():
    with MongoClient(URI) as source, server() as uri, MongoClient(uri) as target:
        fill(source)
        path = str(folder / "query")
        tool("mongodump", URI, f"--db={NAME}", "--collection=plain", f"--out={path}",
             '--query={"a": {"$lt": 3}}')
        tool("mongorestore", uri, path)
        equal(target[NAME].plain.count_documents({}), 150)
        series = str(folder / "series")
        tool("mongodump", URI, f"--db={NAME}", "--collection=readings", f"--out={series}",
             '--query={"sensor": {"n": 1}}')
        tool("mongorestore", uri, series)
        equal(target[NAME].readings.distinct("sensor.n"), [1])
        equal(target[NAME].readings.count_documents({}), MEASUREMENTS // 5)


def drop_before_restore():
    with MongoClient(URI) as source:
        db = fill(source)
        before = contents(db)
        path = str(folder / "drop")
        tool("mongodump", URI, f"--db={NAME}", f"--out={path}")
        db.readings.delete_many({})
        db.readings.insert_one({"time": START, "sensor": "new"})
        db.plain.insert_one({"_id": "new"})
        db.plain.drop_index("a_1")
        tool("mongorestore", URI, "--drop", path)
        equal(contents(db), before)


def dump_and_restore_rollups():
    """The definitions come back, by name before what they stand on, and the bins are computed again."""
    with MongoClient(URI) as source, server() as uri, MongoClient(uri) as target:
        db = fill(source)
        trunc = lambda unit: {"$dateTrunc": {"date": "$time", "unit": unit}}
        for name, below, stage in [
            ("hours", "readings", {"_id": {"n": "$sensor.n", "time": trunc("hour")},
                                   "mean": {"$avg": "$value"}, "count": {"$count": {}}}),
            ("days", "hours", {"_id": {"n": "$n", "time": trunc("day")}, "mean": {"$avg": "$mean"}}),
        ]:
            rollup = {"source": below, "pipeline": [{"$group": stage}], "lateness": 0, "refresh": 0}
            db.command({"create": name, "rollup": rollup})
        db.command({"refreshRollup": "hours"})
        db.hours.create_index([("n", 1), ("time", 1)])
        path = str(folder / "rollups")
        tool("mongodump", URI, f"--db={NAME}", f"--out={path}")
        tool("mongorestore", uri, path)
        equal(contents(target[NAME]), contents(db))
        target[NAME].command({"refreshRollup": "days"})
        for name in ["days", "hours"]:
            found, expected = (list(of[name].find().sort("_id", 1)) for of in (target[NAME], db))
            assert found, name
            equal(found, expected)
        equal(target[NAME].hours.index_information(), db.hours.index_information())
        lines = tool("mongoexport", uri, f"--db={NAME}", "--collection=hours").splitlines()
        equal(len(lines), db.hours.count_documents({}))


def uuids(db):
    """The UUIDs that a dump holds: a time series is listed without one, so its buckets get a new one."""
    listed = {entry["name"]: entry["info"].get("uuid") for entry in db.list_collections()}
    listed.pop("system.buckets.readings")
    return listed


def preserve_uuids():
    with MongoClient(URI) as source, server() as uri, MongoClient(uri) as target:
        db = fill(source)
        path = str(folder / "uuids")
        tool("mongodump", URI, f"--db={NAME}", f"--out={path}")
        fill(target)
        tool("mongorestore", uri, "--drop", "--preserveUUID", path)
        equal(contents(target[NAME]), contents(db))
        equal(uuids(target[NAME]), uuids(db))
        tool("mongorestore", uri, "--drop", "--preserveUUID", path)
        equal(contents(target[NAME]), contents(db))
        equal(uuids(target[NAME]), uuids(db))


def users_of_one_database():
    with MongoClient(URI) as source, server() as uri, MongoClient(uri) as target:
        fill(source)
        create_users(source)
        path = str(folder / "users")
        tool("mongodump", URI, f"--db={NAME}", f"--out={path}", "--dumpDbUsersAndRoles")
        tool("mongorestore", uri, f"--db={NAME}", "--restoreDbUsersAndRoles", f"{path}/{NAME}")
        users = [user["user"] for user in target.admin["system.users"].find()]
        equal(users, ["gauge"])
        with MongoClient(uri, username="gauge", password="weir", authSource=NAME) as gauge:
            gauge[NAME].plain.find_one()
        drop_users(source)


def log_in_to_dump_and_restore():
    with server("--auth") as uri:
        with MongoClient(uri) as first:
            first.admin.command("createUser", "root", pwd="pencil", roles=["root"])
        address = uri.removeprefix("mongodb://")
        as_user = lambda user: f"mongodb://{user}:pencil@{address}?authSource=admin"
        with MongoClient(as_user("root")) as root:
            for role in ["backup", "restore"]:
                # One mechanism only: the tools must find it out.
                root.admin.command("createUser", role, pwd="pencil", roles=[role],
                                   mechanisms=["SCRAM-SHA-256"])
            root.admin.command("createUser", "old", pwd="pencil", roles=["backup"],
                               mechanisms=["SCRAM-SHA-1"])
            db = fill(root)
            create_users(root)
            expected = contents(db)
            path = str(folder / "login")
            for user in ["backup", "old"]:
                shutil.rmtree(path, ignore_errors=True)
                tool("mongodump", as_user(user), f"--out={path}")
            users = users_of(root)
            root.drop_database(NAME)
            root[NAME].command("dropAllUsersFromDatabase")
            tool("mongorestore", as_user("restore"), "--drop", "--preserveUUID", path)
            equal(contents(root[NAME]), expected)
            equal(users_of(root), users)


def export_and_import():
    with MongoClient(URI) as source, server() as uri, MongoClient(uri) as target:
        db = fill(source)
        path = str(folder / "plain.json")
        tool("mongoexport", URI, f"--db={NAME}", "--collection=plain", f"--out={path}",
             "--jsonFormat=canonical")
        tool("mongoimport", uri, f"--db={NAME}", "--collection=plain", f"--file={path}")
        equal(raw(target[NAME], "plain"), raw(db, "plain"))
        # Again, merged by `_id` over other values.
        target[NAME].plain.update_many({}, {"$set": {"a": -1}, "$unset": {"b": 1}})
        tool("mongoimport", uri, f"--db={NAME}", "--collection=plain", f"--file={path}",
             "--mode=merge")
        equal(target[NAME].plain.count_documents({"a": {"$gte": 0}, "b": {"$exists": True}}), 500)
        some = tool("mongoexport", URI, f"--db={NAME}", "--collection=plain", "--type=csv",
                    "--fields=_id,a", '--query={"a": 3}', '--sort={"_id": 1}', "--limit=2")
        equal(some.split(), ["_id,a", "3,3", "13,3"])
        series = str(folder / "readings.json")
        tool("mongoexport", URI, f"--db={NAME}", "--collection=readings", f"--out={series}",
             "--jsonFormat=canonical", '--sort={"time": 1}')
        lines = pathlib.Path(series).read_text().splitlines()
        equal(len(lines), db.readings.count_documents({}))
        assert "$date" in json.loads(lines[0])["time"], lines[0]
        target[NAME].create_collection("readings", timeseries={
            "timeField": "time", "metaField": "sensor", "granularity": "seconds"})
        tool("mongoimport", uri, f"--db={NAME}", "--collection=readings", f"--file={series}")
        order = [("time", 1), ("_id", 1)]
        equal(list(target[NAME].readings.find().sort(order)), list(db.readings.find().sort(order)))


class Writer(threading.Thread):
    """Writes in a known order: a document, a measurement, a counter; and moves money in transactions."""

    def __init__(self, uri, name, number):
        super().__init__()
        self.uri, self.name, self.number = uri, name, number
        self.stopped = threading.Event()
        self.failure = None
        self.written = 0

    def run(self):
        try:
            with MongoClient(self.uri) as client:
                db = client[self.name]
                while not self.stopped.is_set():
                    self.write(client, db, self.written)
                    self.written += 1
        except Exception as e:  # noqa: BLE001, raised by the check
            self.failure = e

    def write(self, client, db, i):
        mine = {"w": self.number}
        db.plain.insert_one({**mine, "_id": f"{self.number}-{i}", "n": i, "list": [i]})
        db.readings.insert_many([
            {"time": START + dt.timedelta(seconds=60 * i), "sensor": {**mine, "n": (i + k) % 3},
             "n": i, "k": k, "value": i * 0.5} for k in range(3)])
        # All writers share this series, and so its buckets. Drivers give each measurement an `_id`.
        db.readings.insert_one({"time": START + dt.timedelta(seconds=i), "sensor": "shared",
                                "w": self.number, "n": i})
        db.counters.update_one({"_id": self.number}, {
            "$set": {"n": i, f"nested.{i % 7}": i}, "$push": {"last": {"$each": [i], "$slice": -3}}})
        db.plain.update_one({"_id": f"{self.number}-{i // 2}"}, {"$set": {"changed": i}, "$unset": {"list": 1}})
        if i % 10 == 9:
            db.readings.delete_many({"sensor.w": self.number, "n": i - 5})
        if i % 25 == 24:
            db.readings.update_many({"sensor": {**mine, "n": 1}}, {"$set": {"sensor": {**mine, "n": 4}}})
        with client.start_session() as session:
            def transfer(session):
                db.accounts.update_one({"_id": i % 5}, {"$inc": {"sum": -1}}, session=session)
                db.accounts.update_one({"_id": (i + self.number + 1) % 5}, {"$inc": {"sum": 1}}, session=session)
            session.with_transaction(transfer)


def check_prefix(db, number, least):
    """The contents must be those after some write of the writer."""
    counter = db.counters.find_one({"_id": number})["n"]
    plain = sorted(d["n"] for d in db.plain.find({"w": number}))
    equal(plain, list(range(len(plain))))
    assert counter <= plain[-1] <= counter + 1, (counter, plain[-1])
    assert counter + 1 >= least, (counter, least)
    readings = sorted((d["n"], d["k"]) for d in db.readings.find({"sensor.w": number}))
    last = readings[-1][0]
    assert counter <= last <= plain[-1], (counter, last, plain[-1])
    shared = sorted(d["n"] for d in db.readings.find({"sensor": "shared", "w": number}))
    equal(shared, list(range(len(shared))))
    assert counter <= shared[-1] <= last, (counter, shared[-1], last)
    expected = {(n, k) for n in range(last + 1) for k in range(3)}
    # The delete behind the last counter may be missing, as a whole.
    gone = {(i - 5, k) for i in range(9, counter, 10) for k in range(3)}
    maybe = {(counter - 5, k) for k in range(3)} if counter % 10 == 9 else set()
    assert set(readings) in (expected - gone, expected - gone - maybe), f"{number}: not a prefix"
    equal(len(readings), len(set(readings)))


def dump_with_the_oplog_under_load():
    with (server("--replSet", "rs") as source_uri, server("--replSet", "rs") as target_uri,
          MongoClient(source_uri) as source, MongoClient(target_uri) as target):
        db = source[NAME]
        db.create_collection("readings", timeseries={"timeField": "time", "metaField": "sensor"})
        db.accounts.insert_many([{"_id": i, "sum": 100} for i in range(5)])
        db.counters.insert_many([{"_id": i, "n": -1} for i in range(3)])
        db.create_collection("plain")
        writers = [Writer(source_uri, NAME, number) for number in range(3)]
        for writer in writers:
            writer.start()
        try:
            while any(writer.written < 60 and writer.failure is None for writer in writers):
                time.sleep(0.05)
            for part in range(3):
                before = [writer.written for writer in writers]
                path = str(folder / f"oplog{part}")
                tool("mongodump", source_uri, "--oplog", f"--out={path}")
                tool("mongorestore", target_uri, "--oplogReplay", "--drop", path)
                restored = target[NAME]
                equal(sum(d["sum"] for d in restored.accounts.find()), 500)
                for number, least in enumerate(before):
                    check_prefix(restored, number, least)
                assert restored.command("validate", "readings")["valid"]
        finally:
            for writer in writers:
                writer.stopped.set()
            for writer in writers:
                writer.join()
        for writer in writers:
            if writer.failure is not None:
                raise writer.failure
        # Without writers, all is there.
        path = str(folder / "oplog")
        tool("mongodump", source_uri, "--oplog", f"--out={path}")
        tool("mongorestore", target_uri, "--oplogReplay", "--drop", path)
        for name in ["plain", "counters", "accounts"]:
            equal(raw(target[NAME], name), raw(db, name))
        order = [("time", 1), ("_id", 1)]
        equal(list(target[NAME].readings.find().sort(order)), list(db.readings.find().sort(order)))


CHECKS = [
    dump_with_the_oplog_under_load,
    dump_everything_and_restore,
    restore_an_archive_under_other_names,
    restore_compressed_files,
    dump_what_a_query_finds,
    drop_before_restore,
    dump_and_restore_rollups,
    preserve_uuids,
    users_of_one_database,
    log_in_to_dump_and_restore,
    export_and_import,
]

for check in CHECKS:
    try:
        check()
        print(f"ok {check.__name__}", flush=True)
    except Exception as e:  # noqa: BLE001, the reason goes into the report
        last = traceback.extract_tb(e.__traceback__)[-1]
        reason = " ".join(f"{type(e).__name__}: {e} ({last.name}:{last.lineno})".split())
        print(f"not ok {check.__name__}: {reason}", flush=True)
shutil.rmtree(folder, ignore_errors=True)
