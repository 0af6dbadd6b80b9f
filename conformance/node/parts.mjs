// Parts of checks that a server does not have: NILOMETER_LEFT_OUT names them, with commas in between.
//
// Each is reported once, as `left out NAME`. Servers of conformance have all parts; routers do not, and
// crates/nilometer-cluster/tests/it/drivers.rs says why.

const leftOut = new Set((process.env.NILOMETER_LEFT_OUT ?? "").split(",").filter(Boolean));
const told = new Set();

/** True if the server has this part. */
export function has(part) {
  if (leftOut.has(part) && !told.has(part)) {
    told.add(part);
    console.log(`left out ${part}`);
  }
  return !leftOut.has(part);
}
