"""What a Python program does with InfluxDB, through the clients of its versions 1 and 2, and what Grafana sends.

Reads NILOMETER_INFLUX; prints one line per check, `ok NAME` or `not ok NAME: reason`. The names are listed in
xtask/src/conformance/checks.rs.
"""

import os
import traceback
import urllib.parse

import requests
from influxdb import InfluxDBClient
from influxdb.exceptions import InfluxDBClientError
from influxdb_client import InfluxDBClient as InfluxDBClient2
from influxdb_client import Point, WritePrecision
from influxdb_client.client.write_api import SYNCHRONOUS
from influxdb_client.rest import ApiException

URL = urllib.parse.urlparse(os.environ["NILOMETER_INFLUX"])
DB = "conformance_influx"
START = 1_700_000_000
client = InfluxDBClient(host=URL.hostname, port=URL.port, database=DB)


def equal(got, expected):
    assert got == expected, f"got {got!r}, expected {expected!r}"


def refused(action, status):
    try:
        action()
    except (InfluxDBClientError, ApiException) as e:
        equal(getattr(e, "code", None) or e.status, status)
        return str(getattr(e, "content", None) or e.body)
    raise AssertionError("no error")


def influx_ping():
    assert client.ping().startswith("1.8"), client.ping()


def influx_databases():
    client.create_database(DB)
    client.create_database("conformance_other")
    names = [one["name"] for one in client.get_list_database()]
    assert DB in names and "conformance_other" in names, names
    policies = client.get_list_retention_policies(DB)
    equal([(one["name"], one["default"]) for one in policies], [("autogen", True)])
    client.drop_database("conformance_other")
    assert "conformance_other" not in [one["name"] for one in client.get_list_database()]


def influx_write_points():
    points = [
        {
            "measurement": "cpu",
            "tags": {"host": f"h{i % 2}", "region": "eu west"},
            "time": (START + 10 * i) * 1_000_000_000,
            "fields": {"usage": i / 2, "cores": i, "up": i % 3 == 0, "note": 'a "quoted", text'},
        }
        for i in range(60)
    ]
    assert client.write_points(points, batch_size=25)
    assert client.write(["m,t=x v=1 1000", "m,t=x v=2 2000"], params={"db": DB, "precision": "ms"}, protocol="line")


def influx_write_gzip():
    packed = InfluxDBClient(host=URL.hostname, port=URL.port, database=DB, gzip=True)
    point = {"measurement": "packed", "time": START, "fields": {"v": 1.5}}
    assert packed.write_points([point], time_precision="s")
    equal(list(client.query("SELECT v FROM packed", epoch="s").get_points()), [{"time": START, "v": 1.5}])


def influx_write_v2():
    with InfluxDBClient2(url=URL.geturl(), token="user:password", org="o", enable_gzip=True) as v2:
        write = v2.write_api(write_options=SYNCHRONOUS)
        point = Point("two").tag("host", "a").field("v", 3).time(START, WritePrecision.S)
        write.write(bucket=f"{DB}/autogen", record=point, write_precision=WritePrecision.S)
        bad = refused(lambda: write.write(bucket=DB, record='two v="text" 5'), 400)
        assert "already exists as type integer" in bad, bad
    equal(list(client.query("SELECT v FROM two", epoch="s").get_points()), [{"time": START, "v": 3}])


def influx_partial_write():
    lines = "m,t=x v=3 3000\nm,t=x v=\"text\" 4000\nm,t=x 5000\nm,t=x v=6 6000"
    text = refused(lambda: client.write(lines.split("\n"), params={"db": DB, "precision": "ms"}, protocol="line"), 400)
    assert "line 2, column 7" in text and "line 3" in text and "dropped=2" in text, text
    values = [one["v"] for one in client.query("SELECT v FROM m", epoch="ms").get_points()]
    equal(values, [1, 2, 3, 6])


