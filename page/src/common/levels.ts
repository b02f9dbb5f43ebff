// Levels of detail: what is drawn is at most a few items per pixel, however many there are.
import { firstNotBelow } from "./statistics.ts";

const FACTOR = 16;

/** Least and most of each run of 16, 256, … samples. */
export class Extremes {
  private levels: { least: Float64Array; most: Float64Array }[] = [];

  constructor(readonly y: Float64Array) {
    let least: Float64Array = y;
    let most: Float64Array = y;
    while (least.length > 4 * FACTOR) {
      const n = Math.ceil(least.length / FACTOR);
      const [low, high] = [new Float64Array(n).fill(NaN), new Float64Array(n).fill(NaN)];
      for (let i = 0; i < least.length; i++) {
        const k = (i / FACTOR) | 0;
        if (!(low[k] <= least[i]) && least[i] === least[i]) low[k] = least[i];
        if (!(high[k] >= most[i]) && most[i] === most[i]) high[k] = most[i];
      }
      this.levels.push({ least: low, most: high });
      [least, most] = [low, high];
    }
  }

  /** Of the samples from ≤ i < to; NaN if there are none. */
  between(from: number, to: number): [number, number] {
    let [low, high] = [NaN, NaN];
    const take = (least: number, most: number): void => {
      if (!(low <= least) && least === least) low = least;
      if (!(high >= most) && most === most) high = most;
    };
    let i = from;
    while (i < to) {
      let level = -1;
      let size = 1;
      while (level + 1 < this.levels.length && i % (size * FACTOR) === 0 && i + size * FACTOR <= to) {
        size *= FACTOR;
        level++;
      }
      if (level < 0) take(this.y[i], this.y[i]);
      else take(this.levels[level].least[i / size], this.levels[level].most[i / size]);
      i += size;
    }
    return [low, high];
  }
}

export interface Drawn {
  x: Float64Array;
  /** NaN: none here. */
  y: Float64Array;
}

/** What of a line is drawn between low and high on so many pixels: all samples if they are few, else the extremes of each pixel. */
export function thinned(x: Float64Array, extremes: Extremes, low: number, high: number, pixels: number): Drawn {
  const first = Math.max(0, firstNotBelow(x, low) - 1);
  const last = Math.min(x.length, firstNotBelow(x, high) + 1);
  if (last - first <= 2 * pixels) return { x: x.slice(first, last), y: extremes.y.slice(first, last) };
  const drawn: Drawn = { x: new Float64Array(2 * pixels + 2), y: new Float64Array(2 * pixels + 2) };
  const width = (high - low) / pixels;
  let n = 0;
  let from = first;
  for (let pixel = 0; pixel < pixels && from < last; pixel++) {
    const to = pixel + 1 === pixels ? last : firstNotBelow(x, low + (pixel + 1) * width, from);
    if (to <= from) continue;
    const [least, most] = extremes.between(from, to);
    const at = low + pixel * width;
    drawn.x[n] = at + 0.25 * width;
    drawn.y[n++] = least;
    drawn.x[n] = at + 0.75 * width;
    drawn.y[n++] = most;
    from = to;
  }
  return { x: drawn.x.slice(0, n), y: drawn.y.slice(0, n) };
}

/** Lines with different x on one x: where one has no sample it is undefined, where its sample has no value null. */
export function joined(lines: Drawn[]): [number[], ...(number | null | undefined)[][]] {
  const all = new Set<number>();
  for (const line of lines) for (const x of line.x) all.add(x);
  const xs = Float64Array.from(all).sort();
  const columns = lines.map((line) => {
    const column: (number | null | undefined)[] = new Array(xs.length).fill(undefined);
    let at = 0;
    for (let i = 0; i < line.x.length; i++) {
      while (xs[at] < line.x[i]) at++;
      column[at] = line.y[i] === line.y[i] ? line.y[i] : null;
    }
    return column;
  });
  return [Array.from(xs), ...columns];
}

/** One row of intervals that do not overlap, sorted: each with the index it has in its lane. */
export class Row {
  readonly from: Float64Array;
  readonly to: Float64Array;
  readonly item: Uint32Array;
  private coarse: Coarse[] = [];

  constructor(from: Float64Array, length: Float64Array, item: Uint32Array) {
    this.item = item;
    this.from = new Float64Array(item.length);
    this.to = new Float64Array(item.length);
    let end = -Infinity;
    for (let i = 0; i < item.length; i++) {
      this.from[i] = from[item[i]];
      // An end before an earlier one would break the search by end.
      end = Math.max(end, from[item[i]] + (length[item[i]] || 0));
      this.to[i] = end;
    }
    let finer: Coarse = { from: this.from, to: this.to, longest: Uint32Array.from(item.keys()), busy: this.to.map((to, i) => to - this.from[i]) };
    while (finer.from.length > 4096) {
      finer = merged(finer, this);
      this.coarse.push(finer);
    }
  }

