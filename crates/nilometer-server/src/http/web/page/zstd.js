// Decompression of Zstandard frames without dictionaries (RFC 8878).
//
//   frame: magic, header, blocks            compressed block: literals, by a Huffman code
//   block: bytes | one byte, repeated |                       sequences (literals to copy, bytes to repeat), by three FSE codes
//          compressed

import { ByteReader, copyBack } from "./byte_reader.js";

const MAGIC = 0xfd2fb528;
const BLOCK_BYTES_MAX = 128 * 1024;
const HUFFMAN_BITS_MAX = 11;

/** Lengths of literals and of matches by their codes: the base, and the bits that are added. */
const LITERALS = [...Array.from({ length: 16 }, (_, at) => [at, 0]), [16, 1], [18, 1], [20, 1], [22, 1], [24, 2], [28, 2], [32, 3], [40, 3], [48, 4], ...Array.from({ length: 11 }, (_, at) => [2 ** (at + 6), at + 6])];
const MATCHES = [...Array.from({ length: 32 }, (_, at) => [at + 3, 0]), [35, 1], [37, 1], [39, 1], [41, 1], [43, 2], [47, 2], [51, 3], [59, 3], [67, 4], [83, 4], [99, 5], ...Array.from({ length: 10 }, (_, at) => [2 ** (at + 7) + 3, at + 7])];

/** The distributions that a block need not contain, as the format defines them: how often a code occurs, -1 for less than once. */
const many = (count, value) => new Array(count).fill(value);
const DEFAULTS = {
  literals: [6, [4, 3, ...many(11, 2), 1, 1, 1, ...many(9, 2), 3, 2, ...many(5, 1), ...many(4, -1)]],
  matches: [6, [1, 4, 3, ...many(6, 2), ...many(37, 1), ...many(7, -1)]],
  offsets: [5, [...many(6, 1), 2, 2, 2, ...many(15, 1), ...many(5, -1)]],
};

const bad = () => new Error("A page of the file is not valid Zstandard.");

const highBit = (value) => 31 - Math.clz32(value);

/** Bits that are read from the end of bytes to their beginning. Behind the last a one was added. */
class BackwardBits {
  constructor(bytes) {
    const last = bytes.at(-1);
    if (!last) throw bad();
    this.bytes = bytes;
    this.at = (bytes.length - 1) * 8 + highBit(last);
  }

  /** The next bits; those before the beginning are zero. */
  peek(count) {
    const from = this.at - count;
    if (from < 0) return this.at > 0 ? this.slice(0, this.at) * 2 ** -from : 0;
    return this.slice(from, count);
  }

  slice(from, count) {
    const { bytes } = this;
    const at = from >> 3;
    const shift = from & 7;
    if (shift + count <= 24) return ((bytes[at] | (bytes[at + 1] << 8) | (bytes[at + 2] << 16)) >> shift) & ((1 << count) - 1);
    let value = 0;
    for (let nth = 4; nth >= 0; nth -= 1) value = value * 256 + (bytes[at + nth] ?? 0);
    return Math.floor(value / 2 ** shift) % 2 ** count;
  }

  read(count) {
    const value = this.peek(count);
    this.at -= count;
    return value;
  }
}

/** Reads a distribution: the bits of its states and the counts of codes. */
function readDistribution(reader, bitsMax, codesMax) {
  let bit = 0;
  const start = reader.at;
  const read = (count) => {
    let value = 0;
    for (let nth = 0; nth < count; nth += 1, bit += 1) {
      const byte = reader.bytes[start + (bit >> 3)];
      if (start + (bit >> 3) >= reader.end) throw bad();
      value |= ((byte >> (bit & 7)) & 1) << nth;
    }
    return value;
  };
  const bits = read(4) + 5;
  if (bits > bitsMax) throw bad();
  const counts = [];
  let left = 1 << bits;
  while (left > 0 && counts.length < codesMax) {
    const width = highBit(left + 1) + 1;
    const low = (1 << (width - 1)) - 1;
    const short = (1 << width) - 1 - (left + 1);
    let value = read(width);
    if ((value & low) < short) {
      // The last bit belongs to the next number.
      bit -= 1;
      value &= low;
    } else if (value > low) value -= short;
    const count = value - 1;
    left -= Math.abs(count);
    counts.push(count);
    for (let repeat = count === 0 ? 3 : 0; repeat === 3; ) {
      repeat = read(2);
      for (let nth = 0; nth < repeat; nth += 1) counts.push(0);
    }
  }
  if (left !== 0 || counts.length > codesMax) throw bad();
  reader.skip((bit + 7) >> 3);
  return [bits, counts];
}

