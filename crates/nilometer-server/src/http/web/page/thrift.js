// Messages of Thrift's compact protocol, in which Parquet has its metadata.
//
// A struct becomes an object of its values by field number. Whoever reads it knows the names.

/** Maximum structs and lists inside each other. */
const LEVELS_MAX = 32;

/** Reads a struct: an object of values by field number. */
export function readStruct(reader, level = 0) {
  if (level > LEVELS_MAX) throw new Error("The metadata of the file is nested too deeply.");
  const out = {};
  let field = 0;
  for (;;) {
    const head = reader.u8();
    if (head === 0) return out;
    field = head >> 4 === 0 ? reader.zigzag() : field + (head >> 4);
    const kind = head & 15;
    // A truth value is its type.
    out[field] = kind === 1 || kind === 2 ? kind === 1 : readValue(reader, kind, level);
  }
}

function readValue(reader, kind, level) {
  switch (kind) {
    case 1:
    case 2:
      return reader.u8() === 1;
    case 3:
      return (reader.u8() << 24) >> 24;
    case 4:
    case 5:
    case 6:
      return reader.zigzag();
    case 7:
      return reader.view.getFloat64(reader.skip(8), true);
    case 8:
      return reader.take(reader.varint());
    case 9:
    case 10:
      return readList(reader, level);
    case 12:
      return readStruct(reader, level + 1);
    default:
      throw new Error(`The metadata of the file has a value of the unknown type ${kind}.`);
  }
}

function readList(reader, level) {
  const head = reader.u8();
  const length = head >> 4 === 15 ? reader.varint() : head >> 4;
  if (length > reader.left) throw new Error("The metadata of the file has a list that is longer than the file.");
  return Array.from({ length }, () => readValue(reader, head & 15, level + 1));
}
