// Numbers as people read them.

const digits = (value: number): string => {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e15 || size < 1e-4) return value.toExponential(2);
  if (size >= 100) return Math.round(value).toLocaleString("en-US").replaceAll(",", " ");
  return String(Number(value.toPrecision(3)));
};

const scaled = (value: number, steps: [number, string][]): string => {
  const size = Math.abs(value);
  const [unit, name] = steps.find(([least]) => size >= least) ?? steps[steps.length - 1];
  return `${digits(value / unit)} ${name}`;
};

export function seconds(value: number): string {
  if (value !== value) return "–";
  if (value === 0) return "0 s";
  if (Math.abs(value) >= 60) return clock(value);
  return scaled(value, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]]);
}

/** 1 h 02 min 03 s */
function clock(value: number): string {
  const whole = Math.round(Math.abs(value));
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (part: number): string => String(part).padStart(2, "0");
  const text = hours ? `${hours} h ${two(minutes)} min` : `${minutes} min ${two(rest)} s`;
  return value < 0 ? `−${text}` : text;
}

const BINARY: [number, string][] = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];
const THOUSANDS: [number, string][] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
/** Units with other names for their thousands. */
const UNITS: Record<string, (value: number) => string> = {
  s: seconds,
  ns: (value) => seconds(value * 1e-9),
  us: (value) => seconds(value * 1e-6),
  "µs": (value) => seconds(value * 1e-6),
  ms: (value) => seconds(value * 1e-3),
  B: (value) => scaled(value, BINARY),
  "B/s": (value) => `${scaled(value, BINARY)}/s`,
  ratio: (value) => `${digits(value * 100)} %`,
  share: (value) => `${digits(value * 100)} %`,
  "%": (value) => `${digits(value)} %`,
};

/** Units as metrics are named with, and as people write them. */
const WRITTEN: Record<string, string> = {
  percent: "%", bytes: "B", seconds: "s", milliseconds: "ms", microseconds: "µs", nanoseconds: "ns", count: "",
  celsius: "°C", watts: "W", megahertz: "MHz", mhz: "MHz",
};
export function unitName(unit: string): string {
  if (Object.hasOwn(WRITTEN, unit)) return WRITTEN[unit];
  const each = /^(?:(\w+)_)?per_s$/.exec(unit);
  return each ? `${each[1] ? unitName(each[1]) : ""}/s` : unit;
}

/** Whether its amounts are scaled with their unit; else the unit is said once for all. */
export const ownUnit = (unit: string): boolean => Object.hasOwn(UNITS, unitName(unit));

/** With its unit. */
export function amount(value: number | null | undefined, of = ""): string {
  const unit = unitName(of);
  if (value === null || value === undefined || value !== value) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const own = ownUnit(unit) ? UNITS[unit] : undefined;
  if (own) return own(value).replace("-", "−");
  const large = Math.abs(value) >= 1e5 ? scaled(value, THOUSANDS) : digits(value);
  return (unit ? `${large}${unit.startsWith("/") ? "" : " "}${unit}` : large).replace("-", "−");
}

/** A change as people say it: +12 %. */
export function change(now: number, before: number): string {
  if (!(before > 0) || now !== now) return "";
  const percent = (now / before - 1) * 100;
  if (Math.abs(percent) < 0.05) return "±0 %";
  return `${percent > 0 ? "+" : "−"}${digits(Math.abs(percent))} %`;
}

/** Round distances between the ticks of an axis: 1, 2 or 5 times a power of ten. */
export function ticks(low: number, high: number, most: number): number[] {
  const raw = (high - low) / Math.max(1, most);
  if (!(raw > 0) || !Number.isFinite(raw)) return [];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw)! * power;
  const first = Math.ceil(low / step);
  const found: number[] = [];
  for (let k = first; k * step <= high && found.length <= most + 2; k++) found.push(k * step);
  return found;
}

/** Ticks of amounts: of bytes at multiples of KiB, MiB, … */
export function unitTicks(low: number, high: number, most: number, unit: string): number[] {
  if (!/^B(\/s)?$/.test(unitName(unit))) return ticks(low, high, most);
  const size = Math.max(Math.abs(low), Math.abs(high));
  const scale = size >= 1024 ? 1024 ** Math.floor(Math.log2(size) / 10) : 1;
  return ticks(low / scale, high / scale, most).map((tick) => tick * scale);
}

/** The label of a tick, as precise as the ticks are apart. */
export function tickLabel(value: number, apart: number, unit: string): string {
  if (unit !== "s") return amount(Number(value.toPrecision(12)), unit);
  if (apart >= 1) return value >= 60 ? seconds(value) : `${Number(value.toPrecision(12))} s`;
  const [scale, name] = apart >= 1e-3 ? [1e3, "ms"] : apart >= 1e-6 ? [1e6, "µs"] : [1e9, "ns"];
  if (Math.abs(value) >= 1) {
    const places = Math.min(9, Math.max(0, Math.ceil(-Math.log10(apart) - 1e-9)));
    return `${value.toFixed(places)} s`;
  }
  return `${Number((value * scale).toPrecision(10))} ${name}`;
}

/** A sentence in which no line ends between a number and its unit. */
export function unbroken(text: string): string {
  return text.replace(/(\d) (?=(?:%|[nµm]?s|min|h|[KMGT]?i?B)(?![\w]))/g, "$1\u00a0");
}