/** Returns the states of a distribution: the code of each, and from which states it follows. */
function buildStates([bits, counts]) {
  const size = 1 << bits;
  const codes = new Uint8Array(size);
  const next = counts.map((count) => Math.abs(count));
  let high = size;
  counts.forEach((count, code) => {
    if (count === -1) codes[--high] = code;
  });
  const step = (size >> 1) + (size >> 3) + 3;
  let at = 0;
  counts.forEach((count, code) => {
    for (let nth = 0; nth < count; nth += 1) {
      codes[at] = code;
      do at = (at + step) & (size - 1);
      while (at >= high);
    }
  });
  const widths = new Uint8Array(size);
  const bases = new Uint16Array(size);
  codes.forEach((code, state) => {
    const number = next[code]++;
    widths[state] = bits - highBit(number);
    bases[state] = (number << widths[state]) - size;
  });
  return { bits, codes, widths, bases };
}

/** The states of a code that always occurs. */
const oneState = (code) => ({ bits: 0, codes: [code], widths: [0], bases: [0] });

/** Reads the weights of a Huffman code; returns its table: the byte and the length of the code for each beginning of bits. */
function readHuffman(reader) {
  const head = reader.u8();
  let weights = [];
  if (head >= 128) {
    const count = head - 127;
    const packed = reader.take((count + 1) >> 1);
    weights = Array.from({ length: count }, (_, at) => (at % 2 === 0 ? packed[at >> 1] >> 4 : packed[at >> 1] & 15));
  } else {
    const part = new ByteReader(reader.take(head));
    const states = buildStates(readDistribution(part, 6, 256));
    const bits = new BackwardBits(part.take(part.left));
    const current = [bits.read(states.bits), bits.read(states.bits)];
    // Two states take turns until the bits end; then the other one gives the last weight.
    for (let turn = 0; ; turn ^= 1) {
      const state = current[turn];
      weights.push(states.codes[state]);
      if (weights.length > 255) throw bad();
      if (bits.at < states.widths[state]) {
        weights.push(states.codes[current[turn ^ 1]]);
        break;
      }
      current[turn] = states.bases[state] + bits.read(states.widths[state]);
    }
  }
  const sum = weights.reduce((all, weight) => all + (weight > 0 ? 1 << (weight - 1) : 0), 0);
  if (sum === 0) throw bad();
  // The last weight fills the sum up to a power of two.
  const width = highBit(sum) + 1;
  const rest = (1 << width) - sum;
  if (width > HUFFMAN_BITS_MAX || (rest & (rest - 1)) !== 0 || weights.length > 255) throw bad();
  weights.push(highBit(rest) + 1);
  const bytes = new Uint8Array(1 << width);
  const lengths = new Uint8Array(1 << width);
  let at = 0;
  for (let weight = 1; weight <= width; weight += 1) {
    weights.forEach((of, byte) => {
      if (of !== weight) return;
      const count = 1 << (weight - 1);
      bytes.fill(byte, at, at + count);
      lengths.fill(width + 1 - weight, at, at + count);
      at += count;
    });
  }
  return { width, bytes, lengths };
}

function readHuffmanStream(table, packed, out) {
  const bits = new BackwardBits(packed);
  for (let at = 0; at < out.length; at += 1) {
    const index = bits.peek(table.width);
    out[at] = table.bytes[index];
    bits.at -= table.lengths[index];
  }
  if (bits.at !== 0) throw bad();
}

/** A frame that is being read: what blocks take over from earlier ones. */
class Frame {
  constructor(out, at) {
    Object.assign(this, { out, at, start: at, huffman: null, literals: null, matches: null, offsets: null });
    this.recent = [1, 4, 8];
  }

  readBlock(bytes) {
    const reader = new ByteReader(bytes);
    const literals = this.readLiterals(reader);
    this.readSequences(reader, literals);
  }

  readLiterals(reader) {
    const head = reader.u8();
    const kind = head & 3;
    const format = (head >> 2) & 3;
    if (kind < 2) {
      const more = [0, 1, 0, 2][format];
      let size = more === 0 ? head >> 3 : head >> 4;
      for (let nth = 0; nth < more; nth += 1) size += reader.u8() << (4 + 8 * nth);
      if (size > BLOCK_BYTES_MAX) throw bad();
      return kind === 0 ? reader.take(size) : new Uint8Array(size).fill(reader.u8());
    }
    const width = [10, 10, 14, 18][format];
    let number = head >> 4;
    for (let nth = 0; nth < [2, 2, 3, 4][format]; nth += 1) number += reader.u8() * 2 ** (4 + 8 * nth);
    const size = number % 2 ** width;
    const packed = new ByteReader(reader.take(Math.floor(number / 2 ** width)));
    if (size > BLOCK_BYTES_MAX) throw bad();
    if (kind === 2) this.huffman = readHuffman(packed);
    if (this.huffman === null) throw bad();
    const out = new Uint8Array(size);
    if (format === 0) {
      readHuffmanStream(this.huffman, packed.take(packed.left), out);
      return out;
    }
    const lengths = [0, 1, 2].map(() => packed.u8() | (packed.u8() << 8));
    const part = (size + 3) >> 2;
    if (part * 3 > size) throw bad();
    for (let nth = 0; nth < 4; nth += 1) {
      const stream = packed.take(nth < 3 ? lengths[nth] : packed.left);
      readHuffmanStream(this.huffman, stream, out.subarray(nth * part, nth < 3 ? (nth + 1) * part : size));
    }
    return out;
  }

