// A figure that is drawn by hand: what changes seldom below, cursor and hints above, and rows that scroll.
import type { Theme } from "../common/colours.ts";
import { tickLabel, ticks } from "../common/numbers.ts";
import type { Axis } from "./axis.ts";
import { h, styled } from "./dom.ts";

export const RULER = 22;
const TALLEST_SHARE = 0.72;

export class Sheet {
  readonly base = h<HTMLCanvasElement>("canvas", { "aria-hidden": "true" });
  readonly over = h<HTMLCanvasElement>("canvas", { "aria-hidden": "true" });
  private spacer = h("div.canvas", {}, this.base, this.over);
  readonly element: HTMLElement;
  width = 0;
  height = 0;
  private full = 0;
  private drawn = "";

  constructor(label: string, description: string, private scrolled: () => void) {
    this.element = h("div.scrolled", { tabindex: 0, role: "application", "aria-roledescription": description, "aria-label": label }, this.spacer);
    this.element.addEventListener("scroll", () => this.scrolled());
    this.over.style.marginTop = "0";
  }

  get top(): number {
    return this.element.scrollTop;
  }

  /** The height of all rows with the ruler; returns whether something must be drawn anew. */
  fit(full: number): boolean {
    const width = this.spacer.clientWidth;
    const height = Math.max(RULER + 20, Math.min(full, Math.round(innerHeight * TALLEST_SHARE)));
    const ratio = devicePixelRatio;
    if (width === this.width && height === this.height && full === this.full && this.base.width === Math.round(width * ratio)) return false;
    [this.width, this.height, this.full] = [width, height, full];
    this.element.style.height = `${height + 2}px`;
    this.spacer.style.height = `${full}px`;
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    this.over.style.marginTop = `${-height}px`;
    this.drawn = "";
    return true;
  }

  /** Draws what lies below if `state` is another than the last time, and what lies above always. */
  draw(state: string, below: (ctx: CanvasRenderingContext2D) => void, above: (ctx: CanvasRenderingContext2D) => void): void {
    const whole = `${state}|${this.top}|${this.width}x${this.height}`;
    if (whole !== this.drawn) {
      this.drawn = whole;
      below(this.cleared(this.base, styled("--page")));
    }
    above(this.cleared(this.over));
  }

  /** Two layers as one. */
  image(): HTMLCanvasElement {
    return this.base;
  }

  private cleared(canvas: HTMLCanvasElement, colour?: string): CanvasRenderingContext2D {
    const ctx = canvas.getContext("2d")!;
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    if (colour) {
      ctx.fillStyle = colour;
      ctx.fillRect(0, 0, canvas.width, canvas.height);
    } else ctx.clearRect(0, 0, canvas.width, canvas.height);
    ctx.scale(devicePixelRatio, devicePixelRatio);
    ctx.font = FONT;
    ctx.textBaseline = "middle";
    return ctx;
  }

  /** Scrolls so that this row can be seen. */
  reveal(top: number, height: number): void {
    if (top < this.top) this.element.scrollTop = top;
    else if (top + height + RULER > this.top + this.height) this.element.scrollTop = top + height + RULER - this.height;
  }
}

export const FONT = '11px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';

/** Where labels end and the plot begins: as wide as they need, within reason. */
export function gutterOf(width: number, labels: readonly string[]): number {
  let longest = "";
  for (const label of labels) if (label.length > longest.length) longest = label;
  const ctx = measuring.getContext("2d")!;
  ctx.font = FONT;
  return Math.round(Math.min(width < 560 ? 92 : Math.min(240, width * 0.2), ctx.measureText(longest.slice(0, 80)).width + 24));
}
const measuring = document.createElement("canvas");

/** The ruler at the top, with grid lines down to `bottom`. */
export function ruler(ctx: CanvasRenderingContext2D, axis: Axis, left: number, width: number, bottom: number, label?: (at: number) => string): void {
  const [low, high] = axis.view;
  const marks = ticks(low, high, Math.max(2, Math.floor(width / 110)));
  const apart = (marks[1] ?? marks[0] + 1) - marks[0];
  ctx.fillStyle = styled("--page");
  ctx.fillRect(0, 0, left + width, RULER);
  ctx.textAlign = "center";
  for (const mark of marks) {
    const x = left + ((mark - low) / (high - low)) * width;
    ctx.fillStyle = styled("--line");
    ctx.fillRect(Math.round(x), RULER - 5, 1, bottom - RULER + 5);
    const text = label ? label(mark) : tickLabel(mark, apart, axis.unit);
    const half = ctx.measureText(text).width / 2;
    ctx.fillStyle = styled("--muted");
    if (x + half < left + width && x - half > left - 30) ctx.fillText(text, x, 9);
  }
  ctx.textAlign = "left";
}

/** Selection, marks and cursor of an axis. */
export function overlay(ctx: CanvasRenderingContext2D, axis: Axis, left: number, width: number, height: number): void {
  const [low, high] = axis.view;
  const x = (value: number): number => left + ((value - low) / (high - low)) * width;
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, 0, width, height);
  ctx.clip();
  const { selection, marks } = axis.shared;
  if (selection) {
    ctx.fillStyle = styled("--selection");
    ctx.fillRect(x(selection[0]), 0, Math.max(1, x(selection[1]) - x(selection[0])), height);
  }
  ctx.fillStyle = styled("--accent");
  for (const mark of marks) ctx.fillRect(Math.round(x(mark)), 0, 1, height);
  if (axis.cursor !== undefined) {
    ctx.globalAlpha = 0.6;
    ctx.fillRect(Math.round(x(axis.cursor)), 0, 1, height);
  }
  ctx.restore();
}

const widths = new Map<string, number>();
/** The text as far as it fits; "" if not even a bit does. */
export function fitted(ctx: CanvasRenderingContext2D, text: string, room: number): string {
  if (room < 16) return "";
  let width = widths.get(text);
  if (width === undefined) {
    if (widths.size > 20_000) widths.clear();
    width = ctx.measureText(text.slice(0, 400)).width;
    widths.set(text, width);
  }
  if (width <= room) return text;
  const kept = Math.floor((text.length * (room - 8)) / width);
  return kept >= 2 ? `${text.slice(0, kept)}…` : "";
}

export type { Theme };
