// CSV: a parser that takes text in pieces, and guesses of delimiters and types. RFC 4180: fields may stand in double quotes, a
// quote inside is doubled, a quoted field may hold delimiters and line ends.

/** Maximum letters of a record; a longer one has an unclosed quote. */
const RECORD_LETTERS_MAX = 1_000_000;

/** Delimiters that are tried. */
const DELIMITERS = [",", ";", "\t", "|"];

/** Returns the delimiter that occurs most often outside of quotes in the first line. */
export function guessDelimiter(text) {
  const [line] = text.replace(/"[^"]*"/g, "").split(/\r?\n/, 1);
  const counts = DELIMITERS.map((one) => [line.split(one).length, one]);
  return counts.reduce((best, one) => (one[0] > best[0] ? one : best))[1];
}

/** A parser: `push(text)` and `finish()` give complete records, {line, fields}; `line` is the number of its first line, from 1. */
export class CsvParser {
  constructor(delimiter) {
    this.delimiter = delimiter;
    this.line = 1;
    this.isFirst = true;
    this.begin();
  }

  begin() {
    this.fields = [];
    this.field = "";
    this.letters = 0;
    // Quotes: "none" outside, "open" inside, "ended" after a closing or before a doubled one.
    this.quotes = "none";
    this.from = this.line;
  }

  push(text) {
    const records = [];
    let at = this.isFirst && text.startsWith("\ufeff") ? 1 : 0;
    if (text.length > 0) this.isFirst = false;
    for (; at < text.length; at += 1) this.take(text[at], records);
    return records;
  }

  take(letter, records) {
    this.letters += 1;
    if (this.letters > RECORD_LETTERS_MAX) throw new Error(`Line ${this.from}: the record has more than ${RECORD_LETTERS_MAX.toLocaleString("en-US")} letters; a quote may be unclosed.`);
    if (letter === "\n") this.line += 1;
    if (this.quotes === "open") {
      if (letter === '"') this.quotes = "ended";
      else this.field += letter;
    } else if (letter === '"' && (this.field === "" || this.quotes === "ended")) {
      if (this.quotes === "ended") this.field += letter;
      this.quotes = "open";
    } else if (letter === this.delimiter) this.endField();
    else if (letter === "\n") this.endRecord(records);
    else if (letter !== "\r") this.field += letter;
  }

  endField() {
    this.fields.push(this.field);
    this.field = "";
    this.quotes = "none";
  }

  endRecord(records) {
    const isEmpty = this.fields.length === 0 && this.field === "";
    this.endField();
    if (!isEmpty) records.push({ line: this.from, fields: this.fields });
    this.begin();
  }

  finish() {
    const records = [];
    if (this.quotes === "open") throw new Error(`Line ${this.from}: the quote is not closed.`);
    if (this.letters > 0) this.endRecord(records);
    return records;
  }
}

const INT64 = [-(2n ** 63n), 2n ** 63n - 1n];
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/;
const ISO = /^(\d{4}-\d{2}-\d{2})([T ](\d{2}:\d{2}(:\d{2})?)([.,]\d{1,9})?)? ?(Z|[+-]\d{2}:?\d{2})?$/;

function isoMillis(text) {
  const parts = ISO.exec(text);
  if (!parts) return NaN;
  const [, day, , time = "00:00", , fraction = "", zone = "Z"] = parts;
  const colon = /^[+-]\d{4}$/.test(zone) ? `${zone.slice(0, 3)}:${zone.slice(3)}` : zone;
  const seconds = time.length === 5 ? `${time}:00` : time;
  return Date.parse(`${day}T${seconds}${fraction.replace(",", ".").slice(0, 4)}${colon}`);
}

const date = (millis) => (Number.isSafeInteger(millis) && Math.abs(millis) <= 8.64e15 ? { $date: { $numberLong: String(millis) } } : undefined);

/** Types of a column: how a text becomes extended JSON; undefined if it is no such value. The order is that of guesses. */
export const TYPES = {
  "date, ISO 8601": (text) => date(isoMillis(text)),
  "date, seconds since 1970": (text) => (NUMBER.test(text) ? date(Math.round(Number(text) * 1000)) : undefined),
  "date, milliseconds since 1970": (text) => (/^-?\d+$/.test(text) ? date(Number(text)) : undefined),
  integer(text) {
    if (!/^[+-]?\d{1,19}$/.test(text)) return undefined;
    const number = BigInt(text.replace("+", ""));
    return number >= INT64[0] && number <= INT64[1] ? (number === BigInt(Number(number) | 0) ? Number(number) : { $numberLong: String(number) }) : undefined;
  },
  double: (text) => (NUMBER.test(text) ? { $numberDouble: String(Number(text)) } : undefined),
  boolean: (text) => ({ true: true, false: false })[text.toLowerCase()],
  text: (text) => text,
};

/** True if a number is a time after 1990 and before 2100, in these units per second. */
const isRecent = (text, unit) => Number(text) >= 631_152_000 * unit && Number(text) < 4_102_444_800 * unit;

/** Returns the type of all texts of a column; `name` tells numbers that are times from others. */
export function guessType(name, texts) {
  const filled = texts.filter((text) => text !== "");
  if (filled.length === 0) return "text";
  const isTime = /time|date|^ts$|stamp|epoch/i.test(name);
  const fits = (type) => filled.every((text) => TYPES[type](text) !== undefined);
  if (isTime && fits("integer")) {
    if (filled.every((text) => isRecent(text, 1000))) return "date, milliseconds since 1970";
    if (filled.every((text) => isRecent(text, 1))) return "date, seconds since 1970";
  }
  return ["date, ISO 8601", "integer", "double", "boolean"].find(fits) ?? "text";
}
