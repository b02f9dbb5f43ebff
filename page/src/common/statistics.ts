// What is in a range: of samples, and of intervals.

export interface Statistics {
  count: number;
  sum: number;
  mean: number;
  least: number;
  most: number;
}

/** The first index whose value is not below `value`; `sorted` ascends. */
export function firstNotBelow(sorted: ArrayLike<number>, value: number, from = 0): number {
  let low = from;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Of the samples with from ≤ x ≤ to; absent ones (NaN) do not count. */
export function ofSamples(x: ArrayLike<number>, y: ArrayLike<number>, from: number, to: number): Statistics {
  const found: Statistics = { count: 0, sum: 0, mean: NaN, least: Infinity, most: -Infinity };
  for (let i = firstNotBelow(x, from); i < x.length && x[i] <= to; i++) {
    const value = y[i];
    if (value !== value) continue;
    found.count++;
    found.sum += value;
    if (value < found.least) found.least = value;
    if (value > found.most) found.most = value;
  }
  return finished(found);
}

function finished(found: Statistics): Statistics {
  if (found.count) found.mean = found.sum / found.count;
  else found.least = found.most = NaN;
  return found;
}

/** By name: how many intervals begin in or reach into the range, and how long they are within it. */
export function ofIntervals(
  from: ArrayLike<number>, length: ArrayLike<number>, nameOf: ArrayLike<number>, low: number, high: number,
): Map<number, Statistics> {
  const byName = new Map<number, Statistics>();
  for (let i = 0; i < from.length; i++) {
    const end = from[i] + length[i];
    if (from[i] > high || end < low || (end === low && length[i] > 0)) continue;
    const within = Math.min(end, high) - Math.max(from[i], low);
    let found = byName.get(nameOf[i]);
    if (!found) {
      found = { count: 0, sum: 0, mean: NaN, least: Infinity, most: -Infinity };
      byName.set(nameOf[i], found);
    }
    found.count++;
    found.sum += within;
    found.least = Math.min(found.least, within);
    found.most = Math.max(found.most, within);
  }
  for (const found of byName.values()) finished(found);
  return byName;
}

/** The sample nearest to x, or −1. */
export function nearest(sorted: ArrayLike<number>, x: number): number {
  if (!sorted.length) return -1;
  const after = firstNotBelow(sorted, x);
  if (after === 0) return 0;
  if (after === sorted.length) return after - 1;
  return x - sorted[after - 1] <= sorted[after] - x ? after - 1 : after;
}

/** The value below which a share of the values lies; NaN if there are none. */
export function quantile(values: ArrayLike<number>, share: number): number {
  const known = Float64Array.from(values).filter((value) => value === value).sort();
  if (!known.length) return NaN;
  return known[Math.min(known.length - 1, Math.floor(share * known.length))];
}
