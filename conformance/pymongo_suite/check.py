"""pymongo's own tests, from the source distribution in the registry, against the server, and those of change streams, sessions and
transactions against a replica set of one that this program starts.

Each test is a check, named after its file, class and function; skipped tests are not reported. A file is a check as
well: it passes if at least one of its tests ran. Tests that fail are listed in ../expected_failures.toml with the
cause.
"""

import concurrent.futures
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.parse
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import ports  # noqa: E402

TARGET = pathlib.Path(__file__).parent / "target"

# Files whose tests need a replica set, with the drivers' unified tests. Each list has its own.
FILES_OF_SETS = [
    [
        "test_change_stream",
        "test_causal_consistency",
        "test_session",
        "test_sessions_unified",
        "test_transactions",
        "test_transactions_unified",
    ],
    [
        "test_read_write_concern_spec",
        "test_retryable_reads",
        "test_retryable_reads_unified",
        "test_retryable_writes",
        "test_retryable_writes_unified",
    ],
]

# Tests that select a secondary, of which a set of one has none, or connect to the usual port, and would wait until a timeout; the
# last two wait for two heartbeats, 20 s each.
LEFT_OUT = [
    "TestErrorPropagationAfterEncounteringMultipleErrors",
    "test_run_command_fails_with_explicit_secondary_read_preference",
    "test_run_command_fails_with_secondary_read_preference_from_transaction_options",
    "test_secondary_readPreference",
    "test_backoff_is_not_applied_for_non_overload_errors",
    "test_overload_then_nonoverload_retries_increased_reads",
]

# From start to the first accepted connection, in seconds.
START_MAX = 20

# Files whose tests talk to a server and need no replica set. The order is that of the alphabet.
FILES = [
    "test_bulk",
    "test_client_bulk_write",
    "test_collation",
    "test_collection",
    "test_collection_management",
    "test_command_monitoring",
    "test_comment",
    "test_crud_unified",
    "test_cursor",
    "test_custom_types",
    "test_database",
    "test_gridfs",
    "test_handshake_unified",
    "test_raw_bson",
    "test_run_command",
    "test_versioned_api_integration",
]

REASON_CHARS_MAX = 200

# Held while the lines of a file are printed.
PRINTING = threading.Lock()


def unpacked():
    """Returns the folder of the tests, without the driver's own code: the installed driver is tested."""
    archive = next(TARGET.glob("pymongo-*.tar.gz"))
    folder = TARGET / archive.name.removesuffix(".tar.gz")
    if not folder.exists():
        with tarfile.open(archive) as tar:
            tar.extractall(TARGET, filter="data")
        for package in ["bson", "gridfs", "pymongo"]:
            shutil.rmtree(folder / package)
    return folder


def run(folder, name, address):
    """Runs one file; returns its tests as (name, error or None)."""
    report = TARGET / f"{name}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "--quiet", "-m", "default", "-W", "default"]
    command += ["-p", "no:cacheprovider", f"--junitxml={report}", f"test/{name}.py"]
    command += ["-k", " and ".join(f"not {test}" for test in LEFT_OUT)]
    environment = os.environ | {"DB_IP": address.hostname, "DB_PORT": str(address.port)}
    subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=False)
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("skipped") is not None:
            continue
        wrong = [error for kind in ("failure", "error") for error in case.findall(kind)]
        error = " ".join(wrong[0].get("message", "").split())[:REASON_CHARS_MAX] if wrong else None
        group = case.get("classname", "").split(".")[-1]
        yield f"{name}::{group}::{case.get('name')}".replace(": ", ":"), error


class ReplicaSet:
    """A replica set of one, with the fail points of tests."""

    def __enter__(self):
        port = ports.free_port(ports.PYMONGO_SUITE)
        self.folder = tempfile.TemporaryDirectory()
        command = [os.environ["NILOMETER_BINARY"], "serve", "--dbpath", self.folder.name, "--quiet"]
        command += ["--port", str(port), "--bind_ip", "127.0.0.1", "--replSet", "rs"]
        command += ["--advertise", f"127.0.0.1:{port}", "--setParameter", "enableTestCommands=1"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        end = time.monotonic() + START_MAX
        while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
            assert self.process.poll() is None, "the replica set ended at its start"
            assert time.monotonic() < end, "the replica set does not start"
            time.sleep(0.02)
        return urllib.parse.urlparse(f"mongodb://127.0.0.1:{port}")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()


def report(folder, names, address):
    for name in names:
        tests = list(run(folder, name, address))
        lines = [f"ok {test}" if error is None else f"not ok {test}: {error}" for test, error in tests]
        lines.append(f"ok {name}" if tests else f"not ok {name}: no test ran")
        with PRINTING:
            print("\n".join(lines), flush=True)


def report_of_set(folder, names):
    with ReplicaSet() as address:
        report(folder, names, address)


def main():
    folder = unpacked()
    alone = urllib.parse.urlparse(os.environ["NILOMETER_URI"])
    # All at a time: most of the time they wait for each other, driver and server.
    with concurrent.futures.ThreadPoolExecutor(1 + len(FILES_OF_SETS)) as threads:
        running = [threads.submit(report, folder, FILES, alone)]
        running += [threads.submit(report_of_set, folder, names) for names in FILES_OF_SETS]
        for one in running:
            one.result()


main()
