"""Runs the peers over the data of a benchmark and prints them beside Nilometer: called by `cargo xtask bench --peers`.

    python run.py tsbs|jsonbench|rtabench|wide FOLDER [--threads N] [--query-seconds N] [--rounds N]

FOLDER holds `nilometer.json`, the figures of Nilometer, and `export/`, the data. The exit status is 1 if an answer of
any database was wrong.
"""

import argparse
import json
import os
import shutil
import sys

import documents
import tsbs
from databases import ChDb, DuckDb


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |")


def figure(ms):
    return "" if ms is None else f"{ms:.3f}" if ms < 10 else f"{ms:.1f}"


def tsbs_table(nilometer, peers):
    """Prints medians, and their ratio to the fastest peer."""
    names = [f"{name} {peer['version']}" for name, peer in peers.items()]
    row("", "Nilometer", *names, "Nilometer / best peer")
    row(*["---"] + ["---:"] * (len(names) + 2))
    load = nilometer.get("load", {}).get("rows_per_s", 0)
    row("measurements loaded a second", round(load), *(round(p["rows_per_s"]) for p in peers.values()), "")
    disk, rows = nilometer.get("disk"), nilometer["rows"]
    own = (disk["bytes"] - disk["log_bytes"]) / rows if disk else 0
    row("bytes a measurement", f"{own:.2f}", *(f"{p['bytes'] / rows:.2f}" for p in peers.values()), "")
    wrong = []
    for query in nilometer["queries"]:
        name = query["name"]
        asked = name if name in next(iter(peers.values()))["queries"] else "lastpoint"
        found = [peer["queries"].get(asked) for peer in peers.values()]
        times = [f["median_ms"] if f else None for f in found]
        best = min((t for t in times if t is not None), default=None)
        ratio = f"{query['median_ms'] / best:.3f}" if best else ""
        row(f"{name}, ms", figure(query["median_ms"]), *map(figure, times), ratio)
        wrong += [f"Nilometer, {name}: {query['wrong']}"] if query["wrong"] else []
        wrong += [f"{peer}, {name}: {f['wrong']}" for peer, f in zip(peers, found) if f and f["wrong"]]
    return wrong


def document_table(nilometer, peer):
    """Prints the least times of every layout, and their ratio to DuckDB's."""
    layouts = list(dict.fromkeys(query["layout"] for query in nilometer["queries"]))
    heads = [cell for layout in layouts for cell in (layout, "ratio")]
    row("", *heads, f"DuckDB {peer['version']}")
    row(*["---"] + ["---:"] * (len(heads) + 1))
    sizes = {layout["name"]: layout["disk_bytes"] / 1e6 for layout in nilometer["layouts"]}
    cells = [cell for layout in layouts for cell in (f"{sizes.get(layout, 0):.0f}", "")]
    row("on disk, MB", *cells, f"{peer['bytes'] / 1e6:.0f}")
    loads = {layout["name"]: layout["load_s"] for layout in nilometer["layouts"]}
    row("loading, s", *[c for layout in layouts for c in (f"{loads.get(layout, 0):.1f}", "")], f"{peer['load_s']:.1f}")
    wrong, asked = [], {}
    for query in nilometer["queries"]:
        asked.setdefault(query["name"], {})[query["layout"]] = query["least_ms"]
        wrong += [f"Nilometer, {query['name']}: {query['wrong']}"] if query["wrong"] else []
    for name, times in asked.items():
        other = peer["queries"].get(name) or peer["queries"].get(name.split("-")[0])
        cells = []
        for layout in layouts:
            ms = times.get(layout)
            cells += [figure(ms), f"{ms / other['least_ms']:.2f}" if ms and other else ""]
        row(f"{name}, ms", *cells, figure(other and other["least_ms"]))
        if name in peer["queries"] and other["wrong"]:
            wrong.append(f"DuckDB, {name}: {other['wrong']}")
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("set", choices=["tsbs", "jsonbench", "rtabench", "wide"])
    parser.add_argument("folder")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--query-seconds", type=float, default=60, help="at most so long for one query of one database")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    folder = os.path.abspath(arguments.folder)
    with open(os.path.join(folder, "nilometer.json"), encoding="utf-8") as file:
        nilometer = json.load(file)
    export, work = os.path.join(folder, "export"), os.path.join(folder, "peers")
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    if arguments.set == "tsbs":
        data, peers = tsbs.Data(export), {}
        for kind in (DuckDb, ChDb):
            database = kind(work, arguments.threads)
            peers[kind.name] = tsbs.run(database, data, work, arguments.query_seconds)
            database.close()
        wrong = tsbs_table(nilometer, peers)
    else:
        answers = {}
        for query in nilometer["queries"]:
            answers.setdefault(query["name"], query["answer"])
        for name in os.listdir(export):
            os.symlink(os.path.join(export, name), os.path.join(work, name))
        peer = documents.run(arguments.set, work, answers, arguments.rounds, arguments.threads)
        wrong = document_table(nilometer, peer)
    for text in wrong:
        print(f"wrong: {text}", file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
