// Bytes that are read with bounds.

/** A position in bytes. Reading beyond the end is an error. */
export class ByteReader {
  constructor(bytes, at = 0, end = bytes.length) {
    if (at > end || end > bytes.length) throw new Error("The file is cut, or a length in it is wrong.");
    Object.assign(this, { bytes, at, end });
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  get left() {
    return this.end - this.at;
  }

  /** Goes forward; returns the position before. */
  skip(length) {
    if (!(length >= 0 && length <= this.left)) throw new Error("The file is cut, or a length in it is wrong.");
    const { at } = this;
    this.at += length;
    return at;
  }

  take(length) {
    const at = this.skip(length);
    return this.bytes.subarray(at, at + length);
  }

  /** Goes forward; returns a reader of the bytes between. */
  skipTo(length) {
    const at = this.skip(length);
    return new ByteReader(this.bytes, at, at + length);
  }

  u8() {
    return this.bytes[this.skip(1)];
  }

  u32() {
    return this.view.getUint32(this.skip(4), true);
  }

  i32() {
    return this.view.getInt32(this.skip(4), true);
  }

  /** An unsigned integer in groups of seven bits; exact up to 2^53. */
  varint() {
    let value = 0;
    for (let factor = 1, count = 0; count < 10; factor *= 128, count += 1) {
      const byte = this.u8();
      value += (byte & 0x7f) * factor;
      if (byte < 0x80) return value;
    }
    throw new Error("A number in the file has too many bytes.");
  }

  /** The same with the sign in the lowest bit. */
  zigzag() {
    const value = this.varint();
    return value % 2 === 0 ? value / 2 : -(value + 1) / 2;
  }

  /** The same, exact up to 64 bits. */
  bigZigzag() {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const byte = this.u8();
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return BigInt.asIntN(64, value & 1n ? -(value >> 1n) - 1n : value >> 1n);
    }
    throw new Error("A number in the file has too many bytes.");
  }
}

/** Copies bytes that were written `offset` before; they may overlap what is written. */
export function copyBack(out, at, offset, length) {
  if (offset === 0 || offset > at || at + length > out.length) throw new Error("A compressed page of the file refers to bytes that are not there.");
  if (offset >= length) out.copyWithin(at, at - offset, at - offset + length);
  else for (let done = 0; done < length; done += 1) out[at + done] = out[at + done - offset];
  return at + length;
}
