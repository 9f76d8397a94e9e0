// Numbers for people: a few digits, a unit, the same width from one look to the next.

const BYTES = ["B", "KB", "MB", "GB", "TB", "PB"];

export function bytes(value) {
  if (!(Math.abs(value) >= 1024)) return `${Math.round(value || 0)} B`;
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < BYTES.length - 1) { value /= 1024; unit += 1; }
  return `${digits(value)} ${BYTES[unit]}`;
}

export function count(value) {
  const size = Math.abs(value);
  if (!(size >= 10000)) return Number.isInteger(value) ? value.toLocaleString("en") : digits(value || 0);
  if (size < 1e6) return `${digits(value / 1e3)} k`;
  if (size < 1e9) return `${digits(value / 1e6)} M`;
  return `${digits(value / 1e9)} G`;
}

export function milliseconds(value) {
  const size = Math.abs(value);
  if (!(size >= 1)) return value ? `${digits(value)} ms` : "0 ms";
  if (size < 1000) return `${digits(value)} ms`;
  if (size < 120e3) return `${digits(value / 1e3)} s`;
  if (size < 7200e3) return `${digits(value / 60e3)} min`;
  if (size < 172800e3) return `${digits(value / 3600e3)} h`;
  return `${digits(value / 86400e3)} d`;
}

export function seconds(value) { return milliseconds(value * 1000); }

export function percent(value) { return `${Math.round(100 * value)} %`; }

export function clock(instant, spanMs = 0) {
  if (instant == null || Number.isNaN(instant)) return "";
  const date = new Date(instant);
  const time = date.toLocaleTimeString("en-GB");
  return spanMs > 86400e3 ? `${date.toLocaleDateString("en-CA")} ${time.slice(0, 5)}` : time;
}

export function eventTime(text) {
  return text ? String(text).replace("T", " ").replace(/(\.\d{1,3})\d*Z?$/, "$1").replace(/Z$/, "") : "none yet";
}

function digits(value) {
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return size >= 10 ? value.toFixed(1) : value.toPrecision(size >= 1 ? 3 : 2);
}
