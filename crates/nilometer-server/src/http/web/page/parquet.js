// Parquet files: their columns, and the values of one row group after the other.
//
//   PAR1 | pages of the columns of each row group | metadata | its length | PAR1
//
// Columns of values, also inside of structs, are read; lists and maps are named and left out. A value that is null is missing.

import { ByteReader } from "./byte_reader.js";
import { unpack } from "./compression.js";
import { readStruct } from "./thrift.js";

const MAGIC = "PAR1";

/** Maximum bytes of the metadata, and of the columns of a row group, which are held in memory. */
const METADATA_BYTES_MAX = 64 * 1024 * 1024;
const GROUP_BYTES_MAX = 512 * 1024 * 1024;
const PAGE_BYTES_MAX = 256 * 1024 * 1024;

/** Maximum rows of a row group. */
const GROUP_ROWS_MAX = 16 * 1024 * 1024;

/** Physical types, by Parquet's numbers. */
const [BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTES, FIXED] = [0, 1, 2, 3, 4, 5, 6, 7];

const REPEATED = 2;
const OPTIONAL = 1;

const cut = () => new Error("The file is cut, or a length in it is wrong.");

/** True if the file begins as Parquet does. */
export async function isParquet(file) {
  return (await file.slice(0, 4).text()) === MAGIC;
}

/** Opens a file: `columns`, each with its `name`, `path` and `type`, `rows`, and `readGroup(number, columns)`. */
export async function openParquet(file) {
  const bytes = async (from, to) => {
    if (!(from >= 0 && from <= to && to <= file.size)) throw cut();
    return new Uint8Array(await file.slice(from, to).arrayBuffer());
  };
  if (file.size < 12) throw cut();
  const end = await bytes(file.size - 8, file.size);
  const letters = new TextDecoder().decode(end.subarray(4));
  if (letters === "PARE") throw new Error("The file is encrypted.");
  if (letters !== MAGIC) throw new Error("The file begins as Parquet, and does not end so: it is not complete.");
  const length = new ByteReader(end).u32();
  if (length > METADATA_BYTES_MAX || length > file.size - 12) throw cut();
  const metadata = readStruct(new ByteReader(await bytes(file.size - 8 - length, file.size - 8)));
  const columns = columnsOf(metadata[2] ?? []);
  const groups = metadata[4] ?? [];
  return {
    columns,
    rows: metadata[3] ?? 0,
    groups: groups.length,
    readGroup: (number, chosen) => readGroup(bytes, groups[number], chosen),
  };
}

/** The leaves of the schema, which is a list of nodes, each with the number of its children. */
function columnsOf(schema) {
  const text = (value) => new TextDecoder().decode(value);
  const columns = [];
  let at = 1;
  const walk = (count, path, level, inList) => {
    for (let nth = 0; nth < count; nth += 1) {
      const node = schema[at++];
      if (!node || path.length > 30) throw new Error("The schema of the file is not complete, or nested too deeply.");
      const name = [...path, text(node[4])];
      const below = level + (node[3] === OPTIONAL || node[3] === REPEATED ? 1 : 0);
      const repeats = inList || node[3] === REPEATED;
      if (node[5] > 0) walk(node[5], name, below, repeats);
      else columns.push({ number: columns.length, path: name, name: name.join("."), levels: below, physical: node[1], length: node[2] ?? 0, ...(repeats ? { type: null } : meaning(node)) });
    }
  };
  walk(schema[0]?.[5] ?? 0, [], 0, false);
  return columns;
}

const number = (field) => (value) => ({ [field]: String(value) });
const date = (millis) => ({ $date: { $numberLong: String(millis) } });
const hex = (value) => [...value].map((byte) => byte.toString(16).padStart(2, "0")).join("");
const base64 = (value) => btoa(String.fromCharCode(...value));
const decoder = new TextDecoder("utf-8", { fatal: true });

