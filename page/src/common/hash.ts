// The URL hash: #tab=run&rank=3&step=17&from=1.5&to=2&view=0~10
import type { Place } from "../document.ts";

export interface Spot extends Place {
  /** What is visible of the time axis. */
  view?: [number, number];
  /** The reader's marks. */
  marks?: number[];
}

const rounded = (value: number): string => String(Number(value.toPrecision(9)));

export function toHash(spot: Spot): string {
  const parts: string[] = [];
  const add = (name: string, value: string | undefined): void => {
    if (value !== undefined && value !== "") parts.push(`${name}=${encodeURIComponent(value)}`);
  };
  add("tab", spot.tab);
  add("section", spot.section);
  if (spot.rank !== undefined) add("rank", String(spot.rank));
  if (spot.step !== undefined) add("step", String(spot.step));
  if (spot.from !== undefined) add("from", rounded(spot.from));
  if (spot.to !== undefined) add("to", rounded(spot.to));
  if (spot.view) add("view", `${rounded(spot.view[0])}~${rounded(spot.view[1])}`);
  if (spot.marks?.length) add("marks", spot.marks.map(rounded).join("~"));
  add("find", spot.find);
  add("frame", spot.frame);
  return `#${parts.join("&")}`;
}

const number = (text: string | null): number | undefined => {
  const value = text === null || text.trim() === "" ? NaN : Number(text);
  return Number.isFinite(value) ? value : undefined;
};

/** A hash comes from anywhere: what cannot be read of it is left out. */
export function fromHash(hash: string): Spot {
  const asked = new URLSearchParams(hash.replace(/^#/, ""));
  const spot: Spot = { tab: asked.get("tab") ?? "" };
  for (const name of ["section", "find", "frame"] as const) {
    const text = asked.get(name);
    if (text) spot[name] = text;
  }
  for (const name of ["rank", "step", "from", "to"] as const) {
    const value = number(asked.get(name));
    if (value !== undefined) spot[name] = value;
  }
  const [low, high] = (asked.get("view") ?? "").split("~").map((text) => number(text));
  if (low !== undefined && high !== undefined && low < high) spot.view = [low, high];
  const marks = (asked.get("marks") ?? "").split("~").map((text) => number(text)).filter((mark) => mark !== undefined);
  if (marks.length) spot.marks = marks;
  return spot;
}
