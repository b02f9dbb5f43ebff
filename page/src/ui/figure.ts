// What every figure can do, and what it may ask of the page.
import type { Cell } from "../common/csv.ts";
import type { Blobs } from "../common/columns.ts";
import type { Theme } from "../common/colours.ts";
import type { Statistics } from "../common/statistics.ts";
import type { Document, Place, Section } from "../document.ts";
import type { Axis } from "./axis.ts";

export interface StatisticsRow extends Statistics {
  name: string;
  unit: string;
  colour?: string;
}

export interface Pin {
  title: string;
  place?: Place;
  values: { name: string; value: number | string; unit?: string }[];
}

export interface Rows {
  head: string[];
  rows: Cell[][];
}

export interface Figure {
  /** Draws what changed; called at most once a frame, and only while it can be seen. */
  draw(): void;
  /** The colours are others now. */
  themed?(): void;
  resized?(): void;
  axis?: Axis;
  /** A key while the figure has the focus or the pointer; true if it was for it. */
  key?(event: KeyboardEvent): boolean;
  statistics?(low: number, high: number): StatisticsRow[];
  /** All it shows, as a table. */
  rows?(): Rows;
  /** As an image; its parts from the top. */
  canvases?(): HTMLCanvasElement[];
  /** Goes to a place in it. */
  show?(place: Place): void;
  end?(): void;
}

export interface Page {
  readonly document: Document;
  readonly blobs: Blobs;
  readonly theme: Theme;
  axis(tab: string, name: string): Axis;
  go(place: Place): void;
  pin(pin: Pin): void;
  /** For who cannot see it. */
  say(text: string): void;
  /** Beside the pointer; null: nothing. */
  tip(content: Node | null, x?: number, y?: number): void;
  /** A range was selected: show what is in it. */
  selected(axis: Axis): void;
  /** The figure wants to be drawn. */
  redraw(figure: Figure): void;
  place: Place;
}

export interface Made<S extends Section> {
  section: S;
  tab: string;
  page: Page;
  /** Where the figure puts its elements. */
  body: HTMLElement;
}
