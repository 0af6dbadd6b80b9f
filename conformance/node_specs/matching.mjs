// Matching of results and events as the unified test format of the drivers defines it.

import { BSON } from "mongodb";

const { EJSON } = BSON;

// Names of BSON types, as `$$type` gives them, for a value of the driver.
const IS_OF_TYPE = {
  array: Array.isArray,
  binData: (value) => value?._bsontype === "Binary" || value?._bsontype === "UUID",
  bool: (value) => typeof value === "boolean",
  date: (value) => value instanceof Date,
  double: (value) => typeof value === "number" || value?._bsontype === "Double",
  int: (value) => Number.isInteger(value) || value?._bsontype === "Int32",
  long: (value) => Number.isInteger(value) || value?._bsontype === "Long" || typeof value === "bigint",
  number: (value) => isNumber(value),
  object: (value) => isObject(value),
  objectId: (value) => value?._bsontype === "ObjectId",
  string: (value) => typeof value === "string",
  timestamp: (value) => value?._bsontype === "Timestamp",
};

function isNumber(value) {
  return ["number", "bigint"].includes(typeof value) || ["Int32", "Long", "Double"].includes(value?._bsontype);
}

function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value) && !value._bsontype && !(value instanceof Date);
}

function shown(value) {
  try {
    return value === undefined ? "nothing" : EJSON.stringify(value);
  } catch {
    return String(value);
  }
}

function fail(path, expected, actual) {
  throw new Error(`${path || "value"}: expected ${shown(expected)}, found ${shown(actual)}`);
}

// Handles an object with one operator such as `$$exists`; false if it is none.
function matchSpecial(expected, actual, entities, path, isRoot) {
  const [name, argument] = Object.entries(expected)[0] ?? [""];
  const check = (holds) => holds || fail(path, expected, actual);
  switch (name) {
    case "$$exists":
      check((actual !== undefined) === argument);
      return true;
    case "$$unsetOrMatches":
      if (actual !== undefined && actual !== null) match(argument, actual, entities, path, isRoot);
      return true;
    case "$$type":
      check([argument].flat().some((type) => IS_OF_TYPE[type]?.(actual)));
      return true;
    case "$$sessionLsid":
      check(shown(actual?.id) === shown(entities.lsids.get(argument)?.id));
      return true;
    case "$$matchesEntity":
      match(entities.get(argument), actual, entities, path, false);
      return true;
    case "$$matchesHexBytes":
      check(Buffer.from(actual ?? []).toString("hex") === argument);
      return true;
    case "$$lte":
      check(isNumber(actual) && Number(actual) <= Number(argument));
      return true;
    default:
      if (name.startsWith("$$")) throw new Error(`operator ${name} is not known here`);
      return false;
  }
}

// Fails if `actual` does not match. Only a root document may have fields that are not expected.
export function match(expected, actual, entities, path = "", isRoot = true) {
  // The driver keeps sorts and keys of indexes in maps, and writes equality to an ObjectId with an operator.
  if (actual instanceof Map) actual = Object.fromEntries(actual);
  if (expected?._bsontype && actual?.$eq) actual = actual.$eq;
  if (Array.isArray(expected)) {
    if (!Array.isArray(actual) || actual.length !== expected.length) fail(path, expected, actual);
    expected.forEach((one, at) => match(one, actual[at], entities, `${path}[${at}]`, isRoot && isObject(one)));
  } else if (isNumber(expected)) {
    if (!isNumber(actual) || Number(actual) !== Number(expected)) fail(path, expected, actual);
  } else if (isObject(expected)) {
    if (matchSpecial(expected, actual, entities, path, isRoot)) return;
    if (actual === null || typeof actual !== "object") fail(path, expected, actual);
    for (const [name, value] of Object.entries(expected)) {
      match(value, actual[name], entities, path ? `${path}.${name}` : name, false);
    }
    // The driver ends transactions with a limit of its own.
    if (path.endsWith(".writeConcern") && !("wtimeout" in expected) && actual.wtimeout === 10_000) delete actual.wtimeout;
    const others = isRoot ? [] : Object.keys(actual).filter((name) => !(name in expected) && actual[name] !== undefined);
    if (others.length > 0) fail(path, expected, actual);
  } else if (shown(expected) !== shown(actual)) {
    fail(path, expected, actual);
  }
}
