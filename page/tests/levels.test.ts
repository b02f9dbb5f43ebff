import assert from "node:assert/strict";
import { test } from "node:test";
import { Extremes, joined, Row, rowsOf, thinned } from "../src/common/levels.ts";
import { Tree } from "../src/common/tree.ts";

/** Numbers that look random and are the same each time. */
function* random(seed: number): Generator<number> {
  for (let state = seed; ; ) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    yield state / 2 ** 32;
  }
}
const drawn = (n: number, seed: number): Float64Array => {
  const from = random(seed);
  return Float64Array.from({ length: n }, () => from.next().value as number);
};

test("the extremes of any stretch are those that one finds one by one", () => {
  const y = drawn(5000, 1);
  y.fill(NaN, 300, 700);
  const extremes = new Extremes(y);
  for (const [from, to] of [[0, 5000], [3, 4], [17, 4000], [256, 512], [290, 710], [310, 600], [4990, 5000]]) {
    const there = [...y.subarray(from, to)].filter((value) => value === value);
    const [least, most] = extremes.between(from, to);
    if (!there.length) assert.ok(Number.isNaN(least) && Number.isNaN(most));
    else assert.deepEqual([least, most], [Math.min(...there), Math.max(...there)]);
  }
});

test("of many samples at most two a pixel are drawn, and no extreme is lost", () => {
  const n = 200_000;
  const y = drawn(n, 2);
  [y[77_777], y[123_456]] = [9, -9];
  const x = Float64Array.from({ length: n }, (_, i) => i);
  const found = thinned(x, new Extremes(y), 0, n, 800);
  assert.ok(found.x.length <= 2 * 800 + 2);
  assert.equal(Math.max(...found.y), 9);
  assert.equal(Math.min(...found.y), -9);
  assert.ok(found.x.every((value, i) => i === 0 || value >= found.x[i - 1]));
});

test("few samples are drawn as they are, with the one before and the one after", () => {
  const x = Float64Array.of(0, 1, 2, 3, 4, 5);
  assert.deepEqual([...thinned(x, new Extremes(x), 1.5, 3.5, 100).x], [1, 2, 3, 4]);
  assert.deepEqual([...thinned(new Float64Array(), new Extremes(new Float64Array()), 0, 1, 100).x], []);
});

test("lines with different x share one; a value that is absent is a gap, a sample of another line is none", () => {
  const [x, a, b] = joined([{ x: Float64Array.of(0, 2), y: Float64Array.of(1, NaN) }, { x: Float64Array.of(1, 2), y: Float64Array.of(5, 6) }]);
  assert.deepEqual([x, a, b], [[0, 1, 2], [1, undefined, null], [undefined, 5, 6]]);
});

test("of a million intervals a few a pixel are drawn, and the time they fill is kept", () => {
  const n = 1_000_000;
  const from = Float64Array.from({ length: n }, (_, i) => i);
  const length = drawn(n, 3);
  const row = new Row(from, length, Uint32Array.from(from.keys()));
  let [count, busy] = [0, 0];
  row.visible(0, n, 1000, (_, begin, end, share) => {
    count++;
    busy += share * (end - begin);
  });
  assert.ok(count <= 4000, `${count}`);
  const whole = length.reduce((sum, value) => sum + value, 0);
  assert.ok(Math.abs(busy / whole - 1) < 0.01, `${busy / whole}`);
  const near: number[] = [];
  row.visible(1000.5, 1003.5, 1000, (i) => near.push(i));
  assert.deepEqual(near.filter((i) => i > 1000), [1001, 1002, 1003]);
});

test("an interval is found at its time, and beside it within the slack", () => {
  const row = new Row(Float64Array.of(0, 10), Float64Array.of(2, 5), Uint32Array.of(0, 1));
  assert.deepEqual([row.at(1, 0), row.at(12, 0), row.at(5, 0), row.at(2.5, 1), row.at(9.5, 1), row.at(99, 1)], [0, 1, -1, 0, 1, -1]);
});

test("each depth of a lane is a row, sorted, whatever the order in the document", () => {
  const rows = rowsOf(Float64Array.of(5, 0, 1), Float64Array.of(1, 9, 1), Uint8Array.of(1, 0, 1));
  assert.deepEqual(rows.map((row) => [...row.item]), [[1], [2, 0]]);
});

test("a tree is laid out with the widest child first, and recursion counts once", () => {
  //                         main  f  g  f  g
  const tree = new Tree([0, 1, 2, 1, 2], [-1, 0, 0, 2, 3], Float64Array.of(1, 2, 3, 4, 5));
  assert.deepEqual([...tree.total], [15, 2, 12, 9, 5]);
  assert.deepEqual([...tree.children(0)], [2, 1]);
  assert.deepEqual([...tree.begin], [0, 12, 0, 0, 0]);
  assert.equal(tree.within((name) => name === 2), 12);
  assert.deepEqual(tree.byName().get(2), { self: 8, total: 12, before: 0 });
  assert.equal(tree.at(13, 1), 1);
  assert.equal(tree.at(14.5, 1), -1);
});

test("frames that are too narrow to be seen are not drawn, nor what they call", () => {
  const tree = new Tree([0, 1, 2], [-1, 0, 1], Float64Array.of(100, 0.01, 0.01));
  const seen: number[] = [];
  tree.visible(0, 100, 0.05, (i) => seen.push(i));
  assert.deepEqual(seen, [0]);
});

test("a parent that comes after its child is refused", () => {
  assert.throws(() => new Tree([0, 0], [1, -1], Float64Array.of(1, 1)), /before its parent/);
});
