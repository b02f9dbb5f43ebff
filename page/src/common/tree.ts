// A tree of frames, laid out as a flame graph: the widest child first.

export class Tree {
  readonly total: Float64Array;
  /** Of the run that this one is compared with. */
  readonly totalBefore?: Float64Array;
  readonly depth: Uint16Array;
  readonly begin: Float64Array;
  readonly deepest: number;
  readonly whole: number;
  readonly wholeBefore: number;
  /** The children of node i: sorted[first[i]] … sorted[first[i + 1] − 1]; of the roots: i = number of nodes. */
  private first: Uint32Array;
  private sorted: Uint32Array;

  /** Parents come before their children. */
  constructor(readonly nameOf: ArrayLike<number>, readonly parent: ArrayLike<number>, readonly self: Float64Array, readonly before?: Float64Array) {
    const n = parent.length;
    this.total = summed(parent, self);
    this.totalBefore = before && summed(parent, before);
    this.depth = new Uint16Array(n);
    let deepest = 0;
    const counts = new Uint32Array(n + 2);
    for (let i = 0; i < n; i++) {
      const above = parent[i];
      if (above >= i) throw new RangeError("a frame comes before its parent");
      this.depth[i] = above < 0 ? 0 : this.depth[above] + 1;
      deepest = Math.max(deepest, this.depth[i]);
      counts[(above < 0 ? n : above) + 1]++;
    }
    this.deepest = deepest;
    for (let i = 0; i <= n; i++) counts[i + 1] += counts[i];
    this.first = counts;
    this.sorted = new Uint32Array(n);
    const at = counts.slice();
    for (let i = 0; i < n; i++) this.sorted[at[parent[i] < 0 ? n : parent[i]]++] = i;
    const size = (i: number): number => this.total[i] + (this.totalBefore?.[i] ?? 0) * 1e-6;
    for (let i = 0; i <= n; i++) {
      if (this.first[i + 1] - this.first[i] > 1) this.sorted.subarray(this.first[i], this.first[i + 1]).sort((a, b) => size(b) - size(a));
    }
    this.begin = new Float64Array(n);
    let whole = 0;
    for (const root of this.children(n)) {
      this.begin[root] = whole;
      whole += this.total[root];
    }
    for (let i = 0; i < n; i++) {
      let x = this.begin[i];
      for (const child of this.children(i)) {
        this.begin[child] = x;
        x += this.total[child];
      }
    }
    this.whole = whole;
    let wholeBefore = 0;
    if (this.totalBefore) for (const root of this.children(n)) wholeBefore += this.totalBefore[root];
    this.wholeBefore = wholeBefore;
  }

  get size(): number {
    return this.parent.length;
  }

  /** The widest first; of `size`: the roots. */
  children(i: number): Uint32Array {
    return this.sorted.subarray(this.first[i], this.first[i + 1]);
  }

  /** Calls `draw` for each frame that is visible and at least `least` wide. */
  visible(low: number, high: number, least: number, draw: (i: number) => void): void {
    const waiting: number[] = [];
    const enter = (children: Uint32Array): void => {
      for (const child of children) {
        if (this.total[child] < least) break;
        const begin = this.begin[child];
        if (begin > high) break;
        if (begin + this.total[child] > low) waiting.push(child);
      }
    };
    enter(this.children(this.size));
    while (waiting.length) {
      const i = waiting.pop()!;
      draw(i);
      enter(this.children(i));
    }
  }

  /** The frame at a place, or −1. */
  at(x: number, depth: number): number {
    let children = this.children(this.size);
    for (let d = 0; ; d++) {
      const found = children.find((i) => x >= this.begin[i] && x < this.begin[i] + this.total[i]);
      if (found === undefined) return -1;
      if (d === depth) return found;
      children = this.children(found);
    }
  }

  /** The time in frames of these names, each moment once however often they call each other. */
  within(named: (name: number) => boolean): number {
    let sum = 0;
    const inside = new Uint8Array(this.size);
    for (let i = 0; i < this.size; i++) {
      const above = this.parent[i] >= 0 && inside[this.parent[i]];
      const own = named(this.nameOf[i]);
      if (own && !above) sum += this.total[i];
      inside[i] = own || above ? 1 : 0;
    }
    return sum;
  }

  /** By name: itself and with what it calls, recursion counted once; and before. */
  byName(): Map<number, { self: number; total: number; before: number }> {
    const found = new Map<number, { self: number; total: number; before: number }>();
    for (let i = 0; i < this.size; i++) {
      const name = this.nameOf[i];
      let sums = found.get(name);
      if (!sums) found.set(name, (sums = { self: 0, total: 0, before: 0 }));
      sums.self += this.self[i];
      sums.before += this.before?.[i] ?? 0;
      let above = this.parent[i];
      while (above >= 0 && this.nameOf[above] !== name) above = this.parent[above];
      if (above < 0) sums.total += this.total[i];
    }
    return found;
  }
}

function summed(parent: ArrayLike<number>, self: Float64Array): Float64Array {
  const total = self.map((value) => value || 0);
  for (let i = parent.length - 1; i >= 0; i--) if (parent[i] >= 0) total[parent[i]] += total[i];
  return total;
}
