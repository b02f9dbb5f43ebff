// The document that a page shows, as haiprof/show/page/document.py writes it.

/** Since `Document.origin_ns`. */
export type Seconds = number;

/** Numbers in a blob: value = (running sum if delta, else item) * scale + offset. */
export interface Column {
  type: "f32" | "f64" | "i32" | "u32" | "u16" | "u8";
  blob: number;
  /** In bytes. */
  at: number;
  /** Items. */
  n: number;
  delta?: true;
  scale?: number;
  offset?: number;
}

/** Where something is to be seen; the page's URL hash holds the same. */
export interface Place {
  tab: string;
  section?: string;
  rank?: number;
  step?: number;
  from?: Seconds;
  to?: Seconds;
  find?: string;
  frame?: string;
}

export interface Run {
  name: string;
  facts: string[];
  origin_ns: string;
  duration: Seconds;
}

export interface Document extends Run {
  format: 1;
  title: string;
  before?: Run;
  headline: string[];
  ranks: number[];
  /** Those that have sections of their own. */
  chosen_ranks: number[];
  tabs: Tab[];
  made_by: string;
  live?: { every: Seconds; version: string };
}

export interface Tab {
  id: string;
  title: string;
  sections: Section[];
}

interface Common {
  id: string;
  title: string;
  /** Shown when that rank is chosen. */
  rank?: number;
  note?: string;
  group?: string;
  open?: boolean;
  /** Why there is nothing; shown instead of the content. */
  empty?: string;
}

export interface Text extends Common {
  kind: "text";
  lines: string[];
}

export interface Findings extends Common {
  kind: "findings";
  items: Finding[];
}

export interface Finding {
  kind: string;
  title: string;
  text: string;
  severity: "problem" | "note";
  lost?: Seconds;
  share?: number;
  ranks?: number[];
  line?: string;
  fix?: string;
  evidence: { text: string; place?: Place }[];
  place?: Place;
  confidence?: number;
}

export interface Series extends Common {
  kind: "series";
  /** `run` (s), `step` (numbers) or `time:` and a name (s from a beginning of its own). */
  axis: string;
  unit: string;
  stacked?: boolean;
  lines: Line[];
  marks?: Mark[];
  moves?: boolean;
}

export interface Line {
  name: string;
  x: Column;
  y: Column;
  low?: Column;
  high?: Column;
  before?: { x: Column; y: Column };
  /** Each value lasts until the next point. */
  stepped?: boolean;
  colour?: string;
}

export interface Mark {
  at: Seconds;
  to?: Seconds;
  kind: string;
  text: string;
  rank?: number;
}

export interface Heat extends Common {
  kind: "heat";
  rows: { label: string; rank?: number }[];
  steps: Column;
  /** Row by row: rows × steps. */
  values: Column;
  unit: string;
  more?: string;
}

export interface Lanes extends Common {
  kind: "lanes";
  /** As that of series. */
  axis: string;
  lanes: Lane[];
  steps?: { number: Column; from: Column; to: Column };
}

export interface Lane {
  name: string;
  group: string;
  from: Column;
  length: Column;
  /** Into `names`. */
  name_of: Column;
  depth?: Column;
  names: string[];
  colour?: "name" | "phase";
  detail?: { name: string; unit: string; values: Column }[];
}

export interface Flame extends Common {
  kind: "flame";
  unit: string;
  names: string[];
  /** file:line of each name. */
  places: string[];
  trees: Tree[];
}

export interface Tree {
  /** Such as "all" or "forward". */
  name: string;
  name_of: Column;
  /** −1: a root. Parents come first. */
  parent: Column;
  self: Column;
  before?: Column;
}

export interface Table extends Common {
  kind: "table";
  columns: TableColumn[];
  rows: number;
  more?: string;
  places?: (Place | null)[];
}

export interface TableColumn {
  name: string;
  unit?: string;
  help?: string;
  values: Column | string[] | (number | null)[];
  before?: Column | (number | null)[];
  bar?: true;
  /** What may be chance. */
  chance?: (string | null)[];
  colour?: string;
  /** Figures, though they are texts. */
  number?: true;
  /** What to sort by where the values are finished texts. */
  order?: (number | null)[];
}

export interface Bars extends Common {
  kind: "bars";
  unit: string;
  categories: string[];
  parts: { name: string; values: (number | null)[]; colour?: string }[];
  stacked: boolean;
  places?: (Place | null)[];
}

export type Section = Text | Findings | Series | Heat | Lanes | Flame | Table | Bars;
