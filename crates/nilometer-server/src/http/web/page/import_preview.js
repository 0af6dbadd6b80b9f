// The beginning of a file to import: its columns, with types, and its first rows; and what becomes of a row.

import { TYPES, CsvParser, guessDelimiter, guessType } from "./csv.js";
import { isParquet, openParquet } from "./parquet.js";

/** Bytes and rows of the preview. */
const PREVIEW_BYTES = 256 * 1024;
const PREVIEW_ROWS = 500;

/** Maximum columns. */
const COLUMNS_MAX = 200;

/** The choice of a column that is not imported. */
export const LEFT_OUT = "leave out";

/** Reads the head and the first rows of a file: its `columns` with guessed types, `rows`, and what it takes to read it on. */
export async function readPreview(file) {
  if (await isParquet(file)) return previewParquet(await openParquet(file), file.name);
  if (/\.parquet$/i.test(file.name)) throw new Error(`${file.name} is not a Parquet file: it does not begin as one.`);
  const text = await file.slice(0, PREVIEW_BYTES).text();
  if (text.includes("\0")) throw new Error(`${file.name} is not a text file.`);
  const delimiter = guessDelimiter(text.replace(/^\ufeff/, ""));
  const parser = new CsvParser(delimiter);
  const records = parser.push(text);
  if (file.size <= PREVIEW_BYTES) records.push(...parser.finish());
  const [head, ...rows] = records;
  if (!head || rows.length === 0) throw new Error(`${file.name} needs a line of names and a line of values.`);
  const names = head.fields.map((name, at) => name.trim() || `column${at + 1}`);
  checkNames(names, file.name);
  const sample = rows.slice(0, PREVIEW_ROWS);
  const columns = names.map((name, at) => {
    const texts = sample.map(({ fields }) => fields[at] ?? "");
    const type = guessType(name, texts);
    return { name, type, types: [...Object.keys(TYPES), LEFT_OUT], isMeta: looksLikeMeta(name, type, texts), path: name.split(".") };
  });
  return { delimiter, columns, rows: sample };
}

/** Columns and first rows of a Parquet file, whose types are known. */
async function previewParquet(parquet, fileName) {
  const { columns } = parquet;
  checkNames(columns.map(({ name }) => name), fileName);
  const readable = columns.filter(({ type }) => type !== null);
  if (parquet.rows === 0 || readable.length === 0) throw new Error(`${fileName} has no rows, or no column that can be read.`);
  const { rows, values } = await parquet.readGroup(0, readable);
  const shown = (column, value) => {
    if (value === undefined) return "";
    const json = column.json(value);
    if (column.type === "date") return new Date(Number(json.$date.$numberLong)).toJSON() ?? "";
    return typeof json === "object" ? String(json.$binary?.base64 ?? Object.values(json)[0]) : String(json);
  };
  const sample = Array.from({ length: Math.min(rows, PREVIEW_ROWS) }, (_, row) => {
    const fields = columns.map(() => "");
    for (const [at, column] of readable.entries()) fields[column.number] = shown(column, values[at][row]);
    return { line: row + 1, fields };
  });
  const previewed = columns.map((column) => {
    const texts = sample.map(({ fields }) => fields[column.number]);
    const types = column.type === null ? [LEFT_OUT] : [column.type, LEFT_OUT];
    return { ...column, type: types[0], types, isMeta: looksLikeMeta(column.name, column.type, texts) };
  });
  return { parquet, columns: previewed, rows: sample };
}

function checkNames(names, fileName) {
  if (names.length > COLUMNS_MAX) throw new Error(`${fileName} has ${names.length} columns; the page takes ${COLUMNS_MAX}.`);
  const twice = names.find((name, at) => names.indexOf(name) !== at);
  if (twice) throw new Error(`The column ${twice} occurs twice.`);
  const unfit = names.find((name) => name.startsWith("$") || name.split(".").includes(""));
  if (unfit) throw new Error(`The column ${unfit} cannot be a field: it begins with a dollar sign, or has a part without a name.`);
}

/** True for what repeats and is no measured number. */
function looksLikeMeta(name, type, texts) {
  const repeats = texts.length > 3 && new Set(texts).size <= Math.max(1, texts.length / 2);
  const isNamed = /(^|[_.])(id|host|sensor|station|device|site|location|name|unit|region)$/i.test(name);
  return repeats && (type === "text" || type === "boolean" || (type === "integer" && isNamed));
}

/** Returns the value of a column in a row as extended JSON; undefined if there is none. Throws a text if it is no such value. */
function valueOf(column, fields) {
  const given = fields[column.at];
  if (column.json) {
    if (given === undefined) return undefined;
    try {
      return column.json(given);
    } catch {
      throw `${column.name}: the bytes are no ${column.type}`;
    }
  }
  const text = column.type === "text" ? given : given.trim();
  if (text === "") return undefined;
  const value = TYPES[column.type](text);
  if (value === undefined) throw `${column.name}: "${text.slice(0, 60)}" is no ${column.type.split(",")[0]}`;
  return value;
}

/** Returns the document of a row, or what is wrong with it. */
export function documentOf({ kept, time }, fields) {
  const document = {};
  for (const column of kept) {
    let value;
    try {
      value = valueOf(column, fields);
    } catch (problem) {
      return { problem };
    }
    if (value === undefined && column.at === time?.at) return { problem: `${column.name} is empty` };
    if (value === undefined) continue;
    let place = document;
    for (const name of column.path.slice(0, -1)) {
      if (!Object.hasOwn(place, name)) define(place, name, {});
      place = place[name];
      if (place === null || typeof place !== "object") return { problem: `${column.name} stands inside of a value` };
    }
    define(place, column.path.at(-1), value);
  }
  return { document };
}

/** Sets a field; a name such as __proto__ has no other meaning. */
function define(object, name, value) {
  Object.defineProperty(object, name, { value, enumerable: true, configurable: true, writable: true });
}
