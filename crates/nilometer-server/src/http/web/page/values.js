// Values: decodes canonical extended JSON for display, sorting and charts.
//
// Nothing is rounded: a 64-bit number that JavaScript cannot hold keeps its digits, and what has no form in JavaScript
// keeps a text.

/** A value with a text of its own. */
export class Special {
  constructor(kind, text, number = null) {
    this.kind = kind;
    this.text = text;
    this.number = number;
  }
}

const MAKERS = {
  $numberInt: (v) => Number(v),
  $numberDouble: (v) => Number(v),
  $numberLong: (v) => new Special("long", v, Number(v)),
  $numberDecimal: (v) => new Special("decimal", v, Number(v)),
  $oid: (v) => new Special("objectId", v),
  $date: (v) => new Date(typeof v === "string" ? v : Number(v.$numberLong)),
  $uuid: (v) => new Special("uuid", v),
  $binary: (v) => new Special("binary", v.subType === "04" ? uuid(v.base64) : `${v.base64} (${v.subType})`),
  $regularExpression: (v) => new Special("regex", `/${v.pattern}/${v.options}`),
  $timestamp: (v) => new Special("timestamp", `${v.t}:${v.i}`),
  $symbol: (v) => v,
  $undefined: () => new Special("undefined", "undefined"),
  $minKey: () => new Special("minKey", "MinKey"),
  $maxKey: () => new Special("maxKey", "MaxKey"),
};

function uuid(base64) {
  const hex = Array.from(atob(base64), (c) => c.charCodeAt(0).toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

/** Decodes a value of canonical extended JSON. */
export function decode(json) {
  if (Array.isArray(json)) return json.map(decode);
  if (json === null || typeof json !== "object") return json;
  const names = Object.keys(json);
  if (names.length === 1 && Object.hasOwn(MAKERS, names[0])) return MAKERS[names[0]](json[names[0]]);
  // Without a prototype, so that no field name has a meaning in JavaScript.
  const out = Object.create(null);
  for (const name of names) out[name] = decode(json[name]);
  return out;
}

/** True for a document or an array. */
export function isNested(value) {
  return Array.isArray(value) || (value !== null && typeof value === "object" && !(value instanceof Date) && !(value instanceof Special));
}

/** Returns the number to draw for a value; null if it is not a number. */
export function numberOf(value) {
  if (typeof value === "number") return Number.isFinite(value) ? value : null;
  if (value instanceof Special && value.number !== null && Number.isFinite(value.number)) return value.number;
  return null;
}

/** Returns the position of a value on an axis: its number or its time. */
export function placeOf(value) {
  if (value instanceof Date) return Number.isNaN(value.getTime()) ? null : value.getTime();
  return numberOf(value);
}

/** Formats a date as in extended JSON. */
export function dateText(date) {
  if (Number.isNaN(date.getTime())) return "a date out of range";
  const text = date.toISOString();
  return text.endsWith(".000Z") ? `${text.slice(0, -5)}Z` : text;
}

/** Formats a value in one line. */
export function textOf(value) {
  if (value === undefined) return "";
  if (value === null) return "null";
  if (value instanceof Date) return dateText(value);
  if (value instanceof Special) return value.text;
  if (typeof value === "string") return value;
  if (isNested(value)) return compact(value);
  return String(value);
}

/** Formats a document in one line. */
export function compact(value) {
  if (Array.isArray(value)) return `[${value.map(compact).join(", ")}]`;
  if (isNested(value)) {
    const inside = Object.entries(value).map(([name, v]) => `${name}: ${compact(v)}`);
    return `{${inside.join(", ")}}`;
  }
  return typeof value === "string" ? JSON.stringify(value) : textOf(value);
}

/** Formats canonical extended JSON in the relaxed form, over several lines. */
export function pretty(json) {
  return JSON.stringify(relaxed(json), null, 2);
}

/** Returns canonical extended JSON in the relaxed form. */
export function relaxed(json) {
  if (Array.isArray(json)) return json.map(relaxed);
  if (json === null || typeof json !== "object") return json;
  const names = Object.keys(json);
  if (names.length === 1) {
    const value = json[names[0]];
    const number = Number(value);
    switch (names[0]) {
      case "$numberInt":
        return number;
      case "$numberDouble":
        return Number.isFinite(number) ? number : json;
      case "$numberLong":
        return Number.isSafeInteger(number) ? number : json;
      case "$date": {
        const date = decode(json);
        return Number.isNaN(date.getTime()) ? json : { $date: dateText(date) };
      }
    }
  }
  const out = {};
  for (const name of names) Object.defineProperty(out, name, { value: relaxed(json[name]), enumerable: true });
  return out;
}

const DEPTH_MAX = 3;

/** Returns the fields of a document by path, with nested documents expanded. */
export function flatten(document, prefix = "", depth = 0, out = new Map()) {
  for (const [name, value] of Object.entries(document)) {
    const path = prefix + name;
    const opens = isNested(value) && !Array.isArray(value) && depth < DEPTH_MAX - 1 && Object.keys(value).length > 0;
    if (opens) flatten(value, `${path}.`, depth + 1, out);
    else out.set(path, value);
  }
  return out;
}
