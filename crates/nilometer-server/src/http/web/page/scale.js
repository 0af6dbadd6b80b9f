// Axes: positions and labels of ticks. All times are UTC.

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** Steps of a time axis up to days; months and years have no fixed length. */
const STEPS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500,
  SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND, 30 * SECOND,
  MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE,
  HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR,
  DAY, 2 * DAY, 3 * DAY, 7 * DAY, 14 * DAY,
];

/** The first Monday: weeks are counted from it. */
const MONDAY = 4 * DAY;

const MONTH_STEPS = [1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 2400, 6000, 12000];

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** Returns a step of 1, 2 or 5 times a power of ten, so that about `count` steps fill `span`. */
function niceStep(span, count) {
  const raw = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const factor = [1, 2, 5, 10].find((f) => f * power >= raw) ?? 10;
  return factor * power;
}

/** Returns ticks of numbers, and the number of decimals of their step. */
export function numberTicks(min, max, count) {
  if (!(max > min)) return { ticks: [min], step: 1 };
  const step = niceStep(max - min, count);
  const ticks = [];
  for (let i = Math.ceil(min / step - 1e-9); i * step <= max + step * 1e-9; i += 1) ticks.push(i * step);
  return { ticks, step };
}

/** Widens the bounds to whole steps, including zero if that costs little. */
export function niceBounds(min, max, count) {
  if (!Number.isFinite(min) || !Number.isFinite(max)) return [0, 1];
  if (min === max) {
    const pad = Math.abs(min) || 1;
    return min === 0 ? [0, 1] : [Math.min(0, min - pad * 0.5), max + pad * 0.5];
  }
  let low = min;
  let high = max;
  if (min > 0 && min < (max - min) * 0.6) low = 0;
  if (max < 0 && -max < (max - min) * 0.6) high = 0;
  const step = niceStep(high - low, count);
  return [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
}

/** Ticks of a time axis. */
export function timeTicks(min, max, count) {
  if (!(max > min)) return { ticks: [min], step: SECOND };
  const raw = (max - min) / Math.max(1, count);
  const step = STEPS.find((candidate) => candidate >= raw);
  const ticks = [];
  if (step !== undefined) {
    const from = step >= 7 * DAY ? MONDAY : 0;
    for (let at = from + Math.ceil((min - from) / step) * step; at <= max; at += step) ticks.push(at);
    return { ticks, step };
  }
  const months = MONTH_STEPS.find((m) => m * 30 * DAY >= raw) ?? MONTH_STEPS.at(-1);
  const first = new Date(min);
  let month = Math.floor((first.getUTCFullYear() * 12 + first.getUTCMonth()) / months) * months;
  for (;;) {
    const date = new Date(0);
    date.setUTCFullYear(Math.floor(month / 12), month % 12, 1);
    const at = date.getTime();
    if (!(at <= max) || ticks.length > 100) break;
    if (at >= min) ticks.push(at);
    month += months;
  }
  return { ticks, step: months * 30 * DAY };
}

const two = (n) => String(n).padStart(2, "0");

/** Returns the label of a tick of a time axis: no longer than the step needs. */
export function timeLabel(at, step) {
  const date = new Date(at);
  const clock = `${two(date.getUTCHours())}:${two(date.getUTCMinutes())}`;
  if (step >= 360 * DAY) return String(date.getUTCFullYear());
  if (step >= 28 * DAY) return date.getUTCMonth() === 0 ? String(date.getUTCFullYear()) : `${MONTHS[date.getUTCMonth()]} ${date.getUTCFullYear()}`;
  if (step >= DAY) return `${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]}`;
  const midnight = clock === "00:00" && date.getUTCSeconds() === 0 && date.getUTCMilliseconds() === 0;
  if (step >= MINUTE) return midnight ? `${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]}` : clock;
  if (step >= SECOND) return `${clock}:${two(date.getUTCSeconds())}`;
  return `${two(date.getUTCMinutes())}:${two(date.getUTCSeconds())}.${String(date.getUTCMilliseconds()).padStart(3, "0")}`;
}

/** Formats a number in few characters: 1.2k, 3.4M. */
export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e15)) return value.toExponential(1);
  for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit) return `${trim(value / unit, 3)}${name}`;
  }
  return trim(value, 3);
}

/** Formats with at most this many significant digits, without trailing zeros. */
function trim(value, digits) {
  return String(Number(value.toPrecision(digits)));
}

/** Formats a number with all useful digits, for a tooltip. */
export function exact(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  return String(Number(value.toPrecision(7)));
}

/** Returns the label of a tick, with as many decimals as needed to differ from its neighbours. */
export function tickLabel(value, step) {
  if (Math.abs(value) >= 10_000 || (value !== 0 && Math.abs(value) < 1e-3)) return short(value);
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return value.toFixed(Math.min(decimals, 6));
}

/** Bytes in KiB, MiB and so on. */
export function bytes(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let size = value;
  while (size >= 1024 && at < units.length - 1) {
    size /= 1024;
    at += 1;
  }
  return `${at === 0 ? size : trim(size, 3)} ${units[at]}`;
}

/** Formats a duration. */
export function duration(ms) {
  for (const [unit, one, many] of [
    [365 * DAY, "year", "years"],
    [DAY, "day", "days"],
    [HOUR, "h", "h"],
    [MINUTE, "min", "min"],
    [SECOND, "s", "s"],
  ]) {
    if (ms < unit) continue;
    const count = trim(ms / unit, 3);
    return `${count} ${count === "1" ? one : many}`;
  }
  return `${trim(ms, 3)} ms`;
}
