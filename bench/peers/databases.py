"""DuckDB and ClickHouse (chDB), both inside this process, behind one interface.

A database loads Parquet files into the table `cpu` and answers SQL with an Arrow table. The time of an answer ends when
the whole answer is in this process.
"""

import os
import time

import pyarrow as pa

MEMORY_MAX = "8GB"


def bytes_of(path):
    """Returns the allocated bytes of a file or folder."""
    if os.path.isfile(path):
        return os.stat(path).st_blocks * 512
    files = (os.path.join(at, name) for at, _, names in os.walk(path) for name in names)
    return sum(os.stat(file).st_blocks * 512 for file in files)


class DuckDb:
    """One database file."""

    name = "DuckDB"
    time_type = "TIMESTAMP"

    def __init__(self, folder, threads):
        import duckdb

        self.path = os.path.join(folder, "duckdb.db")
        self.version = duckdb.__version__
        self.connection = duckdb.connect(self.path)
        self.run(f"SET threads = {threads}; SET TimeZone = 'UTC'; SET memory_limit = '{MEMORY_MAX}'")

    def run(self, sql):
        self.connection.execute(sql)

    def create(self, tags, metrics):
        columns = [f"{tag} VARCHAR" for tag in tags] + [f"{metric} BIGINT" for metric in metrics]
        self.run(f"CREATE TABLE cpu (time TIMESTAMP, {', '.join(columns)})")

    def load(self, path):
        self.run(f"INSERT INTO cpu SELECT * FROM read_parquet('{path}')")

    def settle(self):
        self.run("CHECKPOINT")

    def bytes(self):
        return bytes_of(self.path)

    def ask(self, sql):
        """Returns the answer and the seconds it took."""
        start = time.perf_counter()
        answer = self.connection.sql(sql).to_arrow_table()
        return answer, time.perf_counter() - start

    def close(self):
        self.connection.close()

    @staticmethod
    def at(ms):
        return f"make_timestamp({ms * 1000})"

    @staticmethod
    def bin(unit_ms):
        return "date_trunc('minute', time)" if unit_ms == 60_000 else "date_trunc('hour', time)"

    @staticmethod
    def last(metrics):
        fields = ", ".join(f"{metric} := {metric}" for metric in metrics)
        newest = f"SELECT hostname, max(time) AS newest, arg_max(struct_pack({fields}), time) AS s FROM cpu GROUP BY hostname"
        return f"SELECT newest, hostname, {', '.join(f's.{metric}' for metric in metrics)} FROM ({newest})"


class ChDb:
    """A folder of MergeTree parts, sorted by host and time."""

    name = "ClickHouse (chDB)"

    def __init__(self, folder, threads):
        from chdb import session

        self.path = os.path.join(folder, "chdb")
        self.threads = threads
        self.session = session.Session(self.path)
        self.version = str(self.session.query("SELECT version()", "TSV")).strip()
        self.run("CREATE DATABASE peers")

    def run(self, sql):
        self.session.query(sql)

    def create(self, tags, metrics):
        columns = [f"{tag} LowCardinality(String)" for tag in tags]
        columns += [f"{metric} Int64 CODEC(T64, LZ4)" for metric in metrics]
        self.run(
            "CREATE TABLE peers.cpu (time DateTime64(3, 'UTC') CODEC(DoubleDelta, LZ4), "
            f"{', '.join(columns)}) ENGINE = MergeTree ORDER BY (hostname, time)"
        )

    def load(self, path):
        self.run(f"INSERT INTO peers.cpu SELECT * FROM file('{path}', 'Parquet')")

    def settle(self):
        self.run("OPTIMIZE TABLE peers.cpu FINAL")

    def bytes(self):
        sql = "SELECT sum(bytes_on_disk) FROM system.parts WHERE database = 'peers' AND table = 'cpu' AND active"
        return int(str(self.session.query(sql, "TSV")).strip())

    def ask(self, sql):
        """Returns the answer and the seconds it took, without those of decoding it."""
        sql = sql.replace("FROM cpu", "FROM peers.cpu") + f" SETTINGS max_threads = {self.threads}"
        start = time.perf_counter()
        answer = self.session.query(sql, "ArrowStream").bytes()
        took = time.perf_counter() - start
        return pa.ipc.open_stream(answer).read_all(), took

    def close(self):
        self.session.close()

    @staticmethod
    def at(ms):
        return f"fromUnixTimestamp64Milli(toInt64({ms}), 'UTC')"

    @staticmethod
    def bin(unit_ms):
        return "toStartOfMinute(time)" if unit_ms == 60_000 else "toStartOfHour(time)"

    @staticmethod
    def last(metrics):
        newest = ", ".join(f"argMax({metric}, time)" for metric in metrics)
        return f"SELECT max(time), hostname, {newest} FROM cpu GROUP BY hostname"
