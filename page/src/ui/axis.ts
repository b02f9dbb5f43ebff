// An axis that figures share: what of it is visible, the cursor, the selected range, the user's marks.

export type Range = [number, number];

/** What all tabs have in common. */
export class Shared {
  selection?: Range;
  marks: number[] = [];
  readonly users = new Set<Axis>();

  constructor(readonly name: string) {}

  changed(): void {
    for (const axis of this.users) axis.changed();
  }
}

export class Axis {
  view: Range;
  cursor?: number;
  private listeners = new Set<() => void>();

  constructor(readonly shared: Shared, public full: Range, public unit: string) {
    this.view = [...full];
    shared.users.add(this);
  }

  /** Returns what ends it. */
  listen(run: () => void): () => void {
    this.listeners.add(run);
    return () => this.listeners.delete(run);
  }

  changed(): void {
    for (const run of this.listeners) run();
  }

  /** More of the axis is known: what showed all of it goes on to. */
  extend(full: Range): void {
    const all = this.view[0] === this.full[0] && this.view[1] === this.full[1];
    this.full = [Math.min(this.full[0], full[0]), Math.max(this.full[1], full[1])];
    if (all) this.view = [...this.full];
    this.changed();
  }

  show(low: number, high: number): void {
    const [first, last] = this.full;
    const most = last - first;
    const least = Math.max(most * 1e-9, 1e-9);
    let width = Math.min(most, Math.max(least, high - low));
    if (!(width > 0)) width = most || 1;
    let from = (low + high - width) / 2;
    from = Math.min(Math.max(from, first), Math.max(first, last - width));
    this.view = [from, from + width];
    this.changed();
  }

  zoom(factor: number, around: number): void {
    const [low, high] = this.view;
    const width = Math.min(this.full[1] - this.full[0], (high - low) * factor);
    const share = (around - low) / (high - low);
    this.show(around - share * width, around + (1 - share) * width);
  }

  /** By a share of what is visible. */
  pan(share: number): void {
    const [low, high] = this.view;
    const by = share * (high - low);
    this.show(low + by, high + by);
  }

  all(): void {
    this.show(...this.full);
  }

  point(cursor: number | undefined): void {
    if (cursor === this.cursor) return;
    this.cursor = cursor;
    this.changed();
  }

  select(range: Range | undefined): void {
    this.shared.selection = range && [Math.max(this.full[0], Math.min(...range)), Math.min(this.full[1], Math.max(...range))];
    this.shared.changed();
  }

  /** The selection with some room, or nothing if there is none. */
  showSelection(): boolean {
    const { selection } = this.shared;
    if (!selection) return false;
    const room = 0.15 * (selection[1] - selection[0]) || 0.01 * (this.full[1] - this.full[0]);
    this.show(selection[0] - room, selection[1] + room);
    return true;
  }
}
