// One colour, one meaning, over all figures; those of phases and of work as in haiprof/show/figures.py.

export const MEANINGS: Record<string, string> = {
  dataloader: "#e8833a",
  forward: "#3f7fd6",
  loss: "#3f7fd6",
  recompute: "#35b0c4",
  backward: "#7a5bd0",
  gradient_sync: "#c4508a",
  optimizer: "#3fa66a",
  eval: "#8a94a6",
  eval_dataloader: "#c2925c",
  deep_trace: "#a8545c",
  other: "#b9c1cc",
  "between phases": "#b9c1cc",
  kernel: "#1f9e89",
  communication: "#c4508a",
  overlap: "#7f7796",
  waiting: "#d05b5b",
  wait: "#d05b5b",
  memcpy: "#d9b13b",
  memset: "#a0a45c",
  graph: "#5f8f3e",
  runtime: "#b374c9",
  cpu: "#7fa3d8",
  weight: "#a878e0",
  send: "#e0a08a",
  recv: "#8fb4ad",
  idle: "#b9c1cc",
};

/** For what has no meaning of its own. */
const LINES = {
  light: ["#1d5fa8", "#b5521b", "#2c7a45", "#93265f", "#523a9e", "#157a8c", "#7d6210", "#5b6675"],
  dark: ["#6ea8ff", "#f0955f", "#6cc48a", "#e07fb5", "#a997f2", "#58c3d6", "#d3b457", "#a9b4c2"],
};

export type Theme = "light" | "dark";

export const lineColour = (index: number, theme: Theme): string => LINES[theme][index % LINES[theme].length];

const hashes = new Map<string, number>();
function hash(text: string): number {
  let found = hashes.get(text);
  if (found === undefined) {
    found = 2166136261;
    for (let i = 0; i < text.length; i++) found = Math.imul(found ^ text.charCodeAt(i), 16777619);
    found >>>= 0;
    hashes.set(text, found);
  }
  return found;
}

/** Of a name that means no phase: always the same, quiet enough that text can be read on it. */
export function nameColour(name: string, theme: Theme): string {
  const value = hash(name);
  const hue = value % 360;
  const light = theme === "light" ? 74 + ((value >> 9) % 9) : 36 + ((value >> 9) % 8);
  return `hsl(${hue} ${theme === "light" ? 46 : 34}% ${light}%)`;
}

export const meaning = (name: string): string | undefined => (Object.hasOwn(MEANINGS, name) ? MEANINGS[name] : undefined);

/** Frames of one file have hues that are near each other. */
export function frameColour(place: string, name: string, theme: Theme): string {
  const file = place.replace(/:\d+$/, "") || name;
  const hue = 18 + (hash(file) % 190);
  const light = (theme === "light" ? 72 : 34) + (hash(name) % 10);
  return `hsl(${hue} ${theme === "light" ? 44 : 28}% ${light}%)`;
}

/** From blue (less) over none to red (more); `share` from −1 to 1. */
export function differenceColour(share: number, theme: Theme): string {
  const size = Math.min(1, Math.abs(share));
  const light = theme === "light" ? 94 - 42 * size : 26 + 24 * size;
  return `hsl(${share >= 0 ? 12 : 215} ${8 + 66 * size}% ${light}%)`;
}

/** Dark to bright, even to the eye, readable for the colour-blind (after cividis). */
const RAMP = ["#00224e", "#1a386f", "#434e6c", "#61646f", "#7d7c78", "#9b9476", "#bcae6c", "#dfca58", "#fee838"]
  .map((text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16)));

/** 256 colours as bytes of RGB. */
export function ramp(): Uint8ClampedArray {
  const colours = new Uint8ClampedArray(256 * 3);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (RAMP.length - 1);
    const k = Math.min(RAMP.length - 2, Math.floor(at));
    for (let c = 0; c < 3; c++) colours[3 * i + c] = RAMP[k][c] + (RAMP[k + 1][c] - RAMP[k][c]) * (at - k);
  }
  return colours;
}

/** Black or white, whichever can be read on it. */
export function textOn(colour: string): string {
  const known = textOn.known.get(colour);
  if (known) return known;
  const light = colour.startsWith("hsl") ? Number(/([\d.]+)%\)/.exec(colour)?.[1] ?? 50) > 50 : luminance(colour) > 0.3;
  const found = light ? "#10151c" : "#ffffff";
  textOn.known.set(colour, found);
  return found;
}
textOn.known = new Map<string, string>();

function luminance(hex: string): number {
  const [r, g, b] = [1, 3, 5].map((at) => (parseInt(hex.slice(at, at + 2), 16) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
