"""A time series into pandas: as an Arrow stream over HTTP, and as documents through pymongo.

    pip install pandas pyarrow pymongo
    python bench/columns.py mongodb://127.0.0.1:28017 http://127.0.0.1:28080

Reads the measurements that `cargo run --release -p nilometer-bench --bin columns` has written; the least time of three counts.
"""

import sys
import time
import urllib.request

import pandas
import pyarrow.ipc
import pyarrow.parquet
import pymongo

ROUNDS = 3
uri, http = sys.argv[1:3]
collection = pymongo.MongoClient(uri)["columns"]["cpu"]
address = f"{http}/api/query?database=columns&collection=cpu&projection=%7B%22_id%22:0%7D&format="


def arrow():
    with urllib.request.urlopen(address + "arrow") as answer:
        return pyarrow.ipc.open_stream(answer).read_pandas()


def parquet():
    with urllib.request.urlopen(address + "parquet") as answer:
        return pyarrow.parquet.read_table(pyarrow.BufferReader(answer.read())).to_pandas()


def documents():
    return pandas.DataFrame(list(collection.find({}, {"_id": 0})))


def least(read):
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        frame = read()
        times.append(time.perf_counter() - began)
    print(f"{read.__name__:10} {min(times):7.2f} s  {len(frame)} rows, {len(frame.columns)} columns")
    return min(times)



seconds = {read: least(read) for read in (arrow, parquet, documents)}
print(f"arrow is {seconds[documents] / seconds[arrow]:.1f} times as fast as documents, parquet {seconds[documents] / seconds[parquet]:.1f}")