  /** The states of one of the three codes of sequences. */
  states(name, mode, reader, bitsMax, codesMax) {
    if (mode === 0) this[name] = buildStates(DEFAULTS[name]);
    else if (mode === 1) {
      const code = reader.u8();
      if (code >= codesMax) throw bad();
      this[name] = oneState(code);
    } else if (mode === 2) this[name] = buildStates(readDistribution(reader, bitsMax, codesMax));
    if (this[name] === null) throw bad();
    return this[name];
  }

  readSequences(reader, literals) {
    let count = reader.u8();
    if (count === 255) count = reader.u8() + (reader.u8() << 8) + 0x7f00;
    else if (count >= 128) count = ((count - 128) << 8) + reader.u8();
    let from = 0;
    if (count > 0) {
      const modes = reader.u8();
      const literalStates = this.states("literals", modes >> 6, reader, 9, LITERALS.length);
      const offsetStates = this.states("offsets", (modes >> 4) & 3, reader, 8, 32);
      const matchStates = this.states("matches", (modes >> 2) & 3, reader, 9, MATCHES.length);
      const bits = new BackwardBits(reader.take(reader.left));
      let [literal, offset, match] = [literalStates, offsetStates, matchStates].map((states) => bits.read(states.bits));
      for (let nth = 0; nth < count; nth += 1) {
        const offsetCode = offsetStates.codes[offset];
        const distance = 2 ** offsetCode + bits.read(offsetCode);
        const [matchBase, matchBits] = MATCHES[matchStates.codes[match]];
        const matchLength = matchBase + bits.read(matchBits);
        const [literalBase, literalBits] = LITERALS[literalStates.codes[literal]];
        const literalLength = literalBase + bits.read(literalBits);
        if (from + literalLength > literals.length) throw bad();
        this.put(literals.subarray(from, from + literalLength));
        from += literalLength;
        this.repeat(this.distance(distance, literalLength), matchLength);
        if (nth + 1 < count) {
          literal = literalStates.bases[literal] + bits.read(literalStates.widths[literal]);
          match = matchStates.bases[match] + bits.read(matchStates.widths[match]);
          offset = offsetStates.bases[offset] + bits.read(offsetStates.widths[offset]);
        }
      }
      if (bits.at !== 0) throw bad();
    }
    this.put(literals.subarray(from));
  }

  /** Returns how far back a match is: values up to three name recent distances. */
  distance(value, literalLength) {
    const { recent } = this;
    if (value > 3) {
      this.recent = [value - 3, recent[0], recent[1]];
      return value - 3;
    }
    const number = literalLength === 0 ? value : value - 1;
    const found = number < 3 ? recent[number] : recent[0] - 1;
    if (number > 0) this.recent = [found, recent[0], number === 1 ? recent[2] : recent[1]];
    return found;
  }

  put(bytes) {
    if (this.at + bytes.length > this.out.length) throw bad();
    this.out.set(bytes, this.at);
    this.at += bytes.length;
  }

  repeat(distance, length) {
    if (distance > this.at - this.start) throw bad();
    this.at = copyBack(this.out, this.at, distance, length);
  }
}

/** Returns what frames contain, `size` bytes. */
export function unpackZstd(packed, size) {
  const reader = new ByteReader(packed);
  const out = new Uint8Array(size);
  let at = 0;
  while (reader.left > 0) {
    const magic = reader.u32();
    if (magic >>> 4 === 0x184d2a5) {
      reader.skip(reader.u32());
      continue;
    }
    if (magic !== MAGIC) throw bad();
    const head = reader.u8();
    const isSingle = (head & 32) !== 0;
    if ((head & 8) !== 0) throw bad();
    if (!isSingle) reader.skip(1);
    // A dictionary would be missing.
    if ((head & 3) !== 0 && reader.take([0, 1, 2, 4][head & 3]).some((byte) => byte !== 0)) throw bad();
    reader.skip([isSingle ? 1 : 0, 2, 4, 8][head >> 6]);
    const frame = new Frame(out, at);
    for (let isLast = false; !isLast; ) {
      const block = reader.u8() | (reader.u8() << 8) | (reader.u8() << 16);
      isLast = (block & 1) === 1;
      const length = block >> 3;
      if (length > BLOCK_BYTES_MAX) throw bad();
      const kind = (block >> 1) & 3;
      if (kind === 0) frame.put(reader.take(length));
      else if (kind === 1) frame.put(new Uint8Array(length).fill(reader.u8()));
      else if (kind === 2) frame.readBlock(reader.take(length));
      else throw bad();
    }
    at = frame.at;
    // The checksum is that of the whole frame; Parquet has its own of pages.
    if ((head & 4) !== 0) reader.skip(4);
  }
  return out.subarray(0, at);
}
