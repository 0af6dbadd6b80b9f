"""Writes with an unchanged driver while servers come and go, and checks at the end that every write was done once.

Usage: failover.py URI ROUNDS. Prints a line after each round; docs/operating.md walks through it.
"""

import sys

from pymongo import MongoClient
from pymongo.read_preferences import ReadPreference


def main():
    uri, rounds = sys.argv[1], int(sys.argv[2])
    client = MongoClient(uri, serverSelectionTimeoutMS=60_000)
    garden = client.garden
    for n in range(rounds):
        # Without a record of what was done, a repeated insert would fail with a duplicate key.
        garden.log.insert_one({"_id": n, "text": "round %d" % n})
        garden.counters.update_one({"_id": "rounds"}, {"$inc": {"n": 1}}, upsert=True)
        told = garden.counters.find_one_and_update(
            {"_id": "asked"}, {"$inc": {"n": 1}}, upsert=True, return_document=True
        )
        assert told["n"] == n + 1, told
        print("round", n, "at", client.primary, flush=True)
    found = [entry["_id"] for entry in garden.log.find(sort=[("_id", 1)])]
    assert found == list(range(rounds)), found
    counted = garden.counters.find_one({"_id": "rounds"})
    assert counted["n"] == rounds, counted
    # A secondary may be behind, and answers.
    elsewhere = garden.log.with_options(read_preference=ReadPreference.SECONDARY_PREFERRED)
    assert elsewhere.count_documents({}) <= rounds
    print("all", rounds, "rounds were done once", flush=True)


main()