  /** Calls `draw` for what is visible; `busy` is the share of the interval that its items fill. */
  visible(low: number, high: number, pixels: number, draw: (i: number, from: number, to: number, busy: number) => void): void {
    const pixel = (high - low) / pixels;
    const level = this.level(low, high, pixels);
    const { from, to } = level;
    let pending = -1;
    let [start, end, busy, best] = [0, 0, 0, 0];
    const flush = (): void => {
      if (pending >= 0) draw(pending, start, end, end > start ? Math.min(1, busy / (end - start)) : 1);
      pending = -1;
    };
    for (let k = firstNotBelow(to, low); k < from.length && from[k] <= high; k++) {
      const length = level.busy[k];
      if (pending >= 0 && (from[k] - start >= pixel || to[k] - start > 2 * pixel)) flush();
      if (pending < 0) {
        [pending, start, end, busy, best] = [level.longest[k], from[k], to[k], length, length];
      } else {
        end = to[k];
        busy += length;
        if (length > best) [pending, best] = [level.longest[k], length];
      }
    }
    flush();
  }

  /** The interval at a time, or one that is nearer than `slack`; −1 if there is none. */
  at(time: number, slack: number): number {
    const k = firstNotBelow(this.to, time);
    if (k < this.from.length && this.from[k] <= time) return k;
    const after = k < this.from.length ? this.from[k] - time : Infinity;
    const before = k > 0 ? time - this.to[k - 1] : Infinity;
    if (Math.min(after, before) > slack) return -1;
    return after < before ? k : k - 1;
  }

  private level(low: number, high: number, pixels: number): Coarse {
    const finest: Coarse = { from: this.from, to: this.to, longest: this.identity(), busy: this.lengths() };
    let chosen = finest;
    for (const level of this.coarse) {
      const n = firstNotBelow(chosen.from, high) - firstNotBelow(chosen.to, low);
      if (n <= 4 * pixels) break;
      chosen = level;
    }
    return chosen;
  }

  private ids?: Uint32Array;
  private identity(): Uint32Array {
    return (this.ids ??= Uint32Array.from(this.item.keys()));
  }

  private own?: Float64Array;
  private lengths(): Float64Array {
    return (this.own ??= this.to.map((to, i) => to - this.from[i]));
  }
}

interface Coarse {
  from: Float64Array;
  to: Float64Array;
  /** The row's index of the longest. */
  longest: Uint32Array;
  busy: Float64Array;
}

function merged(finer: Coarse, row: Row): Coarse {
  const n = Math.ceil(finer.from.length / 4);
  const found: Coarse = { from: new Float64Array(n), to: new Float64Array(n), longest: new Uint32Array(n), busy: new Float64Array(n) };
  for (let k = 0; k < n; k++) {
    const last = Math.min(finer.from.length, 4 * k + 4);
    found.from[k] = finer.from[4 * k];
    found.to[k] = finer.to[last - 1];
    let best = -1;
    for (let i = 4 * k; i < last; i++) {
      found.busy[k] += finer.busy[i];
      const length = row.to[finer.longest[i]] - row.from[finer.longest[i]];
      if (length > best) [best, found.longest[k]] = [length, finer.longest[i]];
    }
  }
  return found;
}

/** The rows of a lane: one for each depth. */
export function rowsOf(from: Float64Array, length: Float64Array, depth?: ArrayLike<number>): Row[] {
  const order = sortedBy(from);
  if (!depth) return [new Row(from, length, order)];
  let deepest = 0;
  for (let i = 0; i < depth.length; i++) deepest = Math.max(deepest, depth[i]);
  const counts = new Uint32Array(deepest + 1);
  for (let i = 0; i < depth.length; i++) counts[depth[i]]++;
  const rows = Array.from(counts, (count) => new Uint32Array(count));
  counts.fill(0);
  for (const i of order) rows[depth[i]][counts[depth[i]]++] = i;
  return rows.map((item) => new Row(from, length, item));
}

function sortedBy(from: Float64Array): Uint32Array {
  const order = Uint32Array.from(from.keys());
  for (let i = 1; i < from.length; i++) {
    if (from[i] < from[i - 1]) return order.sort((a, b) => from[a] - from[b]);
  }
  return order;
}
