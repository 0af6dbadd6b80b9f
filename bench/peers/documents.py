"""The questions of a set of documents (`bench/sets/SET.json`) on DuckDB, over the JSON lines of the load generator.

Each answer is compared with that of Nilometer, row by row.
"""

import datetime
import decimal
import json
import os
import time

from databases import DuckDb

SETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "sets")


def text(sql):
    return sql if isinstance(sql, str) else "\n".join(sql)


def plain(value):
    """Returns numbers and dates in one form, whichever database they come from."""
    if isinstance(value, dict) and "$date" in value:
        value = datetime.datetime.fromisoformat(value["$date"])
    if isinstance(value, datetime.datetime):
        value = value.replace(tzinfo=value.tzinfo or datetime.timezone.utc)
        return round(value.timestamp() * 1000)
    if isinstance(value, (int, float, decimal.Decimal)) and not isinstance(value, bool):
        return float(value)
    return value


def same(left, right):
    if isinstance(left, float) and isinstance(right, float):
        return abs(left - right) <= 1e-9 * max(1.0, abs(left))
    return left == right


def difference(got, expected):
    """Says how two lists of rows differ; None if they are the same."""
    if len(got) != len(expected):
        return f"{len(got)} rows, Nilometer has {len(expected)}"
    for at, (left, right) in enumerate(zip(got, expected)):
        left, right = [plain(v) for v in left], [plain(v) for v in right]
        if len(left) != len(right) or not all(map(same, left, right)):
            return f"row {at} is {left}, of Nilometer {right}"
    return None


def run(name, folder, answers, rounds, threads):
    """Loads the exported data and asks every question that has SQL."""
    with open(os.path.join(SETS, f"{name}.json"), encoding="utf-8") as file:
        questions = json.load(file)
    database = DuckDb(folder, threads)
    start = time.perf_counter()
    for statement in questions["load"]:
        database.run(text(statement).replace("{folder}", folder))
    database.settle()
    took = time.perf_counter() - start
    result = {"version": database.version, "load_s": took, "bytes": database.bytes(), "queries": {}}
    for question in questions["queries"]:
        if "sql" not in question:
            continue
        times = []
        for _ in range(rounds + 1):
            answer, seconds = database.ask(text(question["sql"]))
            times.append(seconds * 1000)
        rows = [list(row.values()) for row in answer.rename_columns(
            [str(at) for at in range(answer.num_columns)]).to_pylist()]
        expected = [list(row.values()) for row in answers.get(question["name"], [])]
        wrong = difference(rows, expected) if question["name"] in answers else None
        # The first run is not counted.
        result["queries"][question["name"]] = {"least_ms": min(times[1:]), "wrong": wrong}
    database.close()
    return result
