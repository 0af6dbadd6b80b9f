"""TSBS's queries on the peers, over the values that the load generator exported.

manifest.json  hosts with their tags, ticks, the parameters of every draw of every query
values.bin     one byte for each value: by tick, host, metric

Rows travel in Parquet files of about a million, one at a time, so memory is bounded. Every answer is compared with one
that numpy computes from the same values.
"""

import json
import os
import statistics
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

ROWS_OF_A_FILE = 1_000_000
WARM_UP = 3
HIGH = 90


class Data:
    """The exported values."""

    def __init__(self, folder):
        with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        self.tags, self.metrics = manifest["tags"], manifest["metrics"]
        self.hosts, self.ticks = manifest["hosts"], manifest["ticks"]
        self.start_ms, self.interval_ms = manifest["start_ms"], manifest["interval_ms"]
        self.queries = manifest["queries"]
        shape = (self.ticks, len(self.hosts), len(self.metrics))
        self.values = np.memmap(os.path.join(folder, "values.bin"), dtype=np.uint8, mode="r", shape=shape)

    def rows(self):
        return self.ticks * len(self.hosts)

    def times(self, first, last):
        return self.start_ms + np.arange(first, last, dtype=np.int64) * self.interval_ms

    def window(self, draw):
        """Returns the first tick of a draw's window and the one after the last."""
        to_tick = lambda ms: min(max(0, -(-(ms - self.start_ms) // self.interval_ms)), self.ticks)
        return to_tick(draw["start_ms"]), to_tick(draw["end_ms"])

    def tables(self):
        """Yields all rows in the order of time, as Arrow tables."""
        count = len(self.hosts)
        step = max(1, ROWS_OF_A_FILE // count)
        tags = []
        for at in range(len(self.tags)):
            known = sorted({host[at] for host in self.hosts})
            codes = {value: code for code, value in enumerate(known)}
            tags.append((np.array([codes[host[at]] for host in self.hosts], dtype=np.int32), pa.array(known)))
        for first in range(0, self.ticks, step):
            last = min(first + step, self.ticks)
            columns = [pa.array(np.repeat(self.times(first, last), count), pa.timestamp("ms"))]
            for codes, known in tags:
                columns.append(pa.DictionaryArray.from_arrays(pa.array(np.tile(codes, last - first)), known))
            chunk = self.values[first:last].reshape(-1, len(self.metrics))
            columns += [pa.array(chunk[:, at].astype(np.int64)) for at in range(len(self.metrics))]
            yield pa.Table.from_arrays(columns, names=["time", *self.tags, *self.metrics])

    def answer(self, query, draw):
        """Computes an answer: arrays of time, host if the query has one, then metrics."""
        kind, metrics = query["kind"], draw["metrics"]
        hosts = draw["hosts"] or slice(None)
        first, last = self.window(draw)
        if kind == "last":
            values = np.asarray(self.values[self.ticks - 1])
            times = np.full(len(self.hosts), self.times(self.ticks - 1, self.ticks)[0])
            return [times, np.arange(len(self.hosts)), *values.T]
        if kind == "newest":
            minutes = self.times(0, last) // 60_000
            first = int(np.searchsorted(minutes, minutes[-1] - 4)) if last else 0
        times = self.times(first, last)
        values = self.values[first:last, hosts, :metrics] if kind != "high" else self.values[first:last, hosts]
        if kind == "high":
            tick, host = np.nonzero(values[:, :, 0] > HIGH)
            numbers = np.arange(len(self.hosts))[hosts]
            return [times[tick], numbers[host], *values[tick, host].T]
        bins = times // query["unit_ms"]
        starts = np.flatnonzero(np.r_[True, bins[1:] != bins[:-1]]) if len(bins) else np.array([], dtype=int)
        labels = bins[starts] * query["unit_ms"]
        if kind in ("max", "newest"):
            values = np.maximum.reduceat(values.max(axis=1), starts, axis=0)
            return [labels, *values.T]
        sums = np.add.reduceat(values, starts, axis=0, dtype=np.int64)
        counts = np.diff(np.r_[starts, len(bins)])
        means = sums / counts[:, None, None]
        host = np.tile(np.arange(len(self.hosts)), len(starts))
        return [np.repeat(labels, len(self.hosts)), host, *means.reshape(-1, metrics).T]


def sql(query, draw, data, database):
    """Writes a query in the dialect of a database."""
    metrics = data.metrics[: draw["metrics"]]
    names = ", ".join(f"'{data.hosts[host][0]}'" for host in draw["hosts"])
    where = f"time >= {database.at(draw['start_ms'])} AND time < {database.at(draw['end_ms'])}"
    if names:
        where += f" AND hostname IN ({names})"
    most = ", ".join(f"max({metric})" for metric in metrics)
    kind, unit = query["kind"], query["unit_ms"]
    if kind == "max":
        return f"SELECT {database.bin(unit)} AS b, {most} FROM cpu WHERE {where} GROUP BY b ORDER BY b"
    if kind == "mean":
        means = ", ".join(f"avg({metric})" for metric in metrics)
        return (
            f"SELECT {database.bin(unit)} AS b, hostname, {means} FROM cpu WHERE {where} "
            "GROUP BY b, hostname ORDER BY b, hostname"
        )
    if kind == "high":
        fields = ", ".join(["time", *data.tags, *metrics])
        return f"SELECT {fields} FROM cpu WHERE {where} AND usage_user > {HIGH}"
    if kind == "last":
        return database.last(metrics)
    before = f"time < {database.at(draw['end_ms'])}"
    return f"SELECT {database.bin(unit)} AS b, {most} FROM cpu WHERE {before} GROUP BY b ORDER BY b DESC LIMIT 5"


def columns(answer, kind, tags):
    """Returns the columns of an Arrow table in the form of `Data.answer`."""
    fields = list(answer.columns)
    if kind == "high":
        fields = [*fields[:2], *fields[1 + len(tags):]]
    out = []
    for field in fields:
        field = field.combine_chunks() if isinstance(field, pa.ChunkedArray) else field
        if pa.types.is_dictionary(field.type):
            field = field.cast(field.type.value_type)
        if pa.types.is_timestamp(field.type):
            out.append(np.asarray(field.cast(pa.timestamp("ms")).cast(pa.int64())))
        elif pa.types.is_uint32(field.type) and not out:
            out.append(np.asarray(field).astype(np.int64) * 1000)  # ClickHouse's DateTime: seconds
        elif pa.types.is_floating(field.type) or pa.types.is_integer(field.type):
            out.append(np.asarray(field))
        else:
            names = field.cast(pa.string()).to_pylist()
            out.append(np.array([int(name.removeprefix("host_")) for name in names], dtype=np.int64))
    return out


def difference(got, expected, has_host):
    """Says how two answers differ; None if they are the same."""
    if len(got) != len(expected) or len(got[0]) != len(expected[0]):
        return f"{len(got[0])} rows of {len(got)} columns, expected {len(expected[0])} of {len(expected)}"
    keys = 2 if has_host else 1
    order = [np.lexsort(answer[:keys][::-1]) for answer in (got, expected)]
    for at, (left, right) in enumerate(zip(got, expected)):
        left, right = left[order[0]].astype(np.float64), right[order[1]].astype(np.float64)
        if not np.allclose(left, right, rtol=1e-12, atol=0):
            return f"column {at} differs"
    return None


def load(database, data, folder):
    """Loads all rows; returns the seconds spent inside the database."""
    database.create(data.tags, data.metrics)
    path, took = os.path.join(folder, "rows.parquet"), 0.0
    for table in data.tables():
        parquet.write_table(table, path, compression="zstd")
        start = time.perf_counter()
        database.load(path)
        took += time.perf_counter() - start
    os.remove(path)
    start = time.perf_counter()
    database.settle()
    return took + time.perf_counter() - start


def measure(database, query, data, seconds_max):
    """Asks a query with all its draws, or with as many as fit into the time."""
    times, wrong, end = [], None, time.perf_counter() + seconds_max
    draws = query["draws"]
    for draw in draws[:WARM_UP]:
        if time.perf_counter() < end - seconds_max / 2:
            database.ask(sql(query, draw, data, database))
    for draw in draws:
        if times and time.perf_counter() > end:
            break
        answer, took = database.ask(sql(query, draw, data, database))
        times.append(took * 1000)
        got = columns(answer, query["kind"], data.tags)
        has_host = query["kind"] in ("mean", "high", "last")
        wrong = wrong or difference(got, data.answer(query, draw), has_host)
    return {"median_ms": statistics.median_high(times), "least_ms": min(times), "runs": len(times), "wrong": wrong}


def run(database, data, folder, seconds_max):
    """Loads and asks everything."""
    took = load(database, data, folder)
    result = {"version": database.version, "rows_per_s": data.rows() / took}
    result["bytes"] = database.bytes()
    result["queries"] = {
        query["name"]: measure(database, query, data, seconds_max) for query in data.queries
    }
    return result
