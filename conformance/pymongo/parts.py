"""Parts of checks that a server does not have: NILOMETER_LEFT_OUT names them, with commas in between.

Each is reported once, as `left out NAME`. Servers of conformance have all parts; routers do not, and
crates/nilometer-cluster/tests/it/drivers.rs says why.
"""

import os

LEFT_OUT = set(filter(None, os.environ.get("NILOMETER_LEFT_OUT", "").split(",")))
told = set()


def has(part):
    """True if the server has this part."""
    if part in LEFT_OUT and part not in told:
        told.add(part)
        print(f"left out {part}", flush=True)
    return part not in LEFT_OUT