def influx_query_raw():
    result = client.query("SELECT * FROM cpu WHERE host = 'h1' LIMIT 2", epoch="s")
    first = {"time": START + 10, "host": "h1", "region": "eu west", "usage": 0.5, "cores": 1, "up": False, "note": 'a "quoted", text'}
    equal(next(result.get_points()), first)
    bound = client.query("SELECT usage FROM cpu WHERE host = $host AND cores > $cores", bind_params={"host": "h0", "cores": 56}, epoch="s")
    equal([one["usage"] for one in bound.get_points()], [29.0])


def influx_query_groups():
    query = f"SELECT mean(usage) FROM cpu WHERE time >= {START}s AND time < {START + 600}s GROUP BY time(5m), host fill(none)"
    result = client.query(query, epoch="s")
    keys = [key for key, _ in result.items()]
    equal(keys, [("cpu", {"host": "h0"}), ("cpu", {"host": "h1"})])
    rows = list(result.get_points(tags={"host": "h0"}))
    # Windows begin at multiples of five minutes.
    starts = [START // 300 * 300 + 300 * n for n in range(3)]
    expected = []
    for start in starts:
        values = [i / 2 for i in range(0, 60, 2) if start <= START + 10 * i < start + 300]
        if values:
            expected.append({"time": start, "mean": sum(values) / len(values)})
    equal(rows, expected)


def influx_query_chunked():
    chunks = client.query("SELECT usage FROM cpu", chunked=True, chunk_size=7, epoch="s")
    equal(sum(len(list(chunk.get_points())) for chunk in chunks), 60)


def influx_show():
    equal(sorted(one["name"] for one in client.get_list_measurements()), ["cpu", "m", "packed", "two"])
    keys = client.query("SHOW TAG VALUES FROM cpu WITH KEY = host")
    equal([one["value"] for one in keys.get_points()], ["h0", "h1"])
    fields = {one["fieldKey"]: one["fieldType"] for one in client.query("SHOW FIELD KEYS FROM cpu").get_points()}
    equal(fields, {"usage": "float", "cores": "integer", "up": "boolean", "note": "string"})


def influx_into():
    into = f"SELECT mean(usage), max(cores) INTO {DB}..means FROM cpu WHERE time >= {START}s AND time < {START + 600}s GROUP BY time(1m), host"
    written = client.query(into, method="POST", epoch="s")
    equal(written.raw["series"], [{"name": "result", "columns": ["time", "written"], "values": [[0, 22]]}])
    rows = list(client.query("SELECT * FROM means WHERE host = 'h1' LIMIT 1", epoch="s").get_points())
    equal(rows, [{"time": START // 60 * 60, "host": "h1", "max": rows[0]["max"], "mean": rows[0]["mean"]}])
    missing = client.query("SELECT max(usage), max(missing) FROM cpu", epoch="s").raw["series"][0]
    equal(missing["values"], [[0, 29.5, None]])
    missing = client.query("SELECT mean(usage) + mean(missing) FROM cpu", epoch="s").raw["series"][0]
    equal(missing["values"], [[0, None]])
    client.drop_measurement("means")


def influx_errors():
    assert "error parsing query" in refused(lambda: client.query("SELECT FROM"), 400)
    # The client sends INTO by POST, as it must.
    by_get = requests.get(URL.geturl() + "/query", params={"db": DB, "q": "SELECT usage INTO other FROM cpu"}, timeout=20)
    equal(by_get.status_code, 400)
    assert "not supported yet at line 1, char 8" in refused(lambda: client.query("SELECT sample(usage, 2) FROM cpu"), 400)


def grafana_queries():
    """The requests of Grafana's data source: health check, variables, a panel, an alert, an annotation."""

    def ask(query):
        reply = requests.post(URL.geturl() + "/query", params={"db": DB, "epoch": "ms"}, data={"q": query}, timeout=20)
        equal(reply.status_code, 200)
        results = reply.json()["results"]
        assert all("error" not in one for one in results), results
        return [one.get("series", []) for one in results]

    # The health check, by GET as the data source does it by default.
    found = requests.get(URL.geturl() + "/query", params={"db": DB, "epoch": "ms", "q": "SHOW measurements"}, timeout=20).json()
    assert ["cpu"] in found["results"][0]["series"][0]["values"], found
    low, high = START * 1000, (START + 600) * 1000
    between = f"time >= {low}ms and time <= {high}ms"
    equal(ask("SHOW TAG KEYS FROM \"cpu\"")[0][0]["values"], [["host"], ["region"]])
    equal(ask("SHOW MEASUREMENTS WITH MEASUREMENT =~ /(?i)CPU/ LIMIT 100")[0][0]["values"], [["cpu"]])
    equal(ask("SHOW RETENTION POLICIES on \"" + DB + "\"")[0][0]["values"][0][0], "autogen")
    equal(ask("SHOW TAG VALUES FROM \"cpu\" WITH KEY = \"host\" WHERE \"region\" =~ /^eu west$/")[0][0]["values"], [["host", "h0"], ["host", "h1"]])
    panel = ask(
        f"SELECT mean(\"usage\"), max(\"cores\") FROM \"cpu\" WHERE (\"host\"::tag =~ /^(h0|h1)$/) AND {between} "
        "GROUP BY time(10s), \"host\"::tag fill(null)"
    )[0]
    equal([one["tags"]["host"] for one in panel], ["h0", "h1"])
    equal(panel[0]["columns"], ["time", "mean", "max"])
    equal(panel[0]["values"][:2], [[low, 0.0, 0], [low + 10_000, None, None]])
    equal(len(panel[0]["values"]), 61)
    rate = ask(f"SELECT non_negative_derivative(mean(\"cores\"), 1s) FROM \"cpu\" WHERE {between} GROUP BY time(1m) fill(previous)")[0]
    assert 9 <= len(rate[0]["values"]) <= 11 and abs(rate[0]["values"][3][1] - 0.1) < 1e-9, rate
    both = ask(f"SELECT last(\"usage\") FROM \"cpu\" WHERE {between}; SELECT \"note\" FROM \"cpu\" WHERE {between} LIMIT 1")
    equal(both[0][0]["values"], [[(START + 590) * 1000, 29.5]])
    equal(both[1][0]["values"], [[low, 'a "quoted", text']])
    # Alerts reduce short series; annotations read texts and tags; variables nest.
    alert = ask(f"SELECT mean(\"usage\") FROM \"autogen\".\"cpu\" WHERE {between} GROUP BY time(1m) fill(none) ORDER BY time DESC LIMIT 1")[0]
    assert len(alert[0]["values"]) == 1 and alert[0]["values"][0][1] > 27, alert
    notes = ask(f"SELECT \"note\", \"host\" FROM \"cpu\" WHERE \"up\" = true AND {between} ORDER BY time DESC LIMIT 100")[0]
    equal((notes[0]["columns"], len(notes[0]["values"])), (["time", "note", "host"], 20))
    equal(ask("SHOW FIELD KEYS FROM \"autogen\".\"cpu\"")[0][0]["columns"], ["fieldKey", "fieldType"])
    equal(ask("SHOW TAG VALUES FROM \"cpu\" WITH KEY = \"region\" WHERE \"host\" = 'h1'")[0][0]["values"], [["region", "eu west"]])
    spread = ask(f"SELECT percentile(\"usage\", 95) / 2, spread(\"cores\") AS \"s\" FROM \"cpu\" WHERE \"host\" =~ /^h0$/ AND {between} GROUP BY time(5m) fill(0) tz('Europe/Berlin')")[0]
    equal(spread[0]["columns"], ["time", "percentile", "s"])


def influx_drop():
    client.drop_measurement("cpu")
    assert "cpu" not in [one["name"] for one in client.get_list_measurements()]
    client.drop_database(DB)


CHECKS = [
    influx_ping,
    influx_databases,
    influx_write_points,
    influx_write_gzip,
    influx_write_v2,
    influx_partial_write,
    influx_query_raw,
    influx_query_groups,
    influx_query_chunked,
    influx_show,
    influx_into,
    influx_errors,
    grafana_queries,
    influx_drop,
]

for check in CHECKS:
    try:
        check()
        print(f"ok {check.__name__}", flush=True)
    except Exception as error:
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}".replace("\n", " ")
        print(f"not ok {check.__name__}: {reason}", flush=True)
