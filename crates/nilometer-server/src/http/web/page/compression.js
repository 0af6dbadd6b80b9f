// Decompression of the pages of a Parquet file: Snappy, LZ4 and, by the browser, gzip. The size of the result is known before.

import { ByteReader, copyBack } from "./byte_reader.js";
import { unpackZstd } from "./zstd.js";

/** Parquet's numbers of codecs that are not read. */
const OTHERS = { 3: "LZO", 4: "Brotli", 5: "LZ4 with frames of Hadoop" };

/** Returns the bytes of a page, `size` of them. */
export async function unpack(codec, packed, size) {
  if (codec === 0) return packed;
  const read = { 1: unpackSnappy, 2: unpackGzip, 6: unpackZstd, 7: unpackLz4 }[codec];
  if (!read) throw new Error(`The file is compressed by ${OTHERS[codec] ?? `codec ${codec}`}, which the page does not read.`);
  const bytes = await read(packed, size);
  if (bytes.length !== size) throw new Error("A compressed page of the file has another size than it says.");
  return bytes;
}

async function unpackGzip(packed, size) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const out = new Uint8Array(size);
  const reader = stream.getReader();
  let at = 0;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return out.subarray(0, at);
    // A bomb ends here.
    if (at + value.length > size) {
      await reader.cancel();
      throw new Error("A compressed page of the file is larger than it says.");
    }
    out.set(value, at);
    at += value.length;
  }
}

function put(out, at, bytes) {
  if (at + bytes.length > out.length) throw new Error("A compressed page of the file is larger than it says.");
  out.set(bytes, at);
  return at + bytes.length;
}

function unpackSnappy(packed, size) {
  const reader = new ByteReader(packed);
  if (reader.varint() !== size) throw new Error("A compressed page of the file has another size than it says.");
  const out = new Uint8Array(size);
  let at = 0;
  while (reader.left > 0) {
    const tag = reader.u8();
    if ((tag & 3) === 0) {
      let length = tag >> 2;
      if (length >= 60) {
        const count = length - 59;
        length = 0;
        for (let nth = 0; nth < count; nth += 1) length += reader.u8() * 256 ** nth;
      }
      at = put(out, at, reader.take(length + 1));
    } else if ((tag & 3) === 1) at = copyBack(out, at, ((tag >> 5) << 8) | reader.u8(), ((tag >> 2) & 7) + 4);
    else if ((tag & 3) === 2) at = copyBack(out, at, reader.u8() | (reader.u8() << 8), (tag >> 2) + 1);
    else at = copyBack(out, at, reader.u32(), (tag >> 2) + 1);
  }
  return out.subarray(0, at);
}

function unpackLz4(packed, size) {
  const reader = new ByteReader(packed);
  const out = new Uint8Array(size);
  const more = (length) => {
    if (length < 15) return length;
    let sum = length;
    for (;;) {
      const byte = reader.u8();
      sum += byte;
      if (byte < 255) return sum;
    }
  };
  let at = 0;
  while (reader.left > 0) {
    const token = reader.u8();
    at = put(out, at, reader.take(more(token >> 4)));
    // The last sequence has literals alone.
    if (reader.left === 0) break;
    const offset = reader.u8() | (reader.u8() << 8);
    at = copyBack(out, at, offset, more(token & 15) + 4);
  }
  return out.subarray(0, at);
}