/** What a column means: its `type` as it is shown, and how a value becomes extended JSON. */
function meaning(node) {
  const { 1: physical, 6: converted, 10: logical = {} } = node;
  const decimal = logical[5] ?? (converted === 5 ? { 1: node[7] ?? 0 } : null);
  if (decimal) return { type: "decimal", json: (value) => ({ $numberDecimal: pointed(toBigInt(value), decimal[1] ?? 0) }) };
  const unit = logical[8]?.[2] ? (logical[8][2][1] ? 1n : logical[8][2][2] ? 1000n : 1_000_000n) : { 9: 1n, 10: 1000n }[converted];
  // Dates have milliseconds: finer times are rounded down.
  if (unit && physical === INT64) return { type: "date", json: (value) => date(floorDivide(value, unit)) };
  if (logical[6] || converted === 6) return { type: "date", json: (value) => date(value * 86_400_000) };
  const isUnsigned = logical[10] ? logical[10][2] === false : converted >= 11 && converted <= 14;
  switch (physical) {
    case BOOLEAN:
      return { type: "boolean", json: (value) => value };
    case INT32:
      return { type: "integer", json: isUnsigned ? (value) => number("$numberLong")(value >>> 0) : number("$numberInt") };
    case INT64:
      // What no long holds is a decimal.
      if (isUnsigned) return { type: "integer", json: (value) => (value < 0n ? number("$numberDecimal")(BigInt.asUintN(64, value)) : number("$numberLong")(value)) };
      return { type: "integer", json: number("$numberLong") };
    case INT96:
      return { type: "date", json: (value) => date(value) };
    case FLOAT:
    case DOUBLE:
      return { type: "double", json: (value) => ({ $numberDouble: Object.is(value, -0) ? "-0.0" : String(value) }) };
    case BYTES:
    case FIXED: {
      const isText = [1, 4, 12].some((kind) => logical[kind]) || [0, 4, 19].includes(converted);
      if (isText) return { type: "text", json: (value) => decoder.decode(value) };
      if (logical[14] && node[2] === 16) return { type: "UUID", json: (value) => ({ $binary: { base64: base64(value), subType: "04" } }) };
      return { type: "binary", json: (value) => ({ $binary: { base64: base64(value), subType: "00" } }) };
    }
    default:
      return { type: null };
  }
}

function floorDivide(value, by) {
  const quotient = value / by;
  return value % by < 0n ? quotient - 1n : quotient;
}

/** The integer that a decimal is stored as: a number, or bytes from the highest on. */
function toBigInt(value) {
  if (!(value instanceof Uint8Array)) return BigInt(value);
  return value.length === 0 ? 0n : BigInt.asIntN(8 * value.length, BigInt(`0x${hex(value)}`));
}

function pointed(digits, scale) {
  return scale === 0 ? String(digits) : `${digits}E-${scale}`;
}

/** Reads the values of columns in a row group: an array for each, undefined where a value is null. */
async function readGroup(bytes, group, columns) {
  const rows = group[3];
  if (!(rows >= 0 && rows <= GROUP_ROWS_MAX)) throw new Error(`A row group has ${rows} rows; the page takes ${GROUP_ROWS_MAX}. Use nilometer import.`);
  const chunks = columns.map((column) => group[1]?.[column.number]?.[3]);
  if (chunks.some((chunk) => !chunk)) throw new Error("A row group lacks a column, or has it in another file.");
  const size = chunks.reduce((sum, chunk) => sum + chunk[6], 0);
  if (!(size <= GROUP_BYTES_MAX)) throw new Error(`The columns of a row group have ${size} bytes; the page takes ${GROUP_BYTES_MAX}. Use nilometer import.`);
  const out = [];
  for (const [at, column] of columns.entries()) {
    const chunk = chunks[at];
    const from = Math.min(chunk[9], chunk[11] > 0 ? chunk[11] : Infinity);
    out.push(await readColumn(await bytes(from, from + chunk[7]), chunk[4], column, rows));
  }
  return { rows, values: out };
}

async function readColumn(bytes, codec, column, rows) {
  const reader = new ByteReader(bytes);
  const out = new Array(rows);
  let dictionary = null;
  let row = 0;
  while (row < rows) {
    const head = readStruct(reader);
    const [kind, size, packed] = [head[1], head[2], reader.take(head[3])];
    if (!(size >= 0 && size <= PAGE_BYTES_MAX)) throw cut();
    if (kind === 2) {
      const page = new ByteReader(await unpack(codec, packed, size));
      dictionary = readPlain(page, column, countOf(head[7]?.[1], size * 8));
    } else if (kind === 0) {
      const page = new ByteReader(await unpack(codec, packed, size));
      const count = countOf(head[5]?.[1], rows - row);
      let levels = null;
      if (column.levels > 0) levels = readHybrid(page.skipTo(page.u32()), levelBits(column), count);
      place(out, row, count, levels, column, head[5][2], page, dictionary);
      row += count;
    } else if (kind === 3) {
      const { 1: values, 4: encoding, 5: levelBytes, 6: repetitionBytes, 7: isPacked = true } = head[8] ?? {};
      const count = countOf(values, rows - row);
      const levelReader = new ByteReader(packed);
      levelReader.skip(repetitionBytes);
      const levels = column.levels > 0 ? readHybrid(levelReader.skipTo(levelBytes), levelBits(column), count) : null;
      const rest = packed.subarray(repetitionBytes + levelBytes);
      const page = new ByteReader(await unpack(isPacked ? codec : 0, rest, size - repetitionBytes - levelBytes));
      place(out, row, count, levels, column, encoding, page, dictionary);
      row += count;
    }
  }
  return out;
}

function countOf(count, most) {
  if (!(count >= 0 && count <= most)) throw cut();
  return count;
}

const levelBits = ({ levels }) => 32 - Math.clz32(levels);

/** Puts the values of a page into their rows. */
function place(out, row, count, levels, column, encoding, page, dictionary) {
  const present = levels === null ? count : levels.reduce((sum, level) => sum + (level === column.levels ? 1 : 0), 0);
  const values = readValues(page, column, encoding, present, dictionary);
  let next = 0;
  for (let nth = 0; nth < count; nth += 1) {
    if (levels === null || levels[nth] === column.levels) out[row + nth] = values[next++];
  }
}

function readValues(page, column, encoding, count, dictionary) {
  switch (encoding) {
    case 0:
      return readPlain(page, column, count);
    case 2:
    case 8: {
      if (dictionary === null) throw new Error(`The column ${column.name} refers to a dictionary that is not there.`);
      if (count === 0) return [];
      const numbers = readHybrid(page, page.u8(), count);
      return Array.from(numbers, (at) => {
        if (at >= dictionary.length) throw cut();
        return dictionary[at];
      });
    }
    case 3: {
      const bits = readHybrid(page.skipTo(page.u32()), 1, count);
      return Array.from(bits, (bit) => bit === 1);
    }
    case 5:
      return readDeltas(page, count).map((value) => (column.physical === INT32 ? Number(BigInt.asIntN(32, value)) : value));
    case 6:
      return lengths(page, count).map((length) => page.take(length));
    case 7:
      return readPrefixed(page, count);
    case 9:
      return readPlain(joined(page, column, count), column, count);
    default:
      throw new Error(`The column ${column.name} has the encoding ${encoding}, which the page does not read.`);
  }
}

function readPlain(page, column, count) {
  const { view } = page;
  const many = (size, read) => {
    const from = page.skip(count * size);
    return Array.from({ length: count }, (_, nth) => read(from + nth * size));
  };
  switch (column.physical) {
    case BOOLEAN: {
      const bits = page.take((count + 7) >> 3);
      return Array.from({ length: count }, (_, nth) => ((bits[nth >> 3] >> (nth & 7)) & 1) === 1);
    }
    case INT32:
      return many(4, (at) => view.getInt32(at, true));
    case INT64:
      return many(8, (at) => view.getBigInt64(at, true));
    // Nanoseconds of a day and the number of the day, which is 2,440,588 in 1970.
    case INT96:
      return many(12, (at) => (view.getInt32(at + 8, true) - 2_440_588) * 86_400_000 + Number(view.getBigInt64(at, true) / 1_000_000n));
    case FLOAT:
      return many(4, (at) => view.getFloat32(at, true));
    case DOUBLE:
      return many(8, (at) => view.getFloat64(at, true));
    case BYTES: {
      // Each has its length before it.
      if (count > page.left / 4) throw cut();
      return Array.from({ length: count }, () => page.take(page.u32()));
    }
    default:
      return many(column.length, (at) => page.bytes.subarray(at, at + column.length));
  }
}

/** Reads numbers of a few bits: runs of one number, and groups of eight numbers. */
function readHybrid(reader, width, count) {
  if (width > 32) throw cut();
  const out = new Uint32Array(count);
  if (width === 0) return out;
  const bytes = (width + 7) >> 3;
  for (let at = 0; at < count; ) {
    const head = reader.varint();
    if (head % 2 === 0) {
      const end = Math.min(count, at + head / 2);
      let value = 0;
      for (let nth = 0; nth < bytes; nth += 1) value += reader.u8() * 256 ** nth;
      if (end === at) throw cut();
      out.fill(value, at, end);
      at = end;
    } else {
      const groups = (head - 1) / 2;
      // The last group may be cut.
      const packed = reader.take(Math.min(groups * width, reader.left));
      const end = Math.min(count, at + groups * 8);
      if (end === at || packed.length * 8 < (end - at) * width) throw cut();
      for (let bit = 0; at < end; at += 1, bit += width) out[at] = bitsAt(packed, bit, width);
    }
  }
  return out;
}

function bitsAt(bytes, bit, width) {
  let value = 0;
  for (let have = -(bit & 7), at = bit >> 3; have < width; have += 8, at += 1) value += (bytes[at] ?? 0) * 2 ** have;
  return Math.floor(value) % 2 ** width;
}

/** Reads differences, packed in blocks with a smallest one: 64-bit integers. */
function readDeltas(reader, count) {
  const [blockSize, parts, total] = [reader.varint(), reader.varint(), reader.varint()];
  if (total < count || parts === 0 || blockSize % parts !== 0 || blockSize > 1 << 20) throw cut();
  const ofPart = blockSize / parts;
  let value = reader.bigZigzag();
  const out = total > 0 ? [value] : [];
  while (out.length < total) {
    const least = reader.bigZigzag();
    const widths = reader.take(parts);
    for (let part = 0; part < parts && out.length < total; part += 1) {
      const width = widths[part];
      if (width > 64) throw cut();
      const packed = reader.take((width * ofPart) / 8);
      for (let nth = 0; nth < ofPart && out.length < total; nth += 1) {
        value = BigInt.asIntN(64, value + least + bigBitsAt(packed, nth * width, width));
        out.push(value);
      }
    }
  }
  return out.slice(0, count);
}

function bigBitsAt(bytes, bit, width) {
  if (width <= 32) return BigInt(bitsAt(bytes, bit, width));
  const low = BigInt(bitsAt(bytes, bit, 32));
  return low + (BigInt(bitsAt(bytes, bit + 32, width - 32)) << 32n);
}

function lengths(reader, count) {
  return readDeltas(reader, count).map(Number);
}

/** Reads texts of which each begins as the one before it. */
function readPrefixed(page, count) {
  const prefixes = lengths(page, count);
  let before = new Uint8Array(0);
  return lengths(page, count).map((length, nth) => {
    const prefix = prefixes[nth];
    if (!(prefix >= 0 && prefix <= before.length)) throw cut();
    const out = new Uint8Array(prefix + length);
    out.set(before.subarray(0, prefix));
    out.set(page.take(length), prefix);
    before = out;
    return out;
  });
}

/** Returns values whose first, second and further bytes stand together, one after the other. */
function joined(page, column, count) {
  const size = { [INT32]: 4, [FLOAT]: 4, [INT64]: 8, [DOUBLE]: 8 }[column.physical] ?? column.length;
  const from = page.skip(count * size);
  const out = new Uint8Array(count * size);
  for (let byte = 0; byte < size; byte += 1) {
    for (let nth = 0; nth < count; nth += 1) out[nth * size + byte] = page.bytes[from + byte * count + nth];
  }
  return new ByteReader(out);
}
